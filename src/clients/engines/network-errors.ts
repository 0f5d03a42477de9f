import { dirname } from 'node:path';
import type { EngineKind } from '#core/containers.ts';
import { StowageError } from '#core/errors.ts';

export function networkHidden(name: string, sandbox: string): StowageError {
  const folder = dirname(sandbox);
  return new StowageError(
    `the network of container '${name}' is not visible here: ${sandbox === '' ? 'the container shares the network of another one' : `no ${sandbox}`}`,
    {
      code: 'unsupported',
      reason: 'engine-network-hidden',
      action:
        sandbox === ''
          ? 'Name the container that it shares its network with, or a network of the engine.'
          : `If Stowage runs in a container, mount the folder into it: -v ${folder}:${folder}:rslave`,
    },
  );
}

export function hostNetworkHidden(name: string): StowageError {
  return new StowageError(
    `container '${name}' uses the network of the host, which is not visible in Stowage's container`,
    {
      code: 'unsupported',
      reason: 'engine-network-hidden',
      action: "Start Stowage's container with --network host, or name a network of the engine.",
    },
  );
}

export function noEngine(kind: EngineKind, network: string): StowageError {
  return new StowageError(`network '${kind}:${network}' cannot be used: Stowage is not configured for that engine`, {
    code: 'unsupported',
    reason: 'engine-unknown',
    action: `Give Stowage the engine's socket: --${kind}-socket PATH, or engines: in stowage.yaml`,
  });
}

export function noNetwork(kind: EngineKind, network: string): StowageError {
  return new StowageError(`${kind} has no network '${network}'`, {
    code: 'unavailable',
    reason: 'engine-network-missing',
    action: `Create it (${kind} network create ${network}), or correct the name in the store's option network, or in --from.`,
  });
}

export function noNetworkYet(name: string): StowageError {
  return new StowageError(`container '${name}' does not run, so it has no network`, {
    code: 'conflict',
    reason: 'container-not-running',
    action: 'Start the container, or name a network that it will be attached to.',
  });
}

export function severalNetworks(kind: EngineKind, name: string, networks: readonly string[]): StowageError {
  return new StowageError(`container '${name}' does not run, and has several networks: ${networks.join(', ')}`, {
    code: 'conflict',
    reason: 'container-networks-several',
    action: `Name one of them: ${networks.map((network) => `--from ${kind}:${network}`).join(', ')}`,
  });
}

export function noNetworkAtAll(name: string): StowageError {
  return new StowageError(`container '${name}' has no network`, {
    code: 'conflict',
    reason: 'container-without-network',
    action:
      'The container needs no network for its volumes: Stowage itself connects to the server. Check the store without --from.',
  });
}

export function sharedNetworkGone(name: string): StowageError {
  return new StowageError(`container '${name}' shares the network of a container that is gone`, {
    code: 'conflict',
    reason: 'container-without-network',
    action: `Remove container '${name}' and create it again, or name a network.`,
  });
}

export function noContainerOrNetwork(name: string, kinds: readonly EngineKind[]): StowageError {
  return new StowageError(`there is no container or network '${name}'`, {
    code: 'not-found',
    reason: 'engine-place-unknown',
    action:
      kinds.length === 0
        ? "Give Stowage the engine's socket: --docker-socket PATH, --podman-socket PATH, or engines: in stowage.yaml"
        : `To list them: ${kinds.map((kind) => `${kind} ps, ${kind} network ls`).join(', ')}`,
  });
}
