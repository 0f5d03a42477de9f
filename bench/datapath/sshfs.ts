import { mkdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { startDaemon } from '#testbed/daemon.ts';
import type { SftpServer } from '#testbed/sshfs.ts';
import type { Mounter } from './mounting.ts';
import { unmount } from './our-data-path.ts';

const withoutCaching = ['dir_cache=no', 'attr_timeout=0', 'entry_timeout=0', 'negative_timeout=0'];

/** Other users have access, and the kernel checks permissions, as on Stowage's mounts. */
const shared = ['allow_other', 'default_permissions'];

export function sshfsMounting(server: SftpServer, folder: string, signal: AbortSignal): Mounter {
  let count = 0;
  return {
    mount: async (path, { isCaching }) => {
      const at = join(folder, `sshfs-${++count}`);
      mkdirSync(at);
      const options = [...server.options, ...shared, ...(isCaching ? [] : withoutCaching)].join(',');
      const daemon = await startDaemon({
        command: ['sshfs', '-f', '-o', options, `${server.host}:${path}`, at],
        logFile: join(folder, 'sshfs.log'),
        isReady: () => readFileSync('/proc/self/mounts', 'utf8').includes(` ${at} fuse.sshfs `),
        signal,
      });
      return {
        at,
        [Symbol.asyncDispose]: async () => {
          await unmount(at, signal);
          await daemon.stop();
        },
      };
    },
  };
}
