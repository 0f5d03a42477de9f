import type { SilentEngine } from './container-references.ts';
import { StowageError } from './errors.ts';
import type { Mount, SeenUse, Use, User, Volume } from './model.ts';
import { quoted } from './names.ts';
import type { Mounter } from './ports.ts';
import { isEngine } from './volume-users.ts';

export function requireMounting({ unable }: Mounter): void {
  if (unable !== undefined) throw mountUnable(unable);
}

export function mountUnable(unable: NonNullable<Mounter['unable']>): StowageError {
  return new StowageError(`volumes cannot be mounted here: ${unable.why}`, {
    code: 'unsupported',
    reason: 'mount-unable',
    action: unable.action,
  });
}

export function requireSameMount(existing: Mount, volume: Volume, readOnly: boolean): void {
  const same = existing.volumeId === volume.id;
  if (same && existing.readOnly === readOnly) return;
  const description = same ? `this volume ${existing.readOnly ? 'read-only' : 'read-write'}` : 'another volume';
  throw new StowageError(`${existing.target} has ${description} mounted already`, {
    code: 'conflict',
    reason: 'target-taken',
    action: `Choose another path, or unmount it first: stowage unmount ${existing.target}`,
  });
}

/** For an access mode that allows a single pod. */
export function requireNoOtherPod(volume: Volume, mounts: readonly Mount[]): void {
  const other = mounts.find(({ user }) => user.kind === 'pod');
  if (other === undefined) return;
  throw new StowageError(
    `volume '${volume.store}/${volume.name}' is used by pod ${other.user.name}, and its access mode allows a single pod`,
    {
      code: 'in-use',
      reason: 'volume-used-by-pod',
      action: 'Delete that pod first, or use an access mode that lets several pods have the volume.',
    },
  );
}

/** Does not name the volume, since the caller may not be allowed to see it. */
export function otherVolumeMounted(target: string): StowageError {
  return new StowageError(`another volume is mounted at ${quoted(target)}`, {
    code: 'conflict',
    reason: 'mount-other',
    action: 'List the mounts: stowage mounts',
  });
}

/** For a mount at a target where an earlier unmount of another volume failed half-way. */
export function unmountUnfinished(target: string): StowageError {
  return new StowageError(`the unmount of another volume at ${quoted(target)} is not finished`, {
    code: 'conflict',
    reason: 'mount-unfinished',
    action: `Repeat the unmount, which reports who still uses the volume: stowage unmount ${target}`,
  });
}

/** For an unmount of a target that an engine has mounted for its containers. */
export function heldByContainers(target: string): StowageError {
  return new StowageError(`containers use the mount at ${quoted(target)}`, {
    code: 'in-use',
    reason: 'mount-held',
    action:
      'Stop the containers that use it: Stowage unmounts it when the last one stops. With --force, the containers get errors.',
  });
}

export function volumeInUse(volume: Volume, verb: string, users: readonly User[]): StowageError {
  const { store, name } = volume;
  const shown = joinShortened(users.map((user) => `${describeUser(user)} on ${user.node}`));
  const shownToUsers = joinShortened(withoutPaths(users).map((one) => `${one} on ${users[0]?.node}`));
  return new StowageError(`volume '${store}/${name}' cannot be ${verb}: it is used by ${shown}`, {
    code: 'in-use',
    reason: 'volume-in-use',
    action: users.some(isPath)
      ? 'Unmount it there first: stowage unmount PATH'
      : users.some(isEngine)
        ? 'Try again in a moment: the engine then lists the container that it is creating. To find the container: docker ps -a --filter volume=NAME. If the engine forgot the mount in a crash, Stowage drops the mount after ten minutes.'
        : 'Remove those containers first, stopped ones too: docker rm NAME, or podman rm NAME',
    toUsers: {
      message: `volume '${store}/${name}' cannot be ${verb}: it is used by ${shownToUsers}`,
      ...(users.some(isPath) ? { action: askForUnmount } : {}),
    },
  });
}

const askForUnmount =
  'Remove the containers that use it, including stopped ones. Ask the administrator to unmount it at other paths, which this lists: stowage mounts';

