import type { Scope } from '#base/log.ts';
import { StowageError } from '#core/errors.ts';
import type { Mounter } from '#core/ports.ts';
import { mountFailure } from './errors.ts';
import { type HeldPath, holdOwnPath, holdPath, movedAway } from './held-path.ts';
import { type MountEntry, type Shown, same } from './mountinfo.ts';
import type { Parts } from './parts.ts';
import { checkPath, isErrno, located } from './paths.ts';
import { inChild } from './run.ts';

/** A set-uid program or a device node that a container's root put into a volume must not work for users of the host. */
const confined = ['nosuid', 'nodev'];

/** A remount takes away what it leaves out. */
const kept = [...confined, 'ro', 'noexec', 'noatime', 'nodiratime', 'relatime', 'nosymfollow'];

const undoMs = 5_000;
const unending = new AbortController().signal;

export function createBind({ clock, run, calls, readTable, look, places, isOwn }: Parts): Mounter['bind'] {
  async function bind(from: string, at: string, how: { readonly readOnly: boolean }, scope: Scope): Promise<void> {
    checkPath(at);
    checkPath(from);
    using _alone = await places.hold([at], scope.signal);
    const table = await readTable();
    const { signal } = scope;
    // Mostly it says where it leads already.
    const find = (): Promise<HeldPath> => holdPath(from).catch(async () => await existing(from, await located(from)));
    await using origin = await look({ path: from, table, signal }, find);
    const shown = table.shown(origin.path);
    const there = table.at(at);
    // A device bound onto a file must work.
    const flags = [...(origin.stats.isDirectory() ? confined : []), ...(how.readOnly ? ['ro'] : [])];
    if (there !== undefined) {
      if (!same(there, shown)) throw occupied(at, there);
      if (there.mountReadOnly && !how.readOnly) throw alreadyReadOnly(at);
      await tighten(there, flags, scope);
      return;
    }
    if (table.holding(origin.path)?.readOnly === true && !how.readOnly) throw sourceReadOnly(from);
    await using place = isOwn(at)
      ? await existing(at, at, holdOwnPath)
      : await look({ path: at, table, signal }, () => existing(at, at));
    refuseMixed(origin, place);
    await mountBind(origin, place, shown, flags, scope);
  }

  async function mountBind(
    origin: HeldPath,
    place: HeldPath,
    shown: Shown | undefined,
    flags: readonly string[],
    scope: Scope,
  ): Promise<void> {
    try {
      calls.bind(origin, place);
      const there = (await readTable()).at(place.path);
      if (there === undefined || !same(there, shown)) throw movedAway(place.path);
      await tighten(there, flags, scope);
    } catch (cause) {
      await undo(place, shown, scope);
      throw mountFailure(`${origin.path} could not be mounted at ${place.path}`, cause);
    }
  }

  /**
   * The kernel gives a bind the flags of what it is made of, and takes others only in a second step. A crash between
   * the two leaves them out; the repeat adds them.
   */
  async function tighten(there: MountEntry, flags: readonly string[], scope: Scope): Promise<void> {
    if (flags.every((flag) => there.options.includes(flag))) return;
    const { at } = there;
    const words = flags.map((flag) => (flag === 'ro' ? 'read-only' : flag)).join(', ');
    const all = new Set([...kept.filter((flag) => there.options.includes(flag)), ...flags]);
    // Not the place that was mounted on, which the mount now hides.
    await using mounted = await look({ path: at, table: await readTable(), signal: scope.signal }, () =>
      existing(at, at),
    );
    try {
      calls.remount(mounted, [...all]);
    } catch (cause) {
      throw mountFailure(`${at} could not be made ${words}`, cause);
    }
    const now = (await readTable()).at(at);
    if (now !== undefined && flags.every((flag) => now.options.includes(flag))) return;
    throw new StowageError(`${at} could not be made ${words}`, {
      code: 'internal',
      reason: 'mount-flags-refused',
      action: 'Read what the kernel says (dmesg | tail), and ask: stowage doctor',
    });
  }

  /** Never a mount without the flags that were asked for, nor one elsewhere; so this goes on when the caller has given up. */
  async function undo(place: HeldPath, shown: Shown | undefined, scope: Scope): Promise<void> {
    const there = (await readTable()).at(place.where());
    if (there === undefined || !same(there, shown)) return;
    using limit = clock.deadline(undoMs, unending);
    const anyway = { ...scope, signal: limit.signal };
    const args = ['--lazy', '--no-canonicalize', '--', inChild(0)];
    await run('umount', args, anyway, { holding: [place] }).catch((cause: unknown) => {
      scope.log.error('a failed mount could not be undone', { at: there.at, why: String(cause) });
    });
  }

  return bind;
}

async function existing(
  path: string,
  place: string | undefined,
  hold: (place: string) => HeldPath | Promise<HeldPath> = holdPath,
): Promise<HeldPath> {
  try {
    if (place !== undefined) return await hold(place);
  } catch (cause) {
    if (isErrno(cause, 'ENOTCONN', 'ECONNABORTED')) throw unserved(path, cause);
    if (!isErrno(cause, 'ENOENT', 'ENOTDIR')) throw cause;
  }
  throw new StowageError(`${path} does not exist`, {
    code: 'not-found',
    reason: 'path-missing',
    action: 'Give a path that exists.',
  });
}

function unserved(path: string, cause: unknown): StowageError {
  return new StowageError(`nobody serves what is mounted at ${path}`, {
    code: 'unavailable',
    reason: 'mount-unanswered',
    action: 'Try again in a moment. If it persists, see why: stowage client status, and stowage store check STORE',
    cause,
  });
}

function refuseMixed(origin: HeldPath, place: HeldPath): void {
  if (origin.stats.isDirectory() === place.stats.isDirectory()) return;
  const what = `${origin.path} cannot be mounted at ${place.path}`;
  throw new StowageError(`${what}: a folder goes onto a folder, a file onto a file`, {
    code: 'conflict',
    reason: 'target-kind',
    action: 'Give a path of the same kind.',
  });
}

function occupied(place: string, there: MountEntry): StowageError {
  return new StowageError(`something else is mounted at ${place}: ${there.source} (${there.type})`, {
    code: 'conflict',
    reason: 'mount-occupied',
    action: `Unmount it (umount ${place}), or give another path.`,
  });
}

function alreadyReadOnly(place: string): StowageError {
  return new StowageError(`${place} already shows it, read-only`, {
    code: 'conflict',
    reason: 'mounted-read-only',
    action: `Unmount ${place} first, or ask for it read-only.`,
  });
}

function sourceReadOnly(from: string): StowageError {
  return new StowageError(`${from} is on a read-only file system and cannot be mounted for writing`, {
    code: 'conflict',
    reason: 'source-read-only',
    action: 'Ask for it read-only.',
  });
}
