import { execFile } from 'node:child_process';
import { chmodSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { describe, expect, test } from 'vitest';
import { lacks, toolPath } from '#testbed/lacks.ts';
import { fsxPath } from '#testbed/posix-suites.ts';
import { exportedByGanesha } from '#testing/exported-folder.ts';
import { type KeeperMount, type KeeperMounts, startKeeperMounts } from '#testing/keeper-mounts.ts';
import { createScratchFolder } from '#testing/scratch-folder.ts';

const run = promisify(execFile);

/** Users that every system has. Times on the server are the kernel's, with a resolution of 4 ms on old ones. */
const settings = (secondFileSystem: string, isRemounting: boolean): string => `
[features]
posix_fallocate = {}
rename_ctime = {}
stat_st_birthtime = {}
utime_now = {}
utimensat = {}
secondary_fs = "${secondFileSystem}"
[settings]
naptime = 0.02
allow_remount = ${isRemounting}
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"], ["bin", "bin"]]
`;

const expectedFailures = [
  // nfs-ganesha does not set the times of a link, and reports success.
  'utimensat::follow_symlink',
  // NFSv3 has 32 bits for seconds.
  'utimensat::y2038',
];
/** The kernel reports no maximum number of links, not even for tmpfs. */
const expectedSkips = ['link::link_count_max'];
const caseCount = 398;

/** Some cases remount it read-only, for which the usual `mount` looks for a FUSE helper program. */
function withOwnMount(folder: string): NodeJS.ProcessEnv {
  const PATH = process.env['PATH'] ?? '';
  writeFileSync(join(folder, 'mount'), `#!/bin/sh\nPATH='${PATH}' exec mount -i "$@"\n`, { mode: 0o755 });
  return { ...process.env, PATH: `${folder}:${PATH}` };
}

/** The names of the cases with this result. */
const casesWithResult = (output: string, result: 'ok' | 'FAILED' | 'skipped'): string[] =>
  output.split('\n').flatMap((line) => (line.endsWith(` ${result}`) ? line.split(' ', 1) : []));

/** Runs in a directory outside the mount. Its exit status is 1 if a case failed; the output says which. */
async function pjdfstest(folder: string, mountPoint: string, patterns: readonly string[] = []): Promise<string> {
  const config = join(folder, 'pjdfstest.toml');
  writeFileSync(config, settings(folder, patterns.length > 0));
  const options = { timeout: 300_000, maxBuffer: 2 ** 26, env: withOwnMount(folder) };
  const args = ['-c', config, '-p', mountPoint, ...patterns];
  return (await run(toolPath('posix-suites'), args, options).catch((cause: { stdout: string }) => cause)).stdout;
}

/** The first data path still serves and logged no error. */
async function expectQuiet(mounts: KeeperMounts): Promise<void> {
  expect(await mounts.ready()).toMatchObject({ takeovers: 0 });
  expect(mounts.log()).not.toMatch(/"level":"(warn|error)"/);
}

describe.skipIf(lacks('root', 'fuse', 'ganesha', 'posix-suites'))('POSIX test suites on a mount', () => {
  const exported = exportedByGanesha({ inMemory: true });

  /** Served as in production: by a data path with a journal, started by a keeper. */
  const mountExported = (mounts: KeeperMounts): Promise<KeeperMount> =>
    mounts.mount({
      host: exported.server.host,
      port: exported.server.nfsPort,
      root: Buffer.from(exported.directory).toString('base64'),
    });

  test('pjdfstest passes except for the known cases', { timeout: 600_000 }, async () => {
    using scratch = createScratchFolder();
    chmodSync(exported.on('.'), 0o777);
    // A socket's path has at most 107 characters, and the suite's directories have long names.
    await using mounts = await startKeeperMounts({ prefix: 'p' });
    chmodSync(mounts.folder, 0o755);
    const { at } = await mountExported(mounts);
    const output = await pjdfstest(scratch.folder, at);
    // On a separate file system, not tmpfs: the suite leaves files open, and one with files open for writing cannot be
    // remounted read-only.
    const readOnly = await pjdfstest(scratch.folder, at, ['erofs']);
    const passed = new Set([output, readOnly].flatMap((one) => casesWithResult(one, 'ok')));
    expect([output, readOnly].flatMap((one) => casesWithResult(one, 'FAILED')).toSorted()).toEqual(expectedFailures);
    expect(casesWithResult(output, 'skipped').filter((name) => !passed.has(name))).toEqual(expectedSkips);
    expect(passed.size).toBe(caseCount - expectedFailures.length - expectedSkips.length);
    await expectQuiet(mounts);
  });

  test('fsx finds no wrong byte', { timeout: 600_000 }, async () => {
    using scratch = createScratchFolder();
    await using mounts = await startKeeperMounts();
    const { on } = await mountExported(mounts);
    const runFsx = async (seed: number): Promise<string> => {
      const args = ['-N', '5000', '-S', `${seed}`, '-P', scratch.folder, on(`file-${seed}`)];
      return (await run(fsxPath(), args, { timeout: 300_000, maxBuffer: 2 ** 26 })).stdout;
    };
    for (const seed of [1, 2, 3, 4, 5, 6]) expect(await runFsx(seed)).toContain('A-OK');
    await expectQuiet(mounts);
  });
});
