import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, constants, mkdirSync, openSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { describe, expect, test } from 'vitest';
import type { KeeperClient } from '#keeper/keeper-client.ts';
import { lacks } from '#testbed/lacks.ts';
import { ganeshaFolders } from '#testing/ganesha-folders.ts';
import { createKeeperFixture, eventually, type KeeperFixture } from '#testing/keeper/keeper-process.ts';
import { openExport } from '#testing/nfs-export.ts';
import { createScratchFolder, type ScratchFolder } from '#testing/scratch-folder.ts';
import type { MountSpec } from './mount-spec.ts';

const run = promisify(execFile);
const program = join(import.meta.dirname, 'main.ts');
const neverAborts = new AbortController().signal;

describe.skipIf(lacks('fuse', 'ganesha', 'fio'))('a mount whose data path is killed', () => {
  const ganesha = ganeshaFolders('recovery');

  /** A directory of the server, mounted like the product does it. */
  async function mountExported(
    scratch: ScratchFolder,
    keepers: KeeperFixture,
  ): Promise<{ readonly at: string; readonly client: KeeperClient }> {
    const { folder } = ganesha.fresh();
    using server = await openExport(ganesha.server, folder);
    const spec: MountSpec = {
      version: 1,
      addresses: [ganesha.server.host],
      port: ganesha.server.nfsPort,
      connections: 2,
      root: Buffer.from(server.root).toString('base64'),
      privilegedPorts: false,
      tls: undefined,
      squash: 'none',
      uid: 65_534,
      gid: 65_534,
      softMs: undefined,
      readOnly: false,
      maxRead: 1024 * 1024,
      maxWrite: 1024 * 1024,
      cacheMs: 1000,
      locks: 'node',
    };
    const at = join(scratch.folder, 'mnt');
    mkdirSync(at);
    const fd = openSync('/dev/fuse', constants.O_RDWR | constants.O_NONBLOCK);
    const options = 'fd=3,rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions';
    const child = spawn('mount', ['-i', '-t', 'fuse', '-o', options, 'stowage-test', at], {
      stdio: ['ignore', 'inherit', 'inherit', fd],
    });
    expect(await once(child, 'exit')).toEqual([0, null]);
    await keepers.startKeeper({ program, flags: ['--disable-warning=ExperimentalWarning'] });
    const client = keepers.client();
    await client.adopt('sv1-test', spec, fd, neverAborts);
    closeSync(fd);
    return { at, client };
  }

  /**
   * Repeats the work while the serving data path is killed, until that happened `killCount` times; then runs it once to
   * its end.
   */
  async function runWithKills(
    client: KeeperClient,
    killCount: number,
    work: (round: number) => Promise<unknown>,
  ): Promise<void> {
    let kills = 0;
    let isDone = false;
    const working = (async () => {
      for (let round = 0; round === 0 || kills < killCount; round++) await work(round);
    })().finally(() => {
      isDone = true;
    });
    working.catch(() => undefined);
    while (!isDone && kills < killCount) {
      const { active, takeovers } = await eventually(
        () => client.status(neverAborts),
        ({ active: one, standby }) => one?.ready === true && standby !== null,
      );
      process.kill(active?.pid ?? -1, 'SIGKILL');
      kills++;
      await eventually(
        () => client.status(neverAborts),
        (state) => state.takeovers > takeovers,
      );
    }
    await working;
  }

  test('loses no data and shows no error', { timeout: 120_000 }, async () => {
    using scratch = createScratchFolder();
    await using keepers = createKeeperFixture();
    const { at, client } = await mountExported(scratch, keepers);
    // Through the kernel's cache and with direct I/O: the longest requests, several at once.
    const fio = [
      `--directory=${at}`,
      '--rw=randrw',
      '--verify=crc32c',
      '--verify_fatal=1',
      '--group_reporting',
      '--minimal',
      '--verify_state_save=0',
      '--name=x',
      '--bs=4k-256k',
      '--size=6m',
      '--ioengine=psync',
      '--numjobs=2',
      '--loops=4',
      '--fsync=20',
      '--name=direct',
      '--bs=1m',
      '--size=8m',
      '--ioengine=libaio',
      '--iodepth=4',
      '--direct=1',
      '--loops=2',
    ];
    await runWithKills(client, 12, () => run('fio', fio, { cwd: scratch.folder, timeout: 100_000 }));
    await run('umount', [at]);
  });

  test('is served again, even if another mount cannot be served', async () => {
    using scratch = createScratchFolder();
    await using keepers = createKeeperFixture();
    const { at, client } = await mountExported(scratch, keepers);
    const notFuse = openSync('/dev/null', 'r+');
    await client.adopt('sv1-unknown', { version: 'of another program' }, notFuse, neverAborts);
    closeSync(notFuse);
    const write = () => run('sh', ['-c', 'echo data > "$1" && cat "$1"', 'sh', join(at, 'file')], { timeout: 20_000 });
    await runWithKills(client, 1, write);
    expect((await write()).stdout).toBe('data\n');
    await run('umount', [at]);
  });

  test('executes every change of names exactly once', { timeout: 120_000 }, async () => {
    using scratch = createScratchFolder();
    await using keepers = createKeeperFixture();
    const { at, client } = await mountExported(scratch, keepers);
    // A program that fails at the first error and has a known end state.
    const script = `
      import { mkdirSync, renameSync, rmdirSync, unlinkSync, linkSync, symlinkSync, writeFileSync, readFileSync, readdirSync } from 'node:fs';
      const at = process.argv[1];
      mkdirSync(at);
      for (let i = 0; i < 100; i++) {
        const name = (what) => at + '/' + what + '-' + i;
        mkdirSync(name('dir'));
        writeFileSync(name('file'), 'content ' + i, { flag: 'wx' });
        linkSync(name('file'), name('link'));
        symlinkSync('file-' + i, name('symlink'));
        renameSync(name('file'), name('dir') + '/moved');
        if (readFileSync(name('dir') + '/moved', 'utf8') !== 'content ' + i) throw new Error('wrong content of ' + i);
        unlinkSync(name('link'));
        unlinkSync(name('symlink'));
        if (i % 2 === 0) {
          unlinkSync(name('dir') + '/moved');
          rmdirSync(name('dir'));
        }
        const left = readdirSync(at).length;
        if (left !== Math.ceil(i / 2) && left !== Math.floor((i + 1) / 2)) throw new Error(i + ': there are ' + left);
      }`;
    await runWithKills(client, 12, async (round) => {
      const folder = join(at, String(round));
      await run(process.execPath, ['--input-type=module', '-e', script, folder], { timeout: 100_000 });
    });
    await run('umount', [at]);
  });
});
