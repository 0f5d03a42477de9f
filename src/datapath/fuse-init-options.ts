import type { InitFlag } from '#wire/fuse/abi.ts';
import { Errno } from '#wire/fuse/errno.ts';
import type { InitOptions } from '#wire/fuse/init.ts';
import type { Operations } from '#wire/fuse/operations.ts';
import { maxTransfer } from './journal/layout.ts';
import type { MountSpec } from './mount-spec.ts';

/**
 * Not atomicOTrunc: the kernel would truncate a running program before it finds that it is busy. Not autoInvalData: it
 * would drop a file's cached pages whenever mtime changes, also after our own writes, and ask for the time before each
 * read. Pages that another client changed are dropped at open instead.
 */
const commonFlags: readonly InitFlag[] = [
  'asyncRead',
  'parallelDirops',
  'doReaddirplus',
  'readdirplusAuto',
  'asyncDio',
  'cacheSymlinks',
];

/** The options requested in FUSE_INIT for a mount. */
export const fuseInitOptions = ({ locks }: Pick<MountSpec, 'locks'>): InitOptions => ({
  // Without these flags, the kernel handles locks among all processes of the node.
  flags: locks === 'node' ? commonFlags : [...commonFlags, 'posixLocks', 'flockLocks'],
  maxWrite: maxTransfer,
  maxReadahead: maxTransfer,
  maxBackground: 64,
  timeGranularity: 1,
});

function refuseLock(): never {
  throw new Errno('ENOLCK');
}

/** Refuse instead of pretending: another node would not see the lock. */
export const lockRefusals: Partial<Operations> = { getlk: refuseLock, setlk: refuseLock, setlkw: refuseLock };
