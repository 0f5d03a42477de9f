import { closeSync } from 'node:fs';
import { chmod, chown, mkdir } from 'node:fs/promises';
import type { Clock } from '#base/clock.ts';
import { isErrno } from '#base/errno.ts';
import { connectTo } from '#base/linux/descriptor-sockets.ts';
import { StowageError } from '#core/errors.ts';
import type { KeeperKind } from './keeper-kind.ts';

/** Keepers in pods of their own. Kubernetes starts them; Stowage only connects to them. */

/** The `runAsUser` of keeper pods, unless configured otherwise: the last user of the range in `keeper-user.ts`. */
export const defaultPodUser = 65_519;

/** Longer than a container takes to restart. Callers that mount retry by themselves. */
const listenTimeoutMs = 15_000;
const pollIntervalMs = 50;

/** Creates the keeper's folder. A keeper has no right to create the folder, and waits for it. */
export async function createKeeperFolder(folder: string, user: number): Promise<void> {
  await mkdir(folder, { recursive: true, mode: 0o700 });
  await chown(folder, user, user);
  await chmod(folder, 0o700);
}

/** Waits until a keeper listens on the socket. */
export async function waitForKeeper(socket: string, clock: Clock, signal: AbortSignal): Promise<void> {
  using limit = clock.deadline(listenTimeoutMs, signal);
  try {
    while (!isListening(socket)) await clock.sleep(pollIntervalMs, limit.signal);
  } catch (cause) {
    signal.throwIfAborted();
    throw limit.signal.aborted ? notFound(socket, cause) : cause;
  }
}

function isListening(socket: string): boolean {
  try {
    closeSync(connectTo(socket));
    return true;
  } catch (cause) {
    // A busy keeper listens, too.
    return isErrno(cause, 'EAGAIN');
  }
}

export function requirePodSupport({ network, privilegedPorts }: KeeperKind): void {
  // In a container only root could have that capability, and a keeper does not run as root.
  if (privilegedPorts)
    throw new StowageError(
      "volumes of a store with sourceport=privileged cannot be mounted: the data path's pod has no right to ports below 1024",
      {
        code: 'unsupported',
        reason: 'keeper-pod-ports',
        action:
          "Have the server's administrator add the export option insecure, and the store's administrator remove the option sourceport.",
      },
    );
  if (network === undefined) return;
  throw new StowageError(
    "volumes of a store with a network of its own cannot be mounted: the data path's pod uses the network of the node",
    {
      code: 'unsupported',
      reason: 'keeper-pod-network',
      action: "Have the store's administrator remove the option network.",
    },
  );
}

const notFound = (socket: string, cause: unknown): StowageError =>
  new StowageError(`no keeper listens at ${socket}`, {
    code: 'unavailable',
    reason: 'keeper-pod-missing',
    action:
      'See why the pod of the keeper does not run on this node: kubectl get pods -A -o wide -l app.kubernetes.io/component=keeper',
    cause,
  });

export const upgradedByKubernetes = (): StowageError =>
  new StowageError('data paths that run in pods are replaced by Kubernetes', {
    code: 'unsupported',
    reason: 'keeper-pod-upgrade',
    action: 'Roll out their DaemonSet: kubectl rollout restart daemonset -l app.kubernetes.io/component=keeper',
  });
