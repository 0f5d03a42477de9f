import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { lacks, toolPath } from '#testbed/lacks.ts';
import { exportedByGanesha } from '#testing/exported-folder.ts';
import { type KeeperMount, type KeeperMounts, sourceOf, startKeeperMounts } from '#testing/keeper-mounts.ts';
import { run, runFioVerify } from '#testing/workloads.ts';
import type { MountSpec } from './mount-spec.ts';

describe.skipIf(lacks('root', 'fuse', 'ganesha'))('applications on an NFS volume', () => {
  const exported = exportedByGanesha();

  async function mountExported(mounts: KeeperMounts, options: Partial<MountSpec> = {}): Promise<KeeperMount> {
    return await mounts.mount(await sourceOf(exported.server, exported.folder), options);
  }

  /**
   * The file system stressors that end after a fixed number of operations. Excluded are those that create thousands of
   * names before checking the time, need what NFSv3 lacks, or sync the whole machine.
   */
  test.skipIf(lacks('stress-ng'))('stress-ng reports no errors', async () => {
    const stressors = [
      'access',
      'chattr',
      'chdir',
      'chmod',
      'chown',
      'dentry',
      'dir',
      'dirdeep',
      'dirmany',
      'dup',
      'fcntl',
      'file-ioctl',
      'filename',
      'flock',
      'fstat',
      'getdent',
      'handle',
      'hdd',
      'iomix',
      'lease',
      'locka',
      'lockf',
      'lockofd',
      'mknod',
      'open',
      'rename',
      'seek',
      'touch',
      'utime',
    ];
    const sizes = ['--chdir-dirs=64', '--dentries=64', '--dir-dirs=64', '--hdd-bytes=1m', '--iomix-bytes=1m'];
    await using mounts = await startKeeperMounts();
    const { at } = await mountExported(mounts);
    const bounds = ['--verify', '--timeout', '8s', '--temp-path', at, ...sizes, '--seek-size=1m'];
    await run('stress-ng', [...bounds, ...stressors.flatMap((name) => [`--${name}=1`, `--${name}-ops=30`])], {
      cwd: at,
    });
    expect((await run('ls', ['-A', at])).stdout).toBe('');
    await run('umount', [at]);
  });

  test.skipIf(lacks('c-source'))('tar and make produce correct output', async () => {
    await using mounts = await startKeeperMounts();
    const { at, on } = await mountExported(mounts);
    await run('tar', ['-C', at, '-xf', toolPath('c-source')]);
    const folder = on('bzip2-1.0.8');
    const { stdout, stderr } = await run('make', ['-C', folder, '-j2', 'CFLAGS=-O0']);
    expect(stdout).toContain("If you got this far and the 'cmp's didn't complain");
    expect(stderr).not.toMatch(/clock skew|in the future/i);
    // The times say that everything is up to date.
    await run('make', ['-C', folder, '-q', 'libbz2.a', 'bzip2', 'bzip2recover']);
    await run('rm', ['-r', folder]);
    await run('umount', [at]);
  });

  /** Input for `git fast-import`: commits that change a few of many files. */
  function gitHistory(): string {
    const commits = Array.from({ length: 40 }, (_, commit) => {
      const files = Array.from({ length: 25 }, (_unused, i) => {
        const text = `${commit} ${i}\n`.repeat(20 + ((commit * 7 + i) % 200));
        return `M 100644 inline folder-${i % 5}/file-${(commit * 3 + i) % 200}\ndata ${text.length}\n${text}`;
      });
      const message = `commit ${commit}`;
      const head = `commit refs/heads/main\ncommitter A <a@b.c> ${1e9 + commit} +0000\ndata ${message.length}\n${message}`;
      return `${head}\n${files.join('\n')}\n`;
    });
    return commits.join('\n');
  }

  test.skipIf(lacks('git'))('git works on the volume', async () => {
    await using mounts = await startKeeperMounts();
    const { at, on } = await mountExported(mounts);
    const env = { ...process.env, GIT_CONFIG_GLOBAL: '/dev/null', GIT_CONFIG_SYSTEM: '/dev/null', HOME: mounts.folder };
    const [origin, clone] = [join(mounts.folder, 'origin'), on('clone')];
    const git = async (folder: string, ...args: readonly string[]): Promise<string> =>
      (await run('git', ['-C', folder, ...args], { env })).stdout;
    await git('/', 'init', '--quiet', '--bare', '--initial-branch=main', origin);
    const stream = join(mounts.folder, 'stream');
    writeFileSync(stream, gitHistory());
    await run('sh', ['-c', 'git -C "$1" fast-import --quiet <"$2"', 'sh', origin, stream], { env });
    await git('/', 'clone', '--quiet', `file://${origin}`, clone);
    expect(await git(clone, 'fsck', '--full', '--strict')).toBe('');
    await git(clone, 'checkout', '--quiet', '-b', 'old', 'HEAD~20');
    await git(clone, 'gc', '--quiet', '--prune=now');
    await git(clone, 'checkout', '--quiet', 'main');
    expect(await git(clone, 'fsck', '--full', '--strict')).toBe('');
    expect(await git(clone, 'status', '--porcelain')).toBe('');
    expect(await git(clone, 'rev-parse', 'HEAD^{tree}')).toBe(await git(origin, 'rev-parse', 'main^{tree}'));
    await run('umount', [at]);
  });

  test.skipIf(lacks('fio'))('shared memory maps keep what is written to them', async () => {
    await using mounts = await startKeeperMounts();
    const { at, on } = await mountExported(mounts);
    await runFioVerify(at, mounts.folder, '--ioengine=mmap', '--fsync=8');
    const names = ['x.0.0', 'x.1.0'];
    for (const name of names) await run('cmp', [on(name), exported.on(name)]);
    await run('umount', [at]);
  });

  describe('SQLite', () => {
    const program = join(import.meta.dirname, '..', 'testing', 'sqlite-writer.ts');
    const writeEntries = (file: string, ...args: readonly string[]) =>
      run(process.execPath, ['--disable-warning=ExperimentalWarning', program, file, ...args]);
    const countScript = `
      import { DatabaseSync } from 'node:sqlite';
      using database = new DatabaseSync(process.argv[1], { readOnly: true });
      const [{ integrity_check }] = database.prepare('PRAGMA integrity_check').all();
      const { last, count } = database.prepare('SELECT max(number) AS last, count(*) AS count FROM entries').get();
      console.log(integrity_check, last, count);`;
    const checkDatabase = async (file: string): Promise<string> => {
      const flags = ['--disable-warning=ExperimentalWarning', '--input-type=module', '--eval'];
      return (await run(process.execPath, [...flags, countScript, file])).stdout;
    };

    test.each(['DELETE', 'WAL'])(
      'SQLite works with node-local locks, two writing processes and journal mode %s',
      async (mode) => {
        await using mounts = await startKeeperMounts();
        const { at, on } = await mountExported(mounts, { locks: 'node' });
        const entriesPerWriter = 60;
        await Promise.all(
          ['a', 'b'].map((writer) => writeEntries(on('database'), writer, `${entriesPerWriter}`, mode)),
        );
        expect(await checkDatabase(on('database'))).toBe(`ok ${2 * entriesPerWriter} ${2 * entriesPerWriter}\n`);
        await run('umount', [at]);
      },
    );

    test('SQLite reports an error if locks are refused', async () => {
      await using mounts = await startKeeperMounts();
      const { at, on } = await mountExported(mounts, { locks: 'refused' });
      for (const mode of ['DELETE', 'WAL'])
        await expect(writeEntries(on('database'), 'a', '1', mode, '300')).rejects.toThrow(
          /database is locked|disk I\/O error/,
        );
      await run('touch', [on('file')]);
      await expect(run('flock', ['--nonblock', on('file'), 'true'])).rejects.toThrow('No locks available');
      await run('umount', [at]);
    });
  });
});