/** Stopped containers have nothing mounted, so only their engine knows about them. */
export function engineNotAnswering(volume: Volume, verb: string, silent: readonly SilentEngine[]): StowageError {
  const { store, name } = volume;
  const what = `volume '${store}/${name}' cannot be ${verb}`;
  const kinds = silent.map(({ kind }) => kind).join(' and ');
  const why = silent.map((one) => one.why).join('; ');
  // Podman's containers run without a daemon, so its API socket is a separate unit.
  const units = silent.map(({ kind }) => (kind === 'podman' ? 'podman.socket' : kind)).join(' ');
  const flags = silent.map(({ kind }) => `--${kind}-socket none`).join(' ');
  return new StowageError(`${what}: unknown whether containers of ${kinds} use it: ${why}`, {
    code: 'unavailable',
    reason: 'volume-use-unknown',
    action: `Start it: systemctl start ${units}. If it runs, and the container of Stowage mounts its socket but not the folder of the socket, restart the container of Stowage. If the engine was removed, or its containers shall not use volumes, configure that: ${flags}, or engines: in stowage.yaml.`,
    toUsers: {
      message: `${what}: ${kinds} does not answer, and containers there may use it`,
      action:
        'Try again when it answers. If the engine was removed, ask the administrator to change the configuration of Stowage.',
    },
  });
}

/** For a volume that an unknown process still uses in another mount namespace. */
export function stillServed({ id, store, name }: Volume, verb: string): StowageError {
  return new StowageError(
    `volume '${store}/${name}' cannot be ${verb}: it is not mounted on this host any more, but a process still uses an old mount of it, such as a container of an engine that Stowage does not follow, or a container that mounts the host's folders with all mounts in them (-v /:/rootfs)`,
    {
      code: 'in-use',
      reason: 'volume-served-on',
      action: `Stop the process that uses it. Processes that see the mount: grep -l stowage:${id} /proc/[0-9]*/mountinfo`,
    },
  );
}

/** Based on the use records on the store; the hosts may not even be running. */
export function inUseElsewhere(volume: Volume, verb: string, uses: readonly SeenUse[]): StowageError {
  const { store, name } = volume;
  const hosts = (describe: (users: readonly NamedUser[]) => readonly string[]): string =>
    joinShortened(
      uses.map(({ node, host, users, stale, renewedAt }) => {
        const silent = stale ? `, silent since ${new Date(renewedAt).toISOString()}` : '';
        return `host ${node} (${[host, ...describe(users).slice(0, maxShownUsers)].join(', ')}${silent})`;
      }),
    );
  const shown = hosts((users) => users.map(describeUser));
  const { host } = uses.find(({ stale }) => stale) ?? uses[0] ?? { host: 'HOST' };
  return new StowageError(`volume '${store}/${name}' cannot be ${verb}: it is used by ${shown}`, {
    code: 'in-use',
    reason: 'volume-in-use-elsewhere',
    action: `Stop using it there first. If that host is gone for good, an administrator can break its record: stowage volume release ${store}/${name} --host ${host}`,
    toUsers: { message: `volume '${store}/${name}' cannot be ${verb}: it is used by ${hosts(withoutPaths)}` },
  });
}

/** For a single-writer mount while another host has the volume mounted for writing. */
export function writtenElsewhere(store: string, name: string, { host, node, users }: Use): StowageError {
  const hostWithUsers = (names: readonly string[]): string =>
    names.length === 0 ? node : `${node} (${joinShortened(names)})`;
  // Omit kubelets: they stage the volume for the pods that are listed.
  const usersBesidesKubelets = users.filter(({ kind }) => kind !== 'kubelet');
  const [writer, writerForUsers] = [
    hostWithUsers(usersBesidesKubelets.map(describeUser)),
    hostWithUsers(withoutPaths(usersBesidesKubelets)),
  ];
  return new StowageError(`volume '${store}/${name}' is written by host ${writer}, and only one host may write to it`, {
    code: 'in-use',
    reason: 'volume-written-elsewhere',
    action: `Stop using it there first. If that host is gone for good, an administrator can break its record: stowage volume release ${store}/${name} --host ${host}`,
    toUsers: {
      message: `volume '${store}/${name}' is written by host ${writerForUsers}, and only one host may write to it`,
    },
  });
}

type NamedUser = Pick<User, 'kind' | 'name'>;

/** The most users in one message. */
const maxShownUsers = 5;

const joinShortened = (all: readonly string[]): string =>
  `${all.slice(0, maxShownUsers).join(', ')}${all.length > maxShownUsers ? ` and ${all.length - maxShownUsers} more` : ''}`;

/** An engine's user name is a plugin name, not a container: a user who removed "container stowage" would remove Stowage itself. */
const describeUser = ({ kind, name }: NamedUser): string =>
  isEngine({ kind, name }) ? `a mount for a container that is not known yet (driver ${name})` : `${kind} ${name}`;
const isPath = ({ kind }: NamedUser): boolean => kind === 'path';

/** Mount paths are for the host's administrator only. */
function withoutPaths(users: readonly NamedUser[]): readonly string[] {
  const paths = users.filter(isPath).length;
  const mounts = paths === 1 ? 'a mount' : `${paths} mounts`;
  return [...users.filter((user) => !isPath(user)).map(describeUser), ...(paths === 0 ? [] : [mounts])];
}
