import { basename, dirname } from 'node:path';
import { SystemError } from '#base/linux/libc.ts';
import type { Scope } from '#base/log.ts';
import { StillRunning, waitWithGrace } from '#base/wait.ts';
import { StowageError } from '#core/errors.ts';
import type { Mounter } from '#core/ports.ts';
import { fuseType } from '../data-path/fuse-mount.ts';
import { listAttachedLoops } from './attached-loops.ts';
import { type HeldPath, holdOwnPath, holdPath } from './held-path.ts';
import { findHolders } from './holders.ts';
import { mountFailure } from './mount-failure.ts';
import type { MounterParts } from './mounter-parts.ts';
import { isAtOrBelow, type MountTable } from './mountinfo.ts';
import { checkPath } from './paths.ts';
import { CommandFailed, descriptorPath } from './run-program.ts';

/** Opens the mount's parent folder; opening the mount itself would keep it busy. Undefined: nothing is mounted there. */
async function openParent(
  { accessPath, holdLocal, isOwn }: MounterParts,
  at: string,
  table: MountTable,
  { signal }: Scope,
): Promise<HeldPath | undefined> {
  if (table.mountAt(at) === undefined) return undefined;
  const folder = dirname(at);
  if (isOwn(at)) return holdOwnPath(folder);
  return holdLocal(folder, table) ?? (await accessPath({ path: folder, table, signal }, () => holdPath(folder)));
}

const umountPathArguments = (at: string): readonly string[] => [
  '--no-canonicalize',
  '--',
  `${descriptorPath(0)}/${basename(at)}`,
];

/** If the file system is mounted elsewhere too, unmounting syncs nothing to a disk or server, so it cannot block. */
function isMountedElsewhere(at: string, table: MountTable): boolean {
  const device = table.mountAt(at)?.device;
  return table.entries.some((entry) => entry.device === device && entry.at !== at);
}

/** Each call occupies a thread of Node's pool until the kernel returns. Further unmounts are left to the umount program. */
const maxThreadUnmounts = 4;
const threadUnmountTimeoutMs = 30_000;

/**
 * Unmounts one of our own FUSE file systems without a program: starting one takes ten times as long and blocks the event loop meanwhile.
 * The data path flushes files on close, so the kernel has nothing left to write; if the call blocks anyway, it occupies only that thread.
 * False: leave it to the umount program, which reports errors.
 */
function createThreadUnmount({ calls, clock }: MounterParts) {
  let threadUnmounts = 0;
  return async (parent: HeldPath, at: string, held: AsyncDisposableStack, scope: Scope): Promise<boolean> => {
    if (threadUnmounts >= maxThreadUnmounts) return false;
    using limit = clock.deadline(threadUnmountTimeoutMs, scope.signal);
    threadUnmounts++;
    const unmounting = calls.unmountOnThread(parent, basename(at)).finally(() => threadUnmounts--);
    try {
      return await waitWithGrace(unmounting, limit.signal, clock);
    } catch (cause) {
      if (!(cause instanceof StillRunning)) throw cause;
      // The call uses the descriptor of the parent, which must stay open until the call ends.
      const parentHold = held.move();
      void unmounting.catch(() => undefined).then(() => parentHold.disposeAsync());
      throw scope.signal.aborted ? scope.signal.reason : tooSlow(at, cause);
    }
  };
}

function tooSlow(at: string, cause: unknown): StowageError {
  return new StowageError(`${at} was not unmounted within ${threadUnmountTimeoutMs / 1000} s`, {
    code: 'deadline',
    reason: 'command-deadline',
    action: 'Check for a server that does not answer (stowage store check STORE), then retry. Retrying is safe.',
    cause,
  });
}

export function createUnmount({ mountLocks }: MounterParts, unmountLocked: Mounter['unmount']): Mounter['unmount'] {
  return async (at, scope) => {
    checkPath(at);
    using _alone = await mountLocks.hold([at], scope.signal);
    await unmountLocked(at, scope);
  };
}

/** Unmounts; the caller holds the lock of the mount point. */
export function createUnmountLocked(parts: MounterParts): Mounter['unmount'] {
  const { run, calls, readTable, clock } = parts;
  const unmountOnThread = createThreadUnmount(parts);
  return async (at, scope) => {
    const table = await readTable();
    const parent = await openParent(parts, at, table, scope);
    if (parent === undefined) return;
    await using held = new AsyncDisposableStack();
    held.use(parent);
    const isOwn = table.mountAt(at)?.type === fuseType;
    const paths = umountPathArguments(at);
    for (let attempt = 1; ; attempt++) {
      try {
        if (isMountedElsewhere(at, table)) calls.unmount(parent, basename(at));
        else if (!isOwn || !(await unmountOnThread(parent, at, held, scope)))
          await run('umount', paths, scope, { inherited: [parent] });
        return;
      } catch (cause) {
        if (!(cause instanceof CommandFailed) && !(cause instanceof SystemError)) throw cause;
        if ((await readTable()).mountAt(at) === undefined) return;
        const isBusy = cause instanceof SystemError ? cause.code === 'EBUSY' : cause.stderr.includes('busy');
        if (!isBusy) throw mountFailure(`${at} could not be unmounted`, cause);
        if (attempt === 3) throw await busyError(parts, at, cause, scope);
        // A process that just ended may still be closing its files.
        await clock.sleep(100, scope.signal);
      }
    }
  };
}

/** Lazily unmounts the mount and everything on it, without waiting for its users. */
export function createDetach(parts: MounterParts): Mounter['detach'] {
  const { run, readTable, mountLocks } = parts;
  return async (at, scope, how) => {
    checkPath(at);
    using _alone = await mountLocks.hold([at], scope.signal);
    await using parent = await openParent(parts, at, await readTable(), scope);
    if (parent === undefined) return;
    const flags = ['--lazy', ...(how?.abort === true ? ['--force'] : [])];
    try {
      await run('umount', [...flags, ...umountPathArguments(at)], scope, { inherited: [parent] });
    } catch (cause) {
      if ((await readTable()).mountAt(at) !== undefined) throw mountFailure(`${at} could not be detached`, cause);
    }
  };
}

async function busyError(
  { readTable, clock, sysBlock }: MounterParts,
  mountPoint: string,
  cause: unknown,
  scope: Scope,
): Promise<StowageError> {
  const mounts = (await readTable()).mountsBelow(mountPoint).map((entry) => entry.at);
  const loops = (await listAttachedLoops(sysBlock))
    .filter((loop) => isAtOrBelow(loop.file, mountPoint))
    .map((loop) => loop.node);
  const holders = await findHolders(mountPoint, clock, scope);
  const processes = holders.map((holder) => `${holder.pid} (${holder.command})`);
  const users = [
    processes.length > 0 ? `by ${processes.length === 1 ? 'process' : 'processes'} ${processes.join(', ')}` : [],
    mounts.length > 0 ? `by mounts at ${mounts.slice(0, 4).join(', ')}` : [],
    loops.length > 0 ? `by ${loops.slice(0, 4).join(', ')}` : [],
  ].flat();
  return new StowageError(
    `${mountPoint} cannot be unmounted: it is in use ${users.join(' and ') || 'by a process that could not be found'}`,
    {
      code: 'in-use',
      reason: 'mount-busy',
      action: busyAction(mountPoint, processes.length > 0, users.length > 0),
      cause,
    },
  );
}

function busyAction(mountPoint: string, processes: boolean, known: boolean): string {
  if (processes) return 'End these processes, or make them leave the mount, then retry.';
  return known ? 'Unmount or detach these first, then retry.' : `To find it: fuser -vm ${mountPoint}`;
}
