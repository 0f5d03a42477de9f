import { isErrno } from '#base/errno.ts';
import type { Scope } from '#base/log.ts';
import { StowageError } from '#core/errors.ts';
import type { Mounter } from '#core/ports.ts';
import { type HeldPath, holdOwnPath, holdPath, movedAway } from './held-path.ts';
import { mountFailure } from './mount-failure.ts';
import type { MounterParts } from './mounter-parts.ts';
import { type BindIdentity, isSameBind, type MountEntry } from './mountinfo.ts';
import { checkPath, resolveParents } from './paths.ts';
import { descriptorPath } from './run-program.ts';
import { bindThroughScratch, inheritedFlags } from './scratch-bind.ts';

/** Set-uid programs and device nodes that a container's root put into a volume must not work for users of the host. */
export const confiningFlags = ['nosuid', 'nodev'];

/** The bound path, the mount through which it is seen, and what a bind of it shows. */
interface Origin {
  readonly origin: HeldPath;
  readonly source: MountEntry | undefined;
  readonly shown: BindIdentity | undefined;
}

export const hasFlags = ({ options }: MountEntry, flags: readonly string[]): boolean =>
  flags.every((flag) => options.includes(flag));

const undoTimeoutMs = 5_000;
const unending = new AbortController().signal;

export function createBind(parts: MounterParts, unmountLocked: Mounter['unmount']): Mounter['bind'] {
  const { clock, run, calls, readTable, accessPath, holdLocal, mountLocks, isOwn } = parts;

  async function bind(from: string, at: string, how: { readonly readOnly: boolean }, scope: Scope): Promise<void> {
    checkPath(at);
    checkPath(from);
    using _alone = await mountLocks.hold([at], scope.signal);
    const table = await readTable();
    const { signal } = scope;
    // Usually `from` contains no symbolic links, so try without resolving it first.
    const holdOrigin = (): Promise<HeldPath> =>
      holdPath(from).catch(async () => await holdExisting(from, await resolveParents(from)));
    await using origin = holdLocal(from, table) ?? (await accessPath({ path: from, table, signal }, holdOrigin));
    const shown = table.bindIdentity(origin.path);
    const currentMount = table.mountAt(at);
    // A block device bound onto a file must stay usable, so no `nodev`.
    const flags = [...(origin.stats.isDirectory() ? confiningFlags : []), ...(how.readOnly ? ['ro'] : [])];
    if (currentMount !== undefined) {
      if (!isSameBind(currentMount, shown)) throw mountOccupied(at, currentMount);
      if (currentMount.mountReadOnly && !how.readOnly) throw alreadyReadOnly(at);
      if (hasFlags(currentMount, flags)) return;
      // A remount would change only this mount, not the copies that other mount namespaces received, so unmount it and bind again.
      await unmountLocked(at, scope);
    }
    const source = table.mountContaining(origin.path);
    if (source?.readOnly === true && !how.readOnly) throw sourceReadOnly(from);
    const currentTable = currentMount === undefined ? table : await readTable();
    await using target = isOwn(at)
      ? await holdExisting(at, at, holdOwnPath)
      : (holdLocal(at, currentTable) ??
        (await accessPath({ path: at, table: currentTable, signal }, () => holdExisting(at, at))));
    requireSameKind(origin, target);
    await mountBind({ origin, source, shown }, target, flags, scope);
  }

  async function mountBind(
    { origin, source, shown }: Origin,
    target: HeldPath,
    flags: readonly string[],
    scope: Scope,
  ): Promise<void> {
    try {
      // Uses open descriptors, so nothing else can be mounted there now, and the flags are set from the start. Only the target can have been moved.
      if (calls.bindWithFlags(origin, target, flags)) {
        if (target.currentPath() !== target.path) throw movedAway(target.path);
        return;
      }
      if (source !== undefined && hasFlags(source, flags)) calls.bind(origin, target);
      else bindThroughScratch(parts, origin, target, [...new Set([...inheritedFlags(source), ...flags])]);
      const currentMount = (await readTable()).mountAt(target.path);
      if (currentMount === undefined || !isSameBind(currentMount, shown)) throw movedAway(target.path);
      if (!hasFlags(currentMount, flags)) throw flagsRefused(target.path, flags);
    } catch (cause) {
      await undo(target, shown, scope);
      throw mountFailure(`${origin.path} could not be mounted at ${target.path}`, cause);
    }
  }

  /** A mount without the requested flags, or at another path, must not stay, so this continues after the caller has given up. */
  async function undo(target: HeldPath, shown: BindIdentity | undefined, scope: Scope): Promise<void> {
    const currentMount = (await readTable()).mountAt(target.currentPath());
    if (currentMount === undefined || !isSameBind(currentMount, shown)) return;
    using limit = clock.deadline(undoTimeoutMs, unending);
    const undoScope = { ...scope, signal: limit.signal };
    const args = ['--lazy', '--no-canonicalize', '--', descriptorPath(0)];
    await run('umount', args, undoScope, { inherited: [target] }).catch((cause: unknown) => {
      scope.log.error('failed to undo a failed mount', { at: currentMount.at, why: String(cause) });
    });
  }

  return bind;
}

