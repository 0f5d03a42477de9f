import { randomBytes } from 'node:crypto';
import { join } from 'node:path';
import { namespacePath } from '#base/linux/network.ts';
import type { Launch, LaunchedProcess } from '#keeper/launch.ts';
import type { DockerClient } from '#wire/docker/client.ts';
import type { ContainerSpec } from '#wire/docker/containers.ts';
import { DockerError } from '#wire/docker/errors.ts';
import { containerLabels } from '../container-labels.ts';
import { keeperOomScore } from './keeper-rights.ts';
import type { OwnContainer } from './own-container.ts';

export interface KeeperContainer {
  readonly own: OwnContainer;
  /** This Stowage's instance. Keepers of other instances are left alone. */
  readonly instance: string;
  /** The keeper's name. */
  readonly name: string;
  /** The keeper's folder, at the same path here and in its container. */
  readonly folder: string;
  readonly user: number;
  readonly privilegedPorts: boolean;
  /** The network from which it connects to servers. */
  readonly network: KeeperNetwork;
  readonly logOnce: (message: string, facts: Readonly<Record<string, string>>) => void;
}

/** The host's network, that of a container, or a namespace that has to be entered. */
export type KeeperNetwork =
  | { readonly kind: 'host' }
  | { readonly kind: 'container'; readonly id: string }
  | { readonly kind: 'namespace'; readonly hostPath: string };

/** A file in a keeper's folder: the engine has asked its container to stop. */
export const stopRequestedFile = 'ending';

/**
 * Process 1 of a keeper's container. It exits after all other processes: a data path outlives its keeper when that dies or hands over to a
 * keeper in another container. On shutdown the engine sends SIGTERM, as to all other containers at the same moment: process 1 then creates
 * the mark and waits for the containers that use the mounts. USR1 is for a keeper that hangs: nothing outside the container can kill just
 * the keeper.
 */
const initScript = `
rm -f "$0"
trap ': >"$0"' TERM
trap 'kill -KILL "$keeper"' USR1
"$@" &
keeper=$!
wait "$keeper"
status=$?
while set -- /proc/[0-9]*; [ "$#" -gt 1 ]; do sleep 1; done
exit "$status"`;

/** The same grace period as for Stowage's own container. Within it, Stowage ends the keeper if the keeper has no mounts. */
const stopSeconds = 60;

/** Where the namespace is mounted in the container. */
const namespaceMountPoint = '/run/netns/store';

/** Starts keepers as containers of this program's image. They outlive this program's own container. */
export const launchContainer =
  (container: KeeperContainer): Launch =>
  async ({ words, env }, signal) => {
    const { engine } = container.own;
    // Docker before 25 ends every auto-remove container when it restarts, even with live-restore.
    const { liveRestore } = await engine.info(signal);
    const spec = specOf(container, words, env, !liveRestore);
    await removeEndedContainers(container.own, container.instance, signal);
    try {
      return await createAndStart(engine, { ...spec, host: { ...spec.host, ...oomProtection } }, signal);
    } catch (cause) {
      if (!isRefused(cause)) throw cause;
      // An engine that lacks privileges itself cannot grant these, and its error does not say that this is the reason.
      const unprotected = await createAndStart(engine, spec, signal);
      container.logOnce('the data path is not protected from the OOM killer', { why: String(cause) });
      return unprotected;
    }
  };

/** Makes the keeper an unlikely victim of the OOM killer, and locks its code in memory. No memory limit: reaching it would end every mount. */
const oomProtection = { oomScore: keeperOomScore, limits: { memlock: -1 } } as const;

const isRefused = (cause: unknown): boolean => cause instanceof DockerError && cause.failure === 'refused';

type KeeperSpec = ReturnType<typeof specOf>;

async function createAndStart(engine: DockerClient, spec: KeeperSpec, signal: AbortSignal): Promise<LaunchedProcess> {
  const { [containerLabels.keeper]: keeper } = spec.labels;
  // The name must differ from that of its predecessor, which may still exist.
  const name = `stowage-keeper-${keeper}-${randomBytes(3).toString('hex')}`;
  const id = await engine.createContainer(name, spec, signal);
  const kill = async (): Promise<void> => void (await tryRemove(engine, id));
  // Start the wait before the container: its end cannot be queried later.
  const condition = spec.host.autoRemove ? 'removed' : 'next-exit';
  const ended = engine.waitContainer(id, signal, condition).catch((cause: unknown) => {
    if (cause instanceof DockerError && cause.status === 404) return null;
    return Promise.withResolvers<null>().promise;
  });
  try {
    await engine.startContainer(id, signal);
    return { pid: undefined, ended, kill };
  } catch (cause) {
    await kill();
    throw cause;
  }
}

