import { StowageError } from './errors.ts';
import type { Mount, SeenUse, User, Volume } from './model.ts';
import { quoted } from './names.ts';
import type { Mounter } from './ports.ts';

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

export function requireSame(present: Mount, volume: Volume, readOnly: boolean): void {
  const same = present.volumeId === volume.id;
  if (same && present.readOnly === readOnly) return;
  const what = same ? `this volume ${present.readOnly ? 'read-only' : 'read-write'}` : 'another volume';
  throw new StowageError(`${present.target} has ${what} mounted already`, {
    code: 'conflict',
    reason: 'target-taken',
    action: `Choose another path, or unmount it first: stowage unmount ${present.target}`,
  });
}

/** Not which one: who asks may not be allowed to know it. */
export function otherThere(target: string): StowageError {
  return new StowageError(`another volume is mounted at ${quoted(target)}`, {
    code: 'conflict',
    reason: 'mount-other',
    action: 'See what is mounted where: stowage mounts',
  });
}

/** Somebody wants to unmount what an engine has for its containers. */
export function held(target: string): StowageError {
  return new StowageError(`${quoted(target)} is where containers have their volume from`, {
    code: 'in-use',
    reason: 'mount-held',
    action: 'Stop the containers that use it; it is unmounted with the last one. Forced, they get errors: --force',
  });
}

export function inUse(volume: Volume, verb: string, users: readonly User[]): StowageError {
  const shown = users.slice(0, 5).map((user) => `${user.kind} ${user.name} on ${user.node}`);
  const more = users.length > 5 ? ` and ${users.length - 5} more` : '';
  return new StowageError(
    `volume '${volume.store}/${volume.name}' cannot be ${verb}: it is used by ${shown.join(', ')}${more}`,
    {
      code: 'in-use',
      reason: 'volume-in-use',
      action: users.every(({ kind }) => kind === 'container')
        ? 'Remove those containers first, stopped ones too: docker rm NAME'
        : 'Unmount it there first: stowage unmount PATH',
    },
  );
}

/** Known from records on the store itself: those hosts may not even be running. */
export function inUseElsewhere(volume: Volume, verb: string, uses: readonly SeenUse[]): StowageError {
  const shown = uses.slice(0, 5).map(({ node, host, users, stale, renewedAt }) => {
    const who = users.map((user) => `${user.kind} ${user.name}`).slice(0, 5);
    const silent = stale ? `, silent since ${new Date(renewedAt).toISOString()}` : '';
    return `host ${node} (${[host, ...who].join(', ')}${silent})`;
  });
  const more = uses.length > 5 ? ` and ${uses.length - 5} more` : '';
  const { host } = uses.find(({ stale }) => stale) ?? uses[0] ?? { host: 'HOST' };
  const { store, name } = volume;
  return new StowageError(`volume '${store}/${name}' cannot be ${verb}: it is used by ${shown.join(', ')}${more}`, {
    code: 'in-use',
    reason: 'volume-in-use-elsewhere',
    action: `Stop using it there first. If that host is gone for good, an administrator can break its record: stowage volume release ${store}/${name} --host ${host}`,
  });
}
