import type { InitFlag } from '#wire/fuse/abi.ts';
import { Errno } from '#wire/fuse/errno.ts';
import type { Wishes } from '#wire/fuse/init.ts';
import type { Operations } from '#wire/fuse/operations.ts';
import { maxTransfer } from './journal/layout.ts';
import type { MountSpec } from './mount-spec.ts';

/**
 * Not atomicOTrunc: the kernel would have a program cut that is running, and then say that it is busy. Not autoInvalData: it
 * would drop what it has cached of a file each time it hears of another modification time, after our own writes too, and ask
 * for the time before each read. What others changed is dropped when a file is opened.
 */
const always: readonly InitFlag[] = [
  'asyncRead',
  'parallelDirops',
  'doReaddirplus',
  'readdirplusAuto',
  'asyncDio',
  'cacheSymlinks',
];

/** What is asked of the kernel for a mount. */
export const asked = ({ locks }: Pick<MountSpec, 'locks'>): Wishes => ({
  // Unless a file system wants to hear of locks, the kernel keeps them for all processes of the node.
  flags: locks === 'node' ? always : [...always, 'posixLocks', 'flockLocks'],
  ...{ maxWrite: maxTransfer, maxReadahead: maxTransfer, maxBackground: 64, timeGranularity: 1 },
});

function refuse(): never {
  throw new Errno('ENOLCK');
}

/** Better than to pretend: another node would not know of the lock. */
export const refusingLocks: Partial<Operations> = { getlk: refuse, setlk: refuse, setlkw: refuse };

const changing = [
  ...(['setattr', 'symlink', 'mknod', 'mkdir', 'unlink', 'rmdir', 'rename', 'link', 'create', 'write'] as const),
  ...(['open', 'flush', 'fsync', 'release'] as const),
];

type Does = (...args: never[]) => unknown;

/** What changes something waits for as long as `until` gives something to wait for. */
export function waiting(operations: Partial<Operations>, until: () => Promise<void> | undefined): Partial<Operations> {
  const later =
    (does: Does): Does =>
    (...args) => {
      const first = until();
      return first === undefined ? does(...args) : first.then(() => does(...args));
    };
  const all = changing.flatMap((name) => {
    const does = operations[name] as Does | undefined;
    return does === undefined ? [] : [[name, later(does)]];
  });
  return { ...operations, ...(Object.fromEntries(all) as Partial<Operations>) };
}
