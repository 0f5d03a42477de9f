import { createHash } from 'node:crypto';
import type { Clock } from '#base/clock.ts';
import { createKeyedLock } from '#base/keyed-lock.ts';
import type { Log } from '#base/log.ts';
import type { EngineKind } from '#core/containers.ts';
import type { DockerClient } from '#wire/docker/client.ts';
import type { Container, ListedContainer } from '#wire/docker/containers.ts';
import { DockerError } from '#wire/docker/errors.ts';
import { containerLabels } from '../container-labels.ts';
import { anchorImage, anchorImageTar } from './anchor-image.ts';
import { namespaceOf, undefinedIfMissing } from './container-namespace.ts';
import { engineFailure } from './engine-errors.ts';
import { noNetwork } from './network-errors.ts';

/** An engine and its kind. */
interface ContainerEngine {
  readonly kind: EngineKind;
  readonly engine: DockerClient;
}

/** Anchors: containers whose only purpose is to be attached to a network of their engine. */
export interface NetworkAnchors {
  /** The namespace of the network's anchor, which is created if there is none. */
  ensureNamespace(engine: ContainerEngine, network: string, signal: AbortSignal): Promise<string>;
  /** Removes the anchors of networks that are not among `used` and were not requested recently. */
  removeUnused(engine: DockerClient, used: ReadonlySet<string>, signal: AbortSignal): Promise<void>;
}

interface NetworkAnchorsOptions {
  readonly clock: Clock;
  readonly log: Log;
  /** This Stowage's instance. Anchors of other instances are left alone. */
  readonly instance: string;
}

/** The timeout of an engine request if a cached answer can be used instead. */
const cachedAnswerMs = 2_000;
/** Anchors that were requested within this time are kept. Longer than any check takes. */
const recentUseMs = 20_000;

export function createNetworkAnchors({ clock, log, instance }: NetworkAnchorsOptions): NetworkAnchors {
  const locks = createKeyedLock();
  /** The anchors as last seen: a network keeps working while its engine is down. */
  const lastSeenAnchors = new Map<string, Container>();
  /** When each network was last requested: for a store that is being added, for a check, or for a keeper that still runs there. */
  const lastUsed = new Map<string, number>();
  const wasUsedRecently = (network: string): boolean =>
    clock.elapsed() - (lastUsed.get(network) ?? -Infinity) < recentUseMs;
  const anchorName = (network: string): string =>
    `stowage-anchor-${createHash('sha256').update(`${instance} ${network}`).digest('hex').slice(0, 12)}`;

  /** The existing anchor. Undefined unless it runs and is attached. */
  async function findAnchor(engine: DockerClient, key: string, signal: AbortSignal): Promise<Container | undefined> {
    const anchor = await undefinedIfMissing(engine.container(anchorName(key), signal));
    if (anchor?.state.running !== true) return undefined;
    const found = await undefinedIfMissing(engine.network(networkOf(key), signal));
    // The administrator wrote the network's name or its id; engines report one or the other.
    const isAttached = Object.entries(anchor.networks).some(
      ([name, { networkId }]) => found !== undefined && (networkId === found.id || name === found.name),
    );
    return isAttached ? anchor : undefined;
  }

  async function create(kind: EngineKind, engine: DockerClient, key: string, signal: AbortSignal): Promise<Container> {
    using _ = await locks.hold([key], signal);
    const existing = await findAnchor(engine, key, signal);
    if (existing !== undefined) return existing;
    const [name, network] = [anchorName(key), networkOf(key)];
    // If the network was removed and created again under its name, the old network's anchor cannot be started.
    await undefinedIfMissing(engine.removeContainer(name, signal));
    if ((await undefinedIfMissing(engine.network(network, signal))) === undefined) throw noNetwork(kind, network);
    if ((await undefinedIfMissing(engine.image(anchorImage, signal))) === undefined)
      await engine.loadImage(singleChunk(anchorImageTar()), signal);
    const id = await engine.createContainer(
      name,
      {
        image: anchorImage,
        labels: { [containerLabels.anchor]: key, [containerLabels.instance]: instance },
        host: {
          network,
          capDrop: ['ALL'],
          securityOptions: ['no-new-privileges'],
          readOnly: true,
          restart: 'unless-stopped',
        },
      },
      signal,
    );
    try {
      await engine.startContainer(id, signal);
      log.info('attached a container to a network, for the stores in that network', { network: key, container: name });
      lastUsed.set(key, clock.elapsed());
      return await engine.container(id, signal);
    } catch (thrown) {
      // A container that never ran would look like a mistake of the administrator. If the removal fails, the next call finds it by name.
      await engine.removeContainer(id, signal).catch(() => undefined);
      throw thrown;
    }
  }

  async function ensureNamespace(
    { kind, engine }: ContainerEngine,
    network: string,
    signal: AbortSignal,
  ): Promise<string> {
    const key = `${kind}:${network}`;
    lastUsed.set(key, clock.elapsed());
    const cachedAnchor = lastSeenAnchors.get(key);
    try {
      using limit = cachedAnchor === undefined ? undefined : clock.deadline(cachedAnswerMs, signal);
      const anchor =
        (await findAnchor(engine, key, limit?.signal ?? signal)) ?? (await create(kind, engine, key, signal));
      lastSeenAnchors.set(key, anchor);
      return await namespaceOf(anchor);
    } catch (thrown) {
      const cachedNamespace =
        cachedAnchor !== undefined && isSilent(thrown) && !signal.aborted && (await tryNamespaceOf(cachedAnchor));
      if (cachedNamespace) return cachedNamespace;
      throw engineFailure(thrown, kind);
    }
  }

  async function removeUnused(engine: DockerClient, used: ReadonlySet<string>, signal: AbortSignal): Promise<void> {
    const isOurs = ({ labels }: ListedContainer): boolean =>
      labels[containerLabels.instance] === instance && containerLabels.anchor in labels;
    for (const { id, labels } of (await engine.containers(signal)).filter(isOurs)) {
      const network = labels[containerLabels.anchor] ?? '';
      using _ = await locks.hold([network], signal);
      if (used.has(network) || wasUsedRecently(network)) continue;
      lastSeenAnchors.delete(network);
      lastUsed.delete(network);
      await undefinedIfMissing(engine.removeContainer(id, signal));
    }
  }

  return { ensureNamespace, removeUnused };
}

const networkOf = (key: string): string => key.slice(key.indexOf(':') + 1);

const isSilent = (thrown: unknown): boolean =>
  thrown instanceof DockerError && ['unreachable', 'lost', 'deadline'].includes(thrown.failure);

async function* singleChunk(bytes: Buffer): AsyncGenerator<Buffer> {
  yield bytes;
}

const tryNamespaceOf = (container: Container): Promise<string | undefined> =>
  namespaceOf(container).catch(() => undefined);