async function holdExisting(
  path: string,
  target: string | undefined,
  hold: (target: string) => HeldPath | Promise<HeldPath> = holdPath,
): Promise<HeldPath> {
  try {
    if (target !== undefined) return await hold(target);
  } catch (cause) {
    if (isErrno(cause, 'ENOTCONN', 'ECONNABORTED')) throw mountUnserved(path, cause);
    if (!isErrno(cause, 'ENOENT', 'ENOTDIR')) throw cause;
  }
  throw new StowageError(`${path} does not exist`, {
    code: 'not-found',
    reason: 'path-missing',
    action: 'Give a path that exists.',
  });
}

function flagsRefused(at: string, flags: readonly string[]): StowageError {
  const flagNames = flags.map((flag) => (flag === 'ro' ? 'read-only' : flag)).join(', ');
  return new StowageError(`the mount at ${at} could not be made ${flagNames}`, {
    code: 'internal',
    reason: 'mount-flags-refused',
    action: 'Check the kernel log (dmesg | tail), and run: stowage doctor',
  });
}

function mountUnserved(path: string, cause: unknown): StowageError {
  return new StowageError(`no process serves the mount at ${path}`, {
    code: 'unavailable',
    reason: 'mount-unanswered',
    action: 'Try again in a moment. If it persists, see why: stowage client status, and stowage store check STORE',
    cause,
  });
}

function requireSameKind(origin: HeldPath, target: HeldPath): void {
  if (origin.stats.isDirectory() === target.stats.isDirectory()) return;
  const what = `${origin.path} cannot be mounted at ${target.path}`;
  throw new StowageError(`${what}: a folder can only be mounted on a folder, and a file only on a file`, {
    code: 'conflict',
    reason: 'target-kind',
    action: 'Give a path of the same kind.',
  });
}

function mountOccupied(target: string, currentMount: MountEntry): StowageError {
  return new StowageError(`something else is mounted at ${target}: ${currentMount.source} (${currentMount.type})`, {
    code: 'conflict',
    reason: 'mount-occupied',
    action: `Unmount it (umount ${target}), or give another path.`,
  });
}

function alreadyReadOnly(target: string): StowageError {
  return new StowageError(`the volume is already mounted read-only at ${target}`, {
    code: 'conflict',
    reason: 'mounted-read-only',
    action: `Unmount ${target} first, or mount the volume read-only.`,
  });
}

function sourceReadOnly(from: string): StowageError {
  return new StowageError(`${from} is on a read-only file system and cannot be mounted for writing`, {
    code: 'conflict',
    reason: 'source-read-only',
    action: 'Mount the volume read-only.',
  });
}
