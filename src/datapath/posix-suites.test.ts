import { execFile } from 'node:child_process';
import { chmodSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { describe, expect, test } from 'vitest';
import { needs, toolPath } from '#testbed/needs.ts';
import { fsxPath } from '#testbed/posix-suites.ts';
import { exportedByGanesha } from '#testing/exported-folder.ts';
import { createGround } from '#testing/ground.ts';
import { mountNfs } from '#testing/nfs-mount.ts';

const run = promisify(execFile);

/** Users that every system has; times on the server are those of its kernel, which are no finer than 4 ms on old ones. */
const settings = `
[features]
[settings]
naptime = 0.02
allow_remount = false
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"], ["bin", "bin"]]
`;

describe.skipIf(needs('root', 'fuse', 'ganesha', 'posix-suites'))('the POSIX suites on a mount', () => {
  const it = exportedByGanesha({ inMemory: true });

  test('pjdfstest: nothing fails', { timeout: 180_000 }, async () => {
    // A socket's path has at most 107 characters, and the suite's own folders have long names.
    using ground = createGround('p');
    chmodSync(ground.folder, 0o755);
    chmodSync(it.on('.'), 0o777);
    const config = join(ground.folder, 'pjdfstest.toml');
    writeFileSync(config, settings);
    await using mount = await mountNfs(ground.folder, { nfs: it.nfs, root: it.directory });
    const args = ['-c', config, '-p', mount.at];
    const how = { timeout: 170_000, maxBuffer: 2 ** 26 };
    // It ends with an error when a test failed; what failed is in what it says.
    const said = await run(toolPath('posix-suites'), args, how).catch((cause: { stdout: string }) => cause);
    expect(said.stdout.split('\n').filter((line) => line.endsWith('FAILED'))).toEqual([]);
    expect(said.stdout).toMatch(/Summary: 0 failed, \d+ skipped, 3[45]\d passed/);
    expect(mount.faults).toEqual([]);
  });

  test.each([1, 2, 3])('fsx, seed %i: no byte is another', { timeout: 90_000 }, async (seed) => {
    using ground = createGround();
    await using mount = await mountNfs(ground.folder, { nfs: it.nfs, root: it.directory });
    const args = ['-N', '2000', '-S', `${seed}`, '-P', ground.folder, join(mount.at, 'file')];
    const { stdout } = await run(fsxPath(), args, { timeout: 80_000, maxBuffer: 2 ** 26 });
    expect(stdout).toContain('A-OK');
    expect(mount.faults).toEqual([]);
  });
});
