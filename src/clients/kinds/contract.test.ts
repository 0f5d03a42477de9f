import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, mkdirSync, openSync, rmSync } from 'node:fs';
import { open } from 'node:fs/promises';
import { join } from 'node:path';
import { describe, expect } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { connectTo } from '#base/linux/descriptor-sockets.ts';
import type { NodeName } from '#core/model.ts';
import { newVolumeId } from '#core/names.ts';
import { peerCredentials } from '#keeper/system-calls.ts';
import { lacks } from '#testbed/lacks.ts';
import { slaveMounts } from '#testbed/mount-namespace.ts';
import { clientContract } from '#testing/contracts/client.ts';
import { exportedByGanesha } from '#testing/exported-folder.ts';
import { startUnmountWatchdog } from '#testing/fuse-mount.ts';
import { eventually } from '#testing/keeper/keeper-process.ts';
import { createScratchFolder, type ScratchFolder } from '#testing/scratch-folder.ts';
import { targetAt } from '#testing/staging-target.ts';
import { createKeepers } from '../data-path/keepers.ts';
import { createLinuxMounter } from '../mounter/linux-mounter.ts';
import { createTableReader } from '../mounter/mountinfo.ts';
import { createPathAccess } from '../mounter/path-access.ts';
import { createRunProgram } from '../mounter/run-program.ts';
import { createDirectoryClient } from './directory.ts';
import { createLoopClient } from './loop.ts';
import { createNfsClient } from './nfs.ts';

const clock = systemClock();
const run = createRunProgram(clock);
const mounter = createLinuxMounter({ clock, run, forbiddenFolders: () => [], storeRoots: () => [] });
const node = 'here' as NodeName;

function scratchFixture(scratch: ScratchFolder) {
  mkdirSync(join(scratch.folder, 'mounts'));
  return {
    mounter,
    at: join(scratch.folder, 'mounts', newVolumeId()),
    occupy: (at: string) => void execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=1m', '--', 'test', at]),
    use: (at: string): Disposable => {
      const fd = openSync(at, 'r');
      return { [Symbol.dispose]: () => closeSync(fd) };
    },
    [Symbol.asyncDispose]: async () => scratch[Symbol.dispose](),
  };
}

describe.skipIf(lacks('root', 'mount'))('directories', () => {
  clientContract(
    'the directory client',
    async () => {
      const scratch = createScratchFolder();
      const path = join(scratch.folder, 'volume');
      mkdirSync(path);
      return {
        ...scratchFixture(scratch),
        client: createDirectoryClient({ mounter }),
        source: { kind: 'directory', node, path },
        lose: () => rmSync(path, { recursive: true }),
        sharedPaths: { whole: path, part: join(path, 'sub') },
      };
    },
    { lose: true, sharedPaths: true },
  );
});

describe.skipIf(lacks('root', 'mount', 'loop', 'ext4'))('images', () => {
  clientContract(
    'the loop client',
    async () => {
      const scratch = createScratchFolder();
      const path = scratch.image('volume.img', 16, 'ext4');
      return {
        ...scratchFixture(scratch),
        client: createLoopClient({ mounter, run, clock }),
        source: { kind: 'loop', node, path, filesystem: 'ext4' },
        lose: () => rmSync(path),
        attached: () => scratch.loops(path),
      };
    },
    { lose: true, attached: true },
  );
});

describe.skipIf(lacks('root', 'fuse', 'mount', 'ganesha'))('NFS', () => {
  const exported = exportedByGanesha();

  clientContract(
    'the NFS client',
    async () => {
      const scratch = createScratchFolder();
      const folder = join(scratch.folder, 'keepers');
      mkdirSync(folder);
      const keepers = createKeepers({
        clock,
        log: scratch.scope.log,
        folder,
        version: 'test',
        onMountsLost: () => undefined,
        onAbandoned: () => undefined,
      });
      const accessPath = createPathAccess(clock);
      const client = createNfsClient({
        mounter,
        run,
        clock,
        keepers,
        instance: 'test',
        accessPath,
        readTable: createTableReader(),
      });
      const fixture = scratchFixture(scratch);
      const watchdog = startUnmountWatchdog(fixture.at);
      const source = {
        kind: 'nfs',
        hosts: [exported.server.host],
        path: exported.folder,
        way: {
          client: 'built-in',
          addresses: [exported.server.host],
          port: exported.server.nfsPort,
          mountPort: undefined,
          root: Buffer.from(exported.directory).toString('base64'),
          connections: 1,
          sourcePorts: undefined,
          tls: undefined,
          network: undefined,
          squash: 'none',
          uid: 0,
          gid: 0,
          softMs: undefined,
          maxRead: 65_536,
          maxWrite: 65_536,
          locks: 'node',
          readOnly: false,
          quota: undefined,
        },
      } as const;
      const { signal } = scratch.scope;
      const keeperPid = (): number => {
        const fd = connectTo(join(folder, 'host', 'sock'));
        const { pid } = peerCredentials(fd);
        closeSync(fd);
        return pid;
      };
      const state = async () => (await keepers.status(signal))[0]?.state;
      return {
        ...fixture,
        client,
        source,
        kill: async () => {
          const found = await eventually(state, (one) => one?.active?.ready === true && one.standby !== null);
          const pids = [keeperPid(), found?.active?.pid, found?.standby?.pid];
          for (const pid of pids) process.kill(pid ?? expect.fail('a process of the data path is missing'), 'SIGKILL');
          await eventually(
            () => client.findDeadMounts?.([{ source, target: targetAt(fixture.at) }], scratch.scope).catch(() => []),
            (dead) => dead?.[0] === fixture.at,
          );
        },
        hang: async (at) => {
          const file = await open(join(at, 'file'), 'w');
          await exported.server.freeze();
          await file.write('text');
          return {
            [Symbol.asyncDispose]: async () => {
              exported.server.thaw();
              await file.close();
            },
          };
        },
        copy: async (at) => {
          const other = join(scratch.folder, 'other');
          mkdirSync(other);
          // A bind at another path, which the first unmount does not reach.
          const script = ['sh', '-ec', 'mount --bind "$1" "$2"; echo ready; read -r line', 'sh', at, other];
          const otherNamespace = spawn('unshare', [...slaveMounts, ...script], { stdio: ['pipe', 'pipe', 'inherit'] });
          await once(otherNamespace.stdout, 'data');
          return {
            [Symbol.asyncDispose]: async () => {
              otherNamespace.stdin.end('\n');
              await once(otherNamespace, 'close');
            },
          };
        },
        [Symbol.asyncDispose]: async () => {
          await client.unstage(source, targetAt(fixture.at), scratch.scope, { force: true }).catch(() => undefined);
          await eventually(state, (found) => (found?.mounts ?? 0) === 0);
          await keepers.endIdle(signal);
          await keepers[Symbol.asyncDispose]();
          watchdog[Symbol.dispose]();
          scratch[Symbol.dispose]();
        },
      };
    },
    { kill: true, sharing: true },
  );
});
