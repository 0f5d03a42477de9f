import { closeSync, openSync } from 'node:fs';
import { lazyBindings } from '#base/linux/libc.ts';

/** Whether the mount table changed since the previous call. */
export interface MountWatch {
  isChanged(): boolean;
}

/** struct pollfd: fd, events, revents. */
const pollfdBytes = 8;
/** POLLPRI, and POLLERR, which is always reported. proc_pid_mounts(5) */
const changeEvents = 0x002 | 0x008;

/** Closes the descriptor when its watch is garbage collected. A watch lives as long as the program, or a test. */
const closeRegistry = new FinalizationRegistry<number>(closeSync);

const functions = lazyBindings({ poll: 'int poll(void *entries, unsigned long count, int timeout)' });

/** Watches a mount table in /proc. A file elsewhere always counts as changed. */
export function watchMounts(file: string): MountWatch {
  if (!file.startsWith('/proc/')) return { isChanged: () => true };
  // Stays open: the kernel records per descriptor what it has reported.
  const fd = openSync(file, 'r');
  const pollfd = Buffer.alloc(pollfdBytes);
  pollfd.writeInt32LE(fd, 0);
  pollfd.writeInt16LE(changeEvents, 4);
  const watch: MountWatch = {
    isChanged: () => {
      pollfd.writeInt16LE(0, 6);
      const count = Number(functions().poll(pollfd, 1, 0));
      return count !== 0 || (pollfd.readInt16LE(6) & changeEvents) !== 0;
    },
  };
  closeRegistry.register(watch, fd);
  return watch;
}
