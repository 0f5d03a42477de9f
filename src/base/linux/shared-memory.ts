import { isErrno } from '../errno.ts';
import { checkResult, lazyBindings, libc, SystemError } from './libc.ts';

const calls = lazyBindings({
  create: 'int memfd_create(const char *name, unsigned int flags)',
  truncate: 'int ftruncate(int fd, int64_t length)',
  map: 'void *mmap(void *at, size_t length, int protection, int flags, int fd, int64_t offset)',
  unmap: 'int munmap(void *at, size_t length)',
  advise: 'int madvise(void *at, size_t length, int advice)',
});

const mfdCloexec = 1;
const protReadWrite = 3;
const mapShared = 1;
const pageSize = 4096;
const advice = { remove: 9, populateWrite: 23 } as const;

/** Creates anonymous memory (memfd). It lives as long as any process holds a descriptor of it. Zeroed, and allocated only where touched. */
export function createMemory(name: string, size: number): number {
  const fd = checkResult('memfd_create', calls().create(name, mfdCloexec));
  checkResult('ftruncate', calls().truncate(fd, size));
  return fd;
}

export function growMemory(fd: number, size: number): void {
  checkResult('ftruncate', calls().truncate(fd, size));
}

/** A mapping of shared memory. Writes are visible to other processes at once. */
export interface MemoryMapping extends Disposable {
  readonly bytes: ArrayBuffer;
  /** A part of the mapping. For a small part, prefer this to `bytes`: V8 counts the size of every buffer as memory in use. */
  part(from: number, length: number): ArrayBuffer;
  /** Allocates a part, so that no page fault occurs later. Keeps its content. */
  populate(from: number, length: number): void;
  /** Frees a part, which then reads as zeros. Whole pages only. */
  discard(from: number, length: number): void;
}

export function mapMemory(fd: number, offset: number, length: number): MemoryMapping {
  const { koffi } = libc();
  const address: bigint = calls().map(null, length, protReadWrite, mapShared, fd, offset);
  if (BigInt.asIntN(64, address) === -1n) throw new SystemError('mmap', koffi.errno());
  const advise = (what: number, from: number, bytes: number): void => {
    checkResult('madvise', calls().advise(address + BigInt(from), bytes, what));
  };
  const part = (from: number, bytes: number): ArrayBuffer => koffi.view(address + BigInt(from), bytes);
  let whole: ArrayBuffer | undefined;
  return {
    get bytes() {
      whole ??= part(0, length);
      return whole;
    },
    part,
    populate: (from, bytes) => {
      try {
        advise(advice.populateWrite, from, bytes);
      } catch (cause) {
        if (!isErrno(cause, 'EINVAL')) throw cause;
        touchPages(part(from, bytes));
      }
    },
    discard: (from, bytes) => advise(advice.remove, from, bytes),
    // Accessing the bytes after this crashes the process, so dispose of the mapping only after its last use.
    [Symbol.dispose]: () => {
      checkResult('munmap', calls().unmap(address, length));
    },
  };
}

/**
 * For kernels before 5.14, which lack MADV_POPULATE_WRITE: writes to each page without changing it. If memory runs out, the kernel
 * sends SIGBUS, which ends the process and cannot be caught.
 */
function touchPages(bytes: ArrayBuffer): void {
  const allBytes = new Uint8Array(bytes);
  for (let offset = 0; offset < allBytes.length; offset += pageSize) Atomics.or(allBytes, offset, 0);
  Atomics.or(allBytes, allBytes.length - 1, 0);
}
