import { randomBytes } from 'node:crypto';
import { join } from 'node:path';
import { namespacePath } from '#base/linux/network.ts';
import type { Launch, Launched } from '#keeper/launch.ts';
import type { DockerClient } from '#wire/docker/client.ts';
import type { ContainerSpec } from '#wire/docker/containers.ts';
import { DockerError } from '#wire/docker/errors.ts';
import { containerLabels } from '../container-labels.ts';
import type { OwnContainer } from './own-container.ts';
import { keeperOomScore } from './rights.ts';

export interface KeeperContainer {
  readonly own: OwnContainer;
  /** Of this Stowage: another one's keepers are its own. */
  readonly instance: string;
  /** The keeper's. */
  readonly name: string;
  /** The keeper's folder, the same here and there. */
  readonly folder: string;
  readonly user: number;
  readonly privilegedPorts: boolean;
  /** Where its connections start. */
  readonly network: KeeperNetwork;
  readonly tell: (message: string, facts: Readonly<Record<string, string>>) => void;
}

/** The machine's, that of a container, or a namespace that has to be entered. */
export type KeeperNetwork =
  | { readonly kind: 'host' }
  | { readonly kind: 'container'; readonly id: string }
  | { readonly kind: 'namespace'; readonly hostPath: string };

/** In a keeper's folder: its container was told to end. */
export const endingMark = 'ending';

/**
 * The first process of a keeper's container. It ends when all others have: a data path outlives its keeper, when that dies or
 * hands over to one in another container. The engine tells it to end when it shuts down, as it does all others at the same
 * moment: it leaves a mark, and waits for those that use the mounts. USR1 is for a keeper that hangs: nobody outside can
 * kill just that.
 */
const firstProcess = `
rm -f "$0"
trap ': >"$0"' TERM
trap 'kill -KILL "$keeper"' USR1
"$@" &
keeper=$!
wait "$keeper"
status=$?
while set -- /proc/[0-9]*; [ "$#" -gt 1 ]; do sleep 1; done
exit "$status"`;

/** As long as Stowage itself has: until then it sees to it that it ends as soon as nobody uses it. */
const stopSeconds = 60;

/** Where the namespace is found in its container. */
const namespaceAt = '/run/netns/store';

/** Starts keepers as containers of the image that this program runs in, beside its own container, which they outlive. */
export const launchContainer =
  (about: KeeperContainer): Launch =>
  async ({ words, env }, signal) => {
    const { engine } = about.own;
    // Docker before 25 ends every container that removes itself when it is started anew, also those that are to go on.
    const { liveRestore } = await engine.info(signal);
    const spec = specOf(about, words, env, !liveRestore);
    await removeEnded(about.own, about.instance, signal);
    try {
      return await launched(engine, { ...spec, host: { ...spec.host, ...protection } }, signal);
    } catch (cause) {
      if (!isRefused(cause)) throw cause;
      // One that has not all rights itself cannot give it, and does not say that this is why.
      const unprotected = await launched(engine, spec, signal);
      about.tell('the data path is not protected when memory is short', { why: String(cause) });
      return unprotected;
    }
  };

/** Not to be chosen when memory is short, and to keep their code in it. No limit: one that is reached would end every mount. */
const protection = { oomScore: keeperOomScore, limits: { memlock: -1 } } as const;

const isRefused = (cause: unknown): boolean => cause instanceof DockerError && cause.failure === 'refused';

type KeeperSpec = ReturnType<typeof specOf>;

