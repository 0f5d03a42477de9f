import { isErrno } from '#base/errno.ts';
import type { Scope } from '#base/log.ts';
import { StowageError } from '#core/errors.ts';
import type { Mounter } from '#core/ports.ts';
import { type HeldPath, holdOwnPath, holdPath, movedAway } from './held-path.ts';
import { mountFailure } from './mount-failure.ts';
import type { MounterParts } from './mounter-parts.ts';
import { type BindIdentity, type MountEntry, same } from './mountinfo.ts';
import { checkPath, located } from './paths.ts';
import { inChild } from './run-program.ts';
import { bindThroughScratch, inherited } from './scratch-bind.ts';

/** Set-uid programs and device nodes that a container's root put into a volume must not work for users of the host. */
export const confined = ['nosuid', 'nodev'];

/** The bound path, the mount through which it is seen, and what a bind of it shows. */
interface Origin {
  readonly origin: HeldPath;
  readonly source: MountEntry | undefined;
  readonly shown: BindIdentity | undefined;
}

export const hasAll = ({ options }: MountEntry, flags: readonly string[]): boolean =>
  flags.every((flag) => options.includes(flag));

const undoMs = 5_000;
const unending = new AbortController().signal;

export function createBind(parts: MounterParts, takeAway: Mounter['unmount']): Mounter['bind'] {
  const { clock, run, calls, readTable, accessPath, near, places, isOwn } = parts;

  async function bind(from: string, at: string, how: { readonly readOnly: boolean }, scope: Scope): Promise<void> {
    checkPath(at);
    checkPath(from);
    using _alone = await places.hold([at], scope.signal);
    const table = await readTable();
    const { signal } = scope;
    // Usually `from` contains no symbolic links, so try without resolving it first.
    const find = (): Promise<HeldPath> => holdPath(from).catch(async () => await existing(from, await located(from)));
    await using origin = near(from, table) ?? (await accessPath({ path: from, table, signal }, find));
    const shown = table.shown(origin.path);
    const there = table.at(at);
    // A block device bound onto a file must stay usable, so no `nodev`.
    const flags = [...(origin.stats.isDirectory() ? confined : []), ...(how.readOnly ? ['ro'] : [])];
    if (there !== undefined) {
      if (!same(there, shown)) throw occupied(at, there);
      if (there.mountReadOnly && !how.readOnly) throw alreadyReadOnly(at);
      if (hasAll(there, flags)) return;
      // A remount would change only this mount, not the copies that other mount namespaces received, so unmount it and bind again.
      await takeAway(at, scope);
    }
    const source = table.holding(origin.path);
    if (source?.readOnly === true && !how.readOnly) throw sourceReadOnly(from);
    const now = there === undefined ? table : await readTable();
    await using place = isOwn(at)
      ? await existing(at, at, holdOwnPath)
      : (near(at, now) ?? (await accessPath({ path: at, table: now, signal }, () => existing(at, at))));
    refuseMixed(origin, place);
    await mountBind({ origin, source, shown }, place, flags, scope);
  }

  async function mountBind(
    { origin, source, shown }: Origin,
    place: HeldPath,
    flags: readonly string[],
    scope: Scope,
  ): Promise<void> {
    try {
      // Uses open descriptors, so nothing else can be mounted there now, and the flags are set from the start. Only the place can have been moved.
      if (calls.bindAs(origin, place, flags)) {
        if (place.where() !== place.path) throw movedAway(place.path);
        return;
      }
      if (source !== undefined && hasAll(source, flags)) calls.bind(origin, place);
      else bindThroughScratch(parts, origin, place, [...new Set([...inherited(source), ...flags])]);
      const there = (await readTable()).at(place.path);
      if (there === undefined || !same(there, shown)) throw movedAway(place.path);
      if (!hasAll(there, flags)) throw flagsRefused(place.path, flags);
    } catch (cause) {
      await undo(place, shown, scope);
      throw mountFailure(`${origin.path} could not be mounted at ${place.path}`, cause);
    }
  }

  /** A mount without the requested flags, or in another place, must not stay. So this continues after the caller has given up. */
  async function undo(place: HeldPath, shown: BindIdentity | undefined, scope: Scope): Promise<void> {
    const there = (await readTable()).at(place.where());
    if (there === undefined || !same(there, shown)) return;
    using limit = clock.deadline(undoMs, unending);
    const anyway = { ...scope, signal: limit.signal };
    const args = ['--lazy', '--no-canonicalize', '--', inChild(0)];
    await run('umount', args, anyway, { inherited: [place] }).catch((cause: unknown) => {
      scope.log.error('failed to undo a failed mount', { at: there.at, why: String(cause) });
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

function flagsRefused(at: string, flags: readonly string[]): StowageError {
  const words = flags.map((flag) => (flag === 'ro' ? 'read-only' : flag)).join(', ');
  return new StowageError(`the mount at ${at} could not be made ${words}`, {
    code: 'internal',
    reason: 'mount-flags-refused',
    action: 'Check the kernel log (dmesg | tail), and run: stowage doctor',
  });
}

function unserved(path: string, cause: unknown): StowageError {
  return new StowageError(`no process serves the mount at ${path}`, {
    code: 'unavailable',
    reason: 'mount-unanswered',
    action: 'Try again in a moment. If it persists, see why: stowage client status, and stowage store check STORE',
    cause,
  });
}

function refuseMixed(origin: HeldPath, place: HeldPath): void {
  if (origin.stats.isDirectory() === place.stats.isDirectory()) return;
  const what = `${origin.path} cannot be mounted at ${place.path}`;
  throw new StowageError(`${what}: a folder can only be mounted on a folder, and a file only on a file`, {
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
  return new StowageError(`the volume is already mounted read-only at ${place}`, {
    code: 'conflict',
    reason: 'mounted-read-only',
    action: `Unmount ${place} first, or mount the volume read-only.`,
  });
}

function sourceReadOnly(from: string): StowageError {
  return new StowageError(`${from} is on a read-only file system and cannot be mounted for writing`, {
    code: 'conflict',
    reason: 'source-read-only',
    action: 'Mount the volume read-only.',
  });
}
