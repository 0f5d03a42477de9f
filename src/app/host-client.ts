import { possibleIds, type Surroundings, surroundings } from '#clients/data-path/own-container.ts';
import type { KeeperPlace } from '#clients/data-path/placing.ts';
import { StowageError } from '#core/errors.ts';
import type { StoreKind } from '#core/ports.ts';

type Environment = Readonly<Record<string, string | undefined>>;

/** Kubernetes sets it in the containers of every pod. */
const isInPod = (env: Environment): boolean => Boolean(env['KUBERNETES_SERVICE_HOST']);

/** In the container of a pod, or of a container engine. */
export async function isInContainer(
  env: Environment,
  keepers: KeeperPlace | undefined,
  look: () => Promise<Surroundings> = surroundings,
): Promise<boolean> {
  if (isInPod(env) || keepers === 'pod' || keepers === 'container') return true;
  // The name of a machine can look like the id of a container.
  return possibleIds({ ...(await look()), hostname: '' }).length > 0;
}

/**
 * For a process in a container, and for the controller of agents in containers: stores with client=host are not opened. The NFS client
 * of the machine is outside of the container, and every mount would fail.
 */
export const withoutHostClient = (kind: StoreKind): StoreKind => ({
  ...kind,
  open: async (config, ...rest) => {
    if (config.options['client'] === 'host') throw outOfReach(config.name);
    return await kind.open(config, ...rest);
  },
});

const outOfReach = (name: string): StowageError =>
  new StowageError(
    `store '${name}' has client=host, but the machine's NFS client cannot be used from the container in which Stowage runs`,
    {
      code: 'unsupported',
      reason: 'host-client-in-container',
      action: "Leave out client=host: Stowage's own client needs nothing of the machine.",
    },
  );