async function launched(engine: DockerClient, spec: KeeperSpec, signal: AbortSignal): Promise<Launched> {
  const { [containerLabels.keeper]: keeper } = spec.labels;
  // Its predecessor has the same name but for the end.
  const name = `stowage-keeper-${keeper}-${randomBytes(3).toString('hex')}`;
  const id = await engine.createContainer(name, spec, signal);
  const kill = async (): Promise<void> => void (await removed(engine, id));
  // What is not known any more when nobody waits is never told.
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

/** Those that ended, and are not removed by their engine. Gives how many are still there, also because they could not be. */
export async function removeEnded({ engine }: OwnContainer, instance: string, signal: AbortSignal): Promise<number> {
  const isKeeper = (its: Readonly<Record<string, string>>): boolean =>
    its[containerLabels.keeper] !== undefined && its[containerLabels.instance] === instance;
  const all = (await engine.containers(signal)).filter(({ labels: its }) => isKeeper(its));
  const ended = all.filter(({ state }) => state === 'exited' || state === 'dead');
  let left = all.length;
  for (const { id } of ended) if (await removed(engine, id)) left--;
  return left;
}

function specOf(
  about: KeeperContainer,
  command: readonly string[],
  env: Readonly<Record<string, string>>,
  autoRemove: boolean,
) {
  const { own, instance, name, folder, user, network } = about;
  const { enter, capabilities } = rightsIn(about);
  const entered = network.kind === 'namespace' ? [`${network.hostPath}:${namespaceAt}:ro`] : [];
  return {
    image: own.image,
    entrypoint: [...enter, '/bin/sh', '-c', firstProcess, join(folder, endingMark)],
    command,
    env: Object.entries(env).map(([key, value]) => `${key}=${value}`),
    // Whoever has to drop rights begins with some.
    user: enter.length > 0 ? '0:0' : `${user}:${user}`,
    labels: { [containerLabels.keeper]: name, [containerLabels.instance]: instance },
    healthcheck: false,
    stopSeconds,
    host: {
      binds: [`${own.hostPath(folder) ?? folder}:${folder}`, ...entered],
      network: network.kind === 'container' ? `container:${network.id}` : 'host',
      // Where SELinux is, the folder of its socket has no label that containers may use.
      capDrop: ['ALL'],
      capAdd: capabilities,
      securityOptions: ['no-new-privileges', 'label=disable'],
      // In place of the volume that the image has there.
      readOnly: true,
      tmpfs: ['/var/lib/stowage'],
      restart: 'no',
      autoRemove,
    },
  } satisfies ContainerSpec;
}

/**
 * Engines give an ordinary user no capability that it could use, and know of no namespace but those of their containers. So where
 * one of these is needed, it begins as root, with what it takes to get there, and drops everything else before the first line
 * of ours is run.
 */
function rightsIn({ user, privilegedPorts, network }: KeeperContainer): {
  readonly enter: readonly string[];
  readonly capabilities: readonly string[];
} {
  const isEntering = network.kind === 'namespace';
  if (!privilegedPorts && !isEntering) return { enter: [], capabilities: [] };
  const kept = privilegedPorts ? ['+net_bind_service'] : [];
  return {
    enter: [
      ...(isEntering ? ['nsenter', `--net=${namespaceAt}`, '--'] : []),
      'setpriv',
      `--reuid=${user}`,
      `--regid=${user}`,
      '--clear-groups',
      '--no-new-privs',
      `--inh-caps=${['-all', ...kept].join(',')}`,
      ...(privilegedPorts ? [`--ambient-caps=${kept.join(',')}`] : []),
      `--bounding-set=${['-all', ...kept].join(',')}`,
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

/** Where a keeper's connections start, for one in a container. `namespace` is where the network has its own by now. */
export async function networkFor(
  own: OwnContainer,
  { network, namespace, instance }: { network: string | undefined; namespace: string | undefined; instance: string },
  signal: AbortSignal,
): Promise<KeeperNetwork> {
  if (network === undefined || namespace === undefined) return { kind: 'host' };
  const anchor = (await own.engine.containers(signal)).find(
    ({ labels: its }) => its[containerLabels.anchor] === network && its[containerLabels.instance] === instance,
  );
  if (anchor !== undefined) return { kind: 'container', id: anchor.id };
  const path = namespacePath(namespace);
  // Of what is not a folder given to this container, the machine's own is meant.
  return { kind: 'namespace', hostPath: own.hostPath(path) ?? path };
}

/** Each call to an engine has its own limit. */
const unending = new AbortController().signal;

/** Kills a keeper that hangs, and leaves its data path alone. False: none of that name runs in a container. */
export async function killKeeper(own: OwnContainer, name: string, instance: string): Promise<boolean> {
  const ours = (await own.engine.containers(unending)).filter(
    ({ labels: its, state }) =>
      its[containerLabels.keeper] === name && its[containerLabels.instance] === instance && state === 'running',
  );
  for (const { id } of ours) await own.engine.signalContainer(id, 'USR1', unending);
  return ours.length > 0;
}

/** False: it is there still, perhaps on its way out, or busy for a moment. */
async function removed(engine: DockerClient, id: string): Promise<boolean> {
  return await engine.removeContainer(id, unending).then(
    () => true,
    (cause: unknown) => cause instanceof DockerError && cause.status === 404,
  );
}
