import { type Clock, systemClock } from '#base/clock.ts';
import type { FindNamespace } from '#base/linux/network.ts';
import type { Log } from '#base/log.ts';
import type { EngineKind } from '#core/containers.ts';
import { type StowageError, stowageError } from '#core/errors.ts';
import type { DockerClient } from '#wire/docker/client.ts';
import type { Container } from '#wire/docker/containers.ts';
import { DockerError } from '#wire/docker/errors.ts';
import { namespaceOf, undefinedIfMissing } from './container-namespace.ts';
import { engineFailure } from './engine-errors.ts';
import { createNetworkAnchors } from './network-anchors.ts';
import {
  hostNetworkHidden,
  noContainerOrNetwork,
  noEngine,
  noNetworkAtAll,
  noNetworkYet,
  severalNetworks,
  sharedNetworkGone,
} from './network-errors.ts';

/** The networks of container engines, and those of their containers. */
export interface EngineNetworks {
  /**
   * `docker:NETWORK` and `podman:NETWORK`: the namespace of an anchor, a container whose only purpose is to be attached to the network.
   * `container:NAME`: the container's namespace, also while the container is stopped. A bare name: a container or a network. Anything else
   * names a namespace itself and is returned unchanged.
   */
  readonly findNamespace: FindNamespace;
  /** Removes anchors of networks that are not among `used` and were not requested recently. */
  removeUnusedAnchors(used: ReadonlySet<string>, signal: AbortSignal): Promise<void>;
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

export function createEngineNetworks(parts: EngineNetworksParts): EngineNetworks {
  const { engines, instance, log, hasHostNetwork, clock = systemClock() } = parts;
  const anchors = createNetworkAnchors({ clock, log, instance });

  function engineOf(kind: EngineKind, network: string): DockerClient {
    const engine = engines.get(kind);
    if (engine === undefined) throw noEngine(kind, network);
    return engine;
  }

  /** Queries the engines in order and returns the first result. If no engine has one, throws the first failure. */
  async function firstAnswer<T>(query: (engine: DockerClient, kind: EngineKind) => Promise<T | undefined>) {
    const failures: StowageError[] = [];
    for (const [kind, engine] of engines) {
      try {
        const found = await query(engine, kind);
        if (found !== undefined) return found;
      } catch (thrown) {
        if (!(thrown instanceof DockerError) || thrown.failure === 'canceled') throw thrown;
        failures.push(engineFailure(thrown, kind));
      }
    }
    if (failures[0] !== undefined) throw failures[0];
    return undefined;
  }

  const findContainerNamespace = (name: string, signal: AbortSignal): Promise<string | undefined> =>
    firstAnswer(async (engine, kind) => {
      const found = await undefinedIfMissing(engine.container(name, signal));
      return found && (await containerNamespace(found, kind, engine, signal));
    });

  /** For a container that does not run: the namespace that it will be in when it starts. */
  async function containerNamespace(
    found: Container,
    kind: EngineKind,
    engine: DockerClient,
    signal: AbortSignal,
  ): Promise<string> {
    const { name, networkMode, networks, state } = found;
    if (state.running) return await namespaceOf(found);
    if (networkMode === 'host') {
      if (await hasHostNetwork()) return ownNamespace;
      throw hostNetworkHidden(name);
    }
    if (networkMode === 'none') throw noNetworkAtAll(name);
    if (networkMode.startsWith('container:')) {
      const other = await undefinedIfMissing(engine.container(networkMode.slice('container:'.length), signal));
      if (other === undefined) throw sharedNetworkGone(name);
      return await containerNamespace(other, kind, engine, signal);
    }
    const [first, ...more] = Object.keys(networks);
    if (first === undefined) throw noNetworkYet(name);
    // A container in several networks has the routes of all of them, but an anchor has only one.
    if (more.length > 0) throw severalNetworks(kind, name, [first, ...more]);
    return await anchors.ensureNamespace({ kind, engine }, first, signal);
  }

  /** Throws if an engine does not answer: it may have a container of that name. */
  const findContainerOrNetwork = async (name: string, signal: AbortSignal): Promise<string | undefined> =>
    (await findContainerNamespace(name, signal)) ??
    (await firstAnswer(async (engine, kind) => {
      const found = await undefinedIfMissing(engine.network(name, signal));
      return found && (await anchors.ensureNamespace({ kind, engine }, found.name, signal));
    }));

  async function requireFound(find: Promise<string | undefined>, name: string): Promise<string> {
    const found = await find.catch((thrown: unknown) => Promise.reject(stowageError(thrown)));
    if (found === undefined) throw noContainerOrNetwork(name, [...engines.keys()]);
    return found;
  }

  return {
    findNamespace: async (network, signal) => {
      if (network.startsWith('/')) return network;
      const colon = network.indexOf(':');
      const [scheme, name] = [network.slice(0, Math.max(colon, 0)), network.slice(colon + 1)];
      switch (scheme) {
        case 'docker':
        case 'podman':
          return await anchors.ensureNamespace({ kind: scheme, engine: engineOf(scheme, name) }, name, signal);
        case 'container':
          return await requireFound(findContainerNamespace(name, signal), name);
        case '':
          return await requireFound(findContainerOrNetwork(name, signal), name);
        default:
          return network;
      }
    },
    removeUnusedAnchors: async (used, signal) => {
      for (const [kind, engine] of engines) {
        try {
          await anchors.removeUnused(engine, used, signal);
        } catch (thrown) {
          signal.throwIfAborted();
          // Unreachable or busy engines are tried again in the next pass.
          log.info('failed to remove unused anchors', { why: engineFailure(thrown, kind).message });
        }
      }
    },
  };
}

const ownNamespace = '/proc/self/ns/net';
