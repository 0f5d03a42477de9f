import type { KeeperPlace } from '#clients/data-path/keeper-placement.ts';
import { type ContainerEvidence, possibleIds, readContainerEvidence } from '#clients/data-path/own-container.ts';
import { StowageError } from '#core/errors.ts';
import type { StoreKind } from '#core/ports.ts';

type Environment = Readonly<Record<string, string | undefined>>;

/** Kubernetes sets this variable in all containers of pods. */
const isInPod = (env: Environment): boolean => Boolean(env['KUBERNETES_SERVICE_HOST']);

/** Whether this process runs in a container of a pod or of a container engine. */
export async function isInContainer(
  env: Environment,
  keepers: KeeperPlace | undefined,
  readEvidence: () => Promise<ContainerEvidence> = readContainerEvidence,
): Promise<boolean> {
  if (isInPod(env) || keepers === 'pod' || keepers === 'container') return true;
  // A host name can look like a container id, so ignore it.
  return possibleIds({ ...(await readEvidence()), hostname: '' }).length > 0;
}

/**
 * For a process in a container, and for the controller, whose agents run in containers: refuses to open stores with client=host. The
 * machine's NFS client is outside of the container, so every mount would fail.
 */
export const refuseHostClient = (kind: StoreKind): StoreKind => ({
  ...kind,
  open: async (config, ...rest) => {
    if (config.options['client'] === 'host') throw hostClientInContainer(config.name);
    return await kind.open(config, ...rest);
  },
});

const hostClientInContainer = (name: string): StowageError =>
  new StowageError(
    `store '${name}' has client=host, but the machine's NFS client cannot be used from the container in which Stowage runs`,
    {
      code: 'unsupported',
      reason: 'host-client-in-container',
      action: 'Remove the option client=host: the built-in client works in containers.',
    },
  );
