import { closeSync, openSync } from 'node:fs';
import { foreign } from '#base/linux/libc.ts';

/** Whether a mount came, went or was changed since this was asked the last time. */
export interface MountWatch {
  isChanged(): boolean;
}

/** struct pollfd: the descriptor, what is asked for, what is so. */
const entrySize = 8;
/** POLLPRI, and POLLERR, which is told unasked. proc_pid_mounts(5) */
const changed = 0x002 | 0x008;

/** A reader lives as long as its program, or a test. */
const closing = new FinalizationRegistry<number>(closeSync);

const functions = foreign({ poll: 'int poll(void *entries, unsigned long count, int timeout)' });

/** Of a table in /proc. Where it is another file, everything may have changed at any time. */
export function watchMounts(file: string): MountWatch {
  if (!file.startsWith('/proc/')) return { isChanged: () => true };
  // Kept for good: the kernel remembers for each descriptor what it has told.
  const fd = openSync(file, 'r');
  const entry = Buffer.alloc(entrySize);
  entry.writeInt32LE(fd, 0);
  entry.writeInt16LE(changed, 4);
  const watch: MountWatch = {
    isChanged: () => {
      entry.writeInt16LE(0, 6);
      const count = Number(functions().poll(entry, 1, 0));
      return count !== 0 || (entry.readInt16LE(6) & changed) !== 0;
    },
  };
  closing.register(watch, fd);
  return watch;
}
