import { createHash } from 'node:crypto';
import { readFile, stat } from 'node:fs/promises';
import { type Clock, systemClock } from '#base/clock.ts';
import { createKeyedLock } from '#base/keyed-lock.ts';
import type { FindNamespace } from '#base/linux/network.ts';
import type { Log } from '#base/log.ts';
import type { EngineKind } from '#core/containers.ts';
import { type StowageError, stowageError } from '#core/errors.ts';
import type { DockerClient } from '#wire/docker/client.ts';
import type { Container, ListedContainer } from '#wire/docker/containers.ts';
import { DockerError } from '#wire/docker/errors.ts';
import { containerLabels } from '../container-labels.ts';
import { anchorImage, anchorImageTar } from './anchor-image.ts';
import { engineFailure } from './engine-errors.ts';
import {
  hidden,
  hostNetworkHidden,
  noEngine,
  noNetwork,
  noNetworkAtAll,
  noNetworkYet,
  severalNetworks,
  sharedNetworkGone,
  unknownPlace,
} from './network-errors.ts';

/** The networks of container engines, and those of their containers. */
export interface EngineNetworks {
  /**
   * `docker:NETWORK` and `podman:NETWORK`: the namespace of an anchor, a container whose only purpose is to be attached to the network.
   * `container:NAME`, or a bare name, which may be a container or a network: its namespace; the container need not run. Anything else is
   * returned unchanged, as it names a namespace itself.
   */
  readonly find: FindNamespace;
  /** Removes anchors of networks that are not among `used` and were not asked for recently. */
  tidy(used: ReadonlySet<string>, signal: AbortSignal): Promise<void>;
}

export interface EngineNetworksParts {
  readonly engines: ReadonlyMap<EngineKind, DockerClient>;
  /** This Stowage's instance. Anchors of other instances are left alone. */
  readonly instance: string;
  readonly log: Log;
  /** Whether Stowage itself runs in the host's network. */
  readonly hasHostNetwork: () => Promise<boolean>;
  /** Default: the system's clock. */
  readonly clock?: Clock;
}

/** The engine's deadline if a cached answer can be used instead. */
const patienceMs = 2_000;
/** Longer than any check takes. */
const neededMs = 20_000;

