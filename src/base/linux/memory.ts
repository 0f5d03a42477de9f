import { checked, type ForeignFunction, libc, SystemError } from './libc.ts';

interface Calls {
  readonly create: ForeignFunction;
  readonly truncate: ForeignFunction;
  readonly map: ForeignFunction;
  readonly unmap: ForeignFunction;
  readonly advise: ForeignFunction;
}

let made: Calls | undefined;

function calls(): Calls {
  const { func } = libc();
  made ??= {
    create: func('int memfd_create(const char *name, unsigned int flags)'),
    truncate: func('int ftruncate(int fd, int64_t length)'),
    map: func('void *mmap(void *at, size_t length, int protection, int flags, int fd, int64_t offset)'),
    unmap: func('int munmap(void *at, size_t length)'),
    advise: func('int madvise(void *at, size_t length, int advice)'),
  };
  return made;
}

const closeOnExec = 1;
const readWrite = 3;
const shared = 1;
const advice = { remove: 9, populateWrite: 23 } as const;

/** Memory that lives as long as somebody holds its descriptor, whoever made it. Full of zeros, and taken only where touched. */
export function createMemory(name: string, size: number): number {
  const fd = checked('memfd_create', calls().create(name, closeOnExec));
  checked('ftruncate', calls().truncate(fd, size));
  return fd;
}

export function growMemory(fd: number, size: number): void {
  checked('ftruncate', calls().truncate(fd, size));
}

/** A part of such memory, as bytes of this process. What one process writes another sees at once. */
export interface Mapped extends Disposable {
  readonly bytes: ArrayBuffer;
  /** Makes sure that a part is there, so that no fault happens later. */
  populate(from: number, length: number): void;
  /** Gives a part back to the system; it reads as zeros afterwards. Whole pages only. */
  forget(from: number, length: number): void;
}

export function mapMemory(fd: number, offset: number, length: number): Mapped {
  const { koffi } = libc();
  const at: bigint = calls().map(null, length, readWrite, shared, fd, offset);
  if (BigInt.asIntN(64, at) === -1n) throw new SystemError('mmap', koffi.errno());
  const told = (what: number, from: number, bytes: number): void => {
    checked('madvise', calls().advise(at + BigInt(from), bytes, what));
  };
  return {
    bytes: koffi.view(at, length),
    populate: (from, bytes) => told(advice.populateWrite, from, bytes),
    forget: (from, bytes) => told(advice.remove, from, bytes),
    // Whoever still has the bytes would crash the process by touching them: only for what nobody uses any more.
    [Symbol.dispose]: () => {
      checked('munmap', calls().unmap(at, length));
    },
  };
}
