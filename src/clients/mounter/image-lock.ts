import { open } from 'node:fs/promises';
import type { Clock } from '#base/clock.ts';
import { isErrno } from '#base/errno.ts';
import { lazyBindings, libc, SystemError } from '#base/linux/libc.ts';
import { undefinedIfMissing } from './paths.ts';

const calls = lazyBindings({
  lock: 'int flock(int fd, int operation)',
  control: 'int fcntl(int fd, int command, int64_t value)',
});

const [exclusive, withoutWaiting] = [2, 4];
const [setSignal, setLease, readLease] = [10, 1024, 0];
/** SIGURG: ignored by default. The kernel's default, SIGIO, would end the process. */
const urgentSignal = 23;
const lockRetryMs = 50;
const badDescriptorErrno = 9;

async function call(name: 'lock' | 'control', ...args: readonly number[]): Promise<void> {
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  calls()[name].async(...args, (failed: Error | null, result: number) => {
    if (failed !== null) reject(failed);
    else if (result < 0) reject(new SystemError(name === 'lock' ? 'flock' : 'fcntl', libc().koffi.errno()));
    else resolve();
  });
  await promise;
}

export interface LockedImage extends AsyncDisposable {
  readonly fd: number;
}

/**
 * Keeps other Stowage processes of this machine from attaching the image between the search for its device and the attach: two devices
 * on one image destroy it. A writable store belongs to one process, but any number of processes may open its directory as a read-only
 * store. The kernel releases the lock when the process ends.
 */
export async function lockImage(image: string, clock: Clock, signal: AbortSignal): Promise<LockedImage | undefined> {
  for (let flags = 'r'; ; ) {
    await using stack = new AsyncDisposableStack();
    const file = await undefinedIfMissing(open(image, flags));
    if (file === undefined) return undefined;
    stack.use(file);
    const lockState = await tryLock(file.fd);
    if (lockState === 'locked' || lockState === 'without locks') {
      const locked = stack.move();
      return { fd: file.fd, [Symbol.asyncDispose]: () => locked.disposeAsync() };
    }
    await stack.disposeAsync();
    if (lockState === 'not writable' && flags === 'r') flags = 'r+';
    else if (lockState === 'not writable') throw new SystemError('flock', badDescriptorErrno);
    else await clock.sleep(lockRetryMs, signal);
  }
}

/** `not writable`: NFS needs a writable descriptor for an exclusive lock. `without locks`: the file system does not support locks. */
async function tryLock(fd: number): Promise<'locked' | 'busy' | 'not writable' | 'without locks'> {
  try {
    await call('lock', fd, exclusive | withoutWaiting);
    return 'locked';
  } catch (cause) {
    if (isErrno(cause, 'EAGAIN')) return 'busy';
    if (isErrno(cause, 'EBADF')) return 'not writable';
    if (isErrno(cause, 'EOPNOTSUPP', 'ENOSYS', 'ENOLCK')) return 'without locks';
    throw cause;
  }
}

/**
 * True: no process and no loop device has the file open for writing; the kernel grants a read lease only then. False: a process or a
 * device has it open for writing, or the file system does not support leases. Queries no loop device.
 */
export async function hasNoWriter(path: string): Promise<boolean> {
  await using file = await undefinedIfMissing(open(path, 'r'));
  if (file === undefined) return true;
  // If another process opens the file before it is closed here, the kernel signals the lease holder.
  await call('control', file.fd, setSignal, urgentSignal);
  try {
    await call('control', file.fd, setLease, readLease);
    return true;
  } catch (cause) {
    if (cause instanceof SystemError) return false;
    throw cause;
  }
}