/** Removes keeper containers that ended and that the engine does not remove itself. Returns how many are left, including those it failed to remove. */
export async function removeEndedContainers(
  { engine }: OwnContainer,
  instance: string,
  signal: AbortSignal,
): Promise<number> {
  const isKeeper = (labels: Readonly<Record<string, string>>): boolean =>
    labels[containerLabels.keeper] !== undefined && labels[containerLabels.instance] === instance;
  const keeperContainers = (await engine.containers(signal)).filter(({ labels }) => isKeeper(labels));
  const ended = keeperContainers.filter(({ state }) => state === 'exited' || state === 'dead');
  let remaining = keeperContainers.length;
  for (const { id } of ended) if (await tryRemove(engine, id)) remaining--;
  return remaining;
}

function specOf(
  container: KeeperContainer,
  command: readonly string[],
  env: Readonly<Record<string, string>>,
  autoRemove: boolean,
) {
  const { own, instance, name, folder, user, network } = container;
  const { enter, capabilities } = rightsFor(container);
  const namespaceBinds = network.kind === 'namespace' ? [`${network.hostPath}:${namespaceMountPoint}:ro`] : [];
  return {
    image: own.image,
    entrypoint: [...enter, '/bin/sh', '-c', initScript, join(folder, stopRequestedFile)],
    command,
    env: Object.entries(env).map(([key, value]) => `${key}=${value}`),
    // A container that has to drop capabilities starts as root.
    user: enter.length > 0 ? '0:0' : `${user}:${user}`,
    labels: { [containerLabels.keeper]: name, [containerLabels.instance]: instance },
    healthcheck: false,
    stopSeconds,
    host: {
      binds: [`${own.hostPath(folder) ?? folder}:${folder}`, ...namespaceBinds],
      network: network.kind === 'container' ? `container:${network.id}` : 'host',
      // On a host with SELinux the folder of its socket has no label that containers may access.
      capDrop: ['ALL'],
      capAdd: capabilities,
      securityOptions: ['no-new-privileges', 'label=disable'],
      // Replaces the volume that the image declares there.
      readOnly: true,
      tmpfs: ['/var/lib/stowage'],
      restart: 'no',
      autoRemove,
    },
  } satisfies ContainerSpec;
}

/**
 * Engines give an ordinary user no effective capabilities, and join only the namespaces of their containers. So if the keeper needs a
 * capability or another namespace, its container starts as root with the capabilities for that, and drops all others before the first
 * line of our code runs.
 */
function rightsFor({ user, privilegedPorts, network }: KeeperContainer): {
  readonly enter: readonly string[];
  readonly capabilities: readonly string[];
} {
  const isEntering = network.kind === 'namespace';
  if (!privilegedPorts && !isEntering) return { enter: [], capabilities: [] };
  const keptCapabilities = privilegedPorts ? ['+net_bind_service'] : [];
  return {
    enter: [
      ...(isEntering ? ['nsenter', `--net=${namespaceMountPoint}`, '--'] : []),
      'setpriv',
      `--reuid=${user}`,
      `--regid=${user}`,
      '--clear-groups',
      '--no-new-privs',
      `--inh-caps=${['-all', ...keptCapabilities].join(',')}`,
      ...(privilegedPorts ? [`--ambient-caps=${keptCapabilities.join(',')}`] : []),
      `--bounding-set=${['-all', ...keptCapabilities].join(',')}`,
      '--',
    ],
    capabilities: [
      'SETUID',
      'SETGID',
      'SETPCAP',
      ...(privilegedPorts ? ['NET_BIND_SERVICE'] : []),
      ...(isEntering ? ['SYS_ADMIN'] : []),
    ],
  };
}

/** Chooses the network of a keeper in a container. `namespace`: the current namespace of the network. */
export async function networkFor(
  own: OwnContainer,
  { network, namespace, instance }: { network: string | undefined; namespace: string | undefined; instance: string },
  signal: AbortSignal,
): Promise<KeeperNetwork> {
  if (network === undefined || namespace === undefined) return { kind: 'host' };
  const anchor = (await own.engine.containers(signal)).find(
    ({ labels }) => labels[containerLabels.anchor] === network && labels[containerLabels.instance] === instance,
  );
  if (anchor !== undefined) return { kind: 'container', id: anchor.id };
  const path = namespacePath(namespace);
  // A path that is not in a folder mounted into this container is a path of the host.
  return { kind: 'namespace', hostPath: own.hostPath(path) ?? path };
}

/** Each call to an engine has a deadline of its own. */
const unending = new AbortController().signal;

/** Kills a hanging keeper but not its data path. False: no keeper of that name runs in a container. */
export async function killKeeper(own: OwnContainer, name: string, instance: string): Promise<boolean> {
  const ours = (await own.engine.containers(unending)).filter(
    ({ labels, state }) =>
      labels[containerLabels.keeper] === name && labels[containerLabels.instance] === instance && state === 'running',
  );
  for (const { id } of ours) await own.engine.signalContainer(id, 'USR1', unending);
  return ours.length > 0;
}

/** False: the container still exists; its removal may be in progress, or it is busy for a moment. */
async function tryRemove(engine: DockerClient, id: string): Promise<boolean> {
  return await engine.removeContainer(id, unending).then(
    () => true,
    (cause: unknown) => cause instanceof DockerError && cause.status === 404,
  );
}