export function createEngineNetworks(parts: EngineNetworksParts): EngineNetworks {
  const { engines, instance, log, hasHostNetwork, clock = systemClock() } = parts;
  const making = createKeyedLock();
  /** The anchors as last seen: a network keeps working while its engine is down. */
  const seen = new Map<string, Container>();
  /** When each network was last asked for: for a store that is being added, for a check, or for a keeper that still runs there. */
  const asked = new Map<string, number>();
  const isNeeded = (network: string): boolean => clock.elapsed() - (asked.get(network) ?? -Infinity) < neededMs;
  const nameOf = (network: string): string =>
    `stowage-anchor-${createHash('sha256').update(`${instance} ${network}`).digest('hex').slice(0, 12)}`;

  function engineOf(kind: EngineKind, network: string): DockerClient {
    const engine = engines.get(kind);
    if (engine === undefined) throw noEngine(kind, network);
    return engine;
  }

  /** The existing anchor. Undefined unless it runs and is attached. */
  async function present(engine: DockerClient, whole: string, signal: AbortSignal): Promise<Container | undefined> {
    const there = await unlessMissing(engine.container(nameOf(whole), signal));
    if (there?.state.running !== true) return undefined;
    const found = await unlessMissing(engine.network(networkOf(whole), signal));
    // The administrator wrote the network's name or its id; engines report one or the other.
    const isAttached = Object.entries(there.networks).some(
      ([name, { networkId }]) => found !== undefined && (networkId === found.id || name === found.name),
    );
    return isAttached ? there : undefined;
  }

  async function made(kind: EngineKind, engine: DockerClient, whole: string, signal: AbortSignal): Promise<Container> {
    using _ = await making.hold([whole], signal);
    const already = await present(engine, whole, signal);
    if (already !== undefined) return already;
    const [name, network] = [nameOf(whole), networkOf(whole)];
    // If the network was removed and created again under its name, the old network's anchor cannot be started.
    await unlessMissing(engine.removeContainer(name, signal));
    if ((await unlessMissing(engine.network(network, signal))) === undefined) throw noNetwork(kind, network);
    if ((await unlessMissing(engine.image(anchorImage, signal))) === undefined)
      await engine.loadImage(once(anchorImageTar()), signal);
    const id = await engine.createContainer(
      name,
      {
        image: anchorImage,
        labels: { [containerLabels.anchor]: whole, [containerLabels.instance]: instance },
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
      log.info('a container was attached to a network, for the stores in it', { network: whole, container: name });
      asked.set(whole, clock.elapsed());
      return await engine.container(id, signal);
    } catch (thrown) {
      // A container that never ran would look like somebody's mistake. If the removal fails, the next call finds it by name.
      await engine.removeContainer(id, signal).catch(() => undefined);
      throw thrown;
    }
  }

  async function anchored(kind: EngineKind, network: string, signal: AbortSignal): Promise<string> {
    const engine = engineOf(kind, network);
    const whole = `${kind}:${network}`;
    asked.set(whole, clock.elapsed());
    const before = seen.get(whole);
    try {
      using limit = before === undefined ? undefined : clock.deadline(patienceMs, signal);
      const there =
        (await present(engine, whole, limit?.signal ?? signal)) ?? (await made(kind, engine, whole, signal));
      seen.set(whole, there);
      return await namespaceOf(there);
    } catch (thrown) {
      const place = before !== undefined && isSilent(thrown) && !signal.aborted && (await unlessHidden(before));
      if (place) return place;
      throw engineFailure(thrown, kind);
    }
  }

  /** Asks the engines in order and returns the first answer. Throws an engine's failure only if no other engine has one. */
  async function among<T>(look: (engine: DockerClient, kind: EngineKind) => Promise<T | undefined>) {
    const failures: StowageError[] = [];
    for (const [kind, engine] of engines) {
      try {
        const found = await look(engine, kind);
        if (found !== undefined) return found;
      } catch (thrown) {
        if (!(thrown instanceof DockerError) || thrown.failure === 'canceled') throw thrown;
        failures.push(engineFailure(thrown, kind));
      }
    }
    if (failures[0] !== undefined) throw failures[0];
    return undefined;
  }

  const ofContainer = (name: string, signal: AbortSignal): Promise<string | undefined> =>
    among(async (engine, kind) => {
      const found = await unlessMissing(engine.container(name, signal));
      return found && (await whereaboutsOf(found, kind, engine, signal));
    });

  /** For a container that does not run: the namespace that it will be in when it starts. */
  async function whereaboutsOf(
    found: Container,
    kind: EngineKind,
    engine: DockerClient,
    signal: AbortSignal,
  ): Promise<string> {
    const { name, networkMode, networks, state } = found;
    if (state.running) return await namespaceOf(found);
    if (networkMode === 'host') {
      if (await hasHostNetwork()) return ownNetwork;
      throw hostNetworkHidden(name);
    }
    if (networkMode === 'none') throw noNetworkAtAll(name);
    if (networkMode.startsWith('container:')) {
      const other = await unlessMissing(engine.container(networkMode.slice('container:'.length), signal));
      if (other === undefined) throw sharedNetworkGone(name);
      return await whereaboutsOf(other, kind, engine, signal);
    }
    const [first, ...more] = Object.keys(networks);
    if (first === undefined) throw noNetworkYet(name);
    // A container in several networks has the routes of all of them, but an anchor has only one.
    if (more.length > 0) throw severalNetworks(kind, name, [first, ...more]);
    return await anchored(kind, first, signal);
  }

  /** If an engine does not answer, it may have a container of that name, so this throws. */
  const anywhere = async (name: string, signal: AbortSignal): Promise<string | undefined> =>
    (await ofContainer(name, signal)) ??
    (await among(async (engine, kind) => {
      const found = await unlessMissing(engine.network(name, signal));
      return found && (await anchored(kind, found.name, signal));
    }));

  async function inEngines(find: Promise<string | undefined>, name: string): Promise<string> {
    const found = await find.catch((thrown: unknown) => Promise.reject(stowageError(thrown)));
    if (found === undefined) throw unknownPlace(name, [...engines.keys()]);
    return found;
  }

  async function removeUnused(engine: DockerClient, used: ReadonlySet<string>, signal: AbortSignal): Promise<void> {
    const isOurs = ({ labels }: ListedContainer): boolean =>
      labels[containerLabels.instance] === instance && containerLabels.anchor in labels;
    for (const { id, labels } of (await engine.containers(signal)).filter(isOurs)) {
      const network = labels[containerLabels.anchor] ?? '';
      using _ = await making.hold([network], signal);
      if (used.has(network) || isNeeded(network)) continue;
      seen.delete(network);
      asked.delete(network);
      await unlessMissing(engine.removeContainer(id, signal));
    }
  }

  return {
    find: async (network, signal) => {
      if (network.startsWith('/')) return network;
      const cut = network.indexOf(':');
      const [scheme, name] = [network.slice(0, Math.max(cut, 0)), network.slice(cut + 1)];
      switch (scheme) {
        case 'docker':
        case 'podman':
          return await anchored(scheme, name, signal);
        case 'container':
          return await inEngines(ofContainer(name, signal), name);
        case '':
          return await inEngines(anywhere(name, signal), name);
        default:
          return network;
      }
    },
    tidy: async (used, signal) => {
      for (const [kind, engine] of engines) {
        try {
          await removeUnused(engine, used, signal);
        } catch (thrown) {
          signal.throwIfAborted();
          // Unreachable or busy engines are tried again in the next pass.
          log.info('anchors could not be looked after', { why: engineFailure(thrown, kind).message });
        }
      }
    },
  };
}

const ownNetwork = '/proc/self/ns/net';
const networkOf = (whole: string): string => whole.slice(whole.indexOf(':') + 1);

const isSilent = (thrown: unknown): boolean =>
  thrown instanceof DockerError && ['unreachable', 'lost', 'deadline'].includes(thrown.failure);

async function unlessMissing<T>(asked: Promise<T>): Promise<T | undefined> {
  try {
    return await asked;
  } catch (thrown) {
    if (thrown instanceof DockerError && thrown.status === 404) return undefined;
    throw thrown;
  }
}

async function* once(bytes: Buffer): AsyncGenerator<Buffer> {
  yield bytes;
}

/** The namespace as the engine reports it, or that of the container's first process if /proc shows it. */
async function namespaceOf({ id, name, sandbox, state: { pid } }: Container): Promise<string> {
  if (sandbox !== '' && (await isThere(sandbox))) return sandbox;
  // In another pid namespace than the engine's, the pid may belong to another process.
  const groups = await readFile(`/proc/${pid}/cgroup`, 'utf8').catch(() => '');
  if (pid > 0 && groups.includes(id)) return `/proc/${pid}/ns/net`;
  throw hidden(name, sandbox);
}

const unlessHidden = (container: Container): Promise<string | undefined> =>
  namespaceOf(container).catch(() => undefined);

const isThere = async (path: string): Promise<boolean> => {
  try {
    // If the namespace is not mounted on the file, the file is on another file system than all namespaces (nsfs).
    return (await stat(path)).dev === (await stat('/proc/self/ns/net')).dev;
  } catch {
    return false;
  }
};
