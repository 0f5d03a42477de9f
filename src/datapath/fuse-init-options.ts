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
export const fuseInitOptions = ({ locks }: Pick<MountSpec, 'locks'>): Wishes => ({
  // Unless a file system wants to hear of locks, the kernel keeps them for all processes of the node.
  flags: locks === 'node' ? always : [...always, 'posixLocks', 'flockLocks'],
  ...{ maxWrite: maxTransfer, maxReadahead: maxTransfer, maxBackground: 64, timeGranularity: 1 },
});

function refuse(): never {
  throw new Errno('ENOLCK');
}

/** Better than to pretend: another node would not know of the lock. */
export const refuseLocks: Partial<Operations> = { getlk: refuse, setlk: refuse, setlkw: refuse };
