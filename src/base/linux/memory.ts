import { isErrno } from '../errno.ts';
import { checked, foreign, libc, SystemError } from './libc.ts';

const calls = foreign({
  create: 'int memfd_create(const char *name, unsigned int flags)',
  truncate: 'int ftruncate(int fd, int64_t length)',
  map: 'void *mmap(void *at, size_t length, int protection, int flags, int fd, int64_t offset)',
  unmap: 'int munmap(void *at, size_t length)',
  advise: 'int madvise(void *at, size_t length, int advice)',
});

const closeOnExec = 1;
const readWrite = 3;
const shared = 1;
const pageSize = 4096;
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
  /** Some of these bytes. Who needs few of many asks for those alone: V8 takes all that it is told of for memory in use. */
  part(from: number, length: number): ArrayBuffer;
  /** Makes sure that a part is there, so that no fault happens later. What is in it stays. */
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
  const part = (from: number, bytes: number): ArrayBuffer => koffi.view(at + BigInt(from), bytes);
  let whole: ArrayBuffer | undefined;
  return {
    get bytes() {
      whole ??= part(0, length);
      return whole;
    },
    part,
    populate: (from, bytes) => {
      try {
        told(advice.populateWrite, from, bytes);
      } catch (cause) {
        if (!isErrno(cause, 'EINVAL')) throw cause;
        touch(part(from, bytes));
      }
    },
    forget: (from, bytes) => told(advice.remove, from, bytes),
    // Whoever still has the bytes would crash the process by touching them: only for what nobody uses any more.
    [Symbol.dispose]: () => {
      checked('munmap', calls().unmap(at, length));
    },
  };
}

/**
 * For kernels before 5.14, which do not know how to populate: each page is written to, with what it has in it. Where there is no memory
 * for one, that is no error which can be caught, but a signal (SIGBUS) that ends the process.
 */
function touch(bytes: ArrayBuffer): void {
  const all = new Uint8Array(bytes);
  for (let at = 0; at < all.length; at += pageSize) Atomics.or(all, at, 0);
  Atomics.or(all, all.length - 1, 0);
}
