import { createHash } from 'node:crypto';
import { readFile, stat } from 'node:fs/promises';
import { createKeyedLock } from '#base/keyed-lock.ts';
import type { FindNamespace } from '#base/linux/network.ts';
import type { Log } from '#base/log.ts';
import type { EngineKind } from '#core/containers.ts';
import { StowageError } from '#core/errors.ts';
import type { DockerClient } from '#wire/docker/client.ts';
import type { Container } from '#wire/docker/containers.ts';
import { DockerError } from '#wire/docker/errors.ts';
import { anchorImage, anchorImageTar } from './anchor-image.ts';
import { engineFailure } from './errors.ts';

/** Networks of container engines, and those of their containers. */
export interface EngineNetworks {
  /**
   * `docker:NETWORK` and `podman:NETWORK`, by way of an anchor: a container that does nothing but be attached to it.
   * `container:NAME`, or a name alone, which may be a container's or a network's. Anything else is a namespace itself.
   */
  readonly find: FindNamespace;
  /** Removes anchors of networks that are not among these. */
  tidy(used: ReadonlySet<string>, signal: AbortSignal): Promise<void>;
}

export interface EngineNetworksParts {
  readonly engines: ReadonlyMap<EngineKind, DockerClient>;
  /** Another Stowage's anchors are its own. */
  readonly instance: string;
  readonly log: Log;
}

const label = { anchor: 'stowage.dev/anchor', instance: 'stowage.dev/instance' } as const;

export function createEngineNetworks(parts: EngineNetworksParts): EngineNetworks {
  const { engines, instance, log } = parts;
  const making = createKeyedLock();
  const nameOf = (network: string): string =>
    `stowage-anchor-${createHash('sha256').update(`${instance} ${network}`).digest('hex').slice(0, 12)}`;

  function engineOf(kind: EngineKind, network: string): DockerClient {
    const engine = engines.get(kind);
    if (engine === undefined) throw noEngine(kind, network);
    return engine;
  }

  /** Attached and running; its namespace is the network's. */
  async function anchored(kind: EngineKind, network: string, signal: AbortSignal): Promise<string> {
    const engine = engineOf(kind, network);
    const whole = `${kind}:${network}`;
    using _ = await making.hold([whole], signal);
    const name = nameOf(whole);
    try {
      const there = await unlessMissing(engine.container(name, signal));
      if (there?.state.running === true && network in there.networks) return await namespaceOf(there);
      // Of a network that was made anew under its name, the anchor of the old one cannot be started.
      if (there !== undefined) await engine.removeContainer(there.id, signal);
      if ((await unlessMissing(engine.network(network, signal))) === undefined) throw noNetwork(kind, network);
      if ((await unlessMissing(engine.image(anchorImage, signal))) === undefined)
        await engine.loadImage(once(anchorImageTar()), signal);
      const id = await engine.createContainer(
        name,
        {
          image: anchorImage,
          labels: { [label.anchor]: whole, [label.instance]: instance },
          host: {
            ...{ network, capDrop: ['ALL'], securityOptions: ['no-new-privileges'], readOnly: true },
            restart: 'unless-stopped',
          },
        },
        signal,
      );
      await engine.startContainer(id, signal);
      log.info('a container was attached to a network, for the stores in it', { network: whole, container: name });
      return await namespaceOf(await engine.container(id, signal));
    } catch (thrown) {
      throw engineFailure(thrown, kind);
    }
  }

  async function ofContainer(name: string, signal: AbortSignal): Promise<string | undefined> {
    for (const [kind, engine] of engines) {
      try {
        const found = await unlessMissing(engine.container(name, signal));
        if (found !== undefined && !found.state.running) throw notRunning(found.name);
        if (found !== undefined) return await namespaceOf(found);
      } catch (thrown) {
        throw engineFailure(thrown, kind);
      }
    }
    return undefined;
  }

  async function anywhere(name: string, signal: AbortSignal): Promise<string> {
    const container = await ofContainer(name, signal);
    if (container !== undefined) return container;
    for (const [kind, engine] of engines) {
      const found = await unlessMissing(engine.network(name, signal)).catch((thrown: unknown) => {
        throw engineFailure(thrown, kind);
      });
      if (found !== undefined) return await anchored(kind, name, signal);
    }
    throw unknownPlace(name);
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
        case 'container': {
          const found = await ofContainer(name, signal);
          if (found === undefined) throw unknownPlace(name);
          return found;
        }
        case '':
          return await anywhere(name, signal);
        default:
          return network;
      }
    },
    tidy: async (used, signal) => {
      for (const [kind, engine] of engines) {
        // One that does not answer now does the next time.
        const all = await engine.containers(signal).catch((thrown: unknown) => {
          signal.throwIfAborted();
          log.info('anchors could not be looked after', { why: engineFailure(thrown, kind).message });
          return [];
        });
        const ours = all.filter(({ labels }) => labels[label.instance] === instance && label.anchor in labels);
        for (const { id, labels } of ours) {
          const network = labels[label.anchor] ?? '';
          using _ = await making.hold([network], signal);
          if (!used.has(network)) await engine.removeContainer(id, signal);
        }
      }
    },
  };
}

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

/** As the engine shows it, or by the container's first process where that is seen from here. */
async function namespaceOf({ id, name, sandbox, state: { pid } }: Container): Promise<string> {
  if (sandbox !== '' && (await isThere(sandbox))) return sandbox;
  // In another process namespace than the engine's, the number is somebody else's.
  const groups = await readFile(`/proc/${pid}/cgroup`, 'utf8').catch(() => '');
  if (pid > 0 && groups.includes(id)) return `/proc/${pid}/ns/net`;
  throw new StowageError(`the network of container '${name}' cannot be seen from here: no ${sandbox}`, {
    code: 'unsupported',
    reason: 'engine-network-hidden',
    action: 'Where Stowage runs in a container, give it the folder: -v /run/docker/netns:/run/docker/netns:rslave',
  });
}

const isThere = async (path: string): Promise<boolean> => {
  try {
    // A file that the namespace is not mounted on is on another file system than all namespaces are.
    return (await stat(path)).dev === (await stat('/proc/self/ns/net')).dev;
  } catch {
    return false;
  }
};

function noEngine(kind: EngineKind, network: string): StowageError {
  return new StowageError(`network '${kind}:${network}' cannot be used: Stowage was not told of that engine`, {
    code: 'unsupported',
    reason: 'engine-unknown',
    action: `Give Stowage the engine's socket: --${kind}-socket PATH, or engines: in stowage.yaml`,
  });
}

function noNetwork(kind: EngineKind, network: string): StowageError {
  return new StowageError(`${kind} has no network '${network}'`, {
    code: 'unavailable',
    reason: 'engine-network-missing',
    action: `Make it (${kind} network create ${network}), or correct the option network of the store.`,
  });
}

function notRunning(name: string): StowageError {
  return new StowageError(`container '${name}' does not run, so it has no network`, {
    code: 'conflict',
    reason: 'container-not-running',
    action: 'Start it, or name a network that it will be attached to.',
  });
}

function unknownPlace(name: string): StowageError {
  return new StowageError(`there is no container or network '${name}'`, {
    code: 'not-found',
    reason: 'engine-place-unknown',
    action: 'See what there is: docker ps, docker network ls. Is the engine known? stowage status',
  });
}
