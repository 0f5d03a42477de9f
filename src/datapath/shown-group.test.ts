import { execFile } from 'node:child_process';
import { chmodSync, chownSync, mkdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { promisify } from 'node:util';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { exportedByGanesha } from '#testing/exported-folder.ts';
import { asCaller, mountNfs, type NfsMount } from '#testing/nfs-mount.ts';
import { createScratchFolder, type ScratchFolder } from '#testing/scratch-folder.ts';

// Kubernetes' fsGroup on a volume whose users are all one user on the server: nothing is chowned there.

const run = promisify(execFile);
const group = 2000;

/** Runs like a container of a pod with that fsGroup. */
const runAs = async (uid: number, script: string, ...args: readonly string[]): Promise<string> => {
  const user = ['--reuid', `${uid}`, '--regid', `${uid}`, '--groups', `${group}`];
  return (await run('setpriv', [...user, 'sh', '-ec', script, 'sh', ...args])).stdout;
};

describe.skipIf(lacks('root', 'fuse', 'ganesha'))("a mount that shows a pod's group", () => {
  const exported = exportedByGanesha();
  const identity = { ...asCaller, squash: 'all', uid: 1000, gid: 1000 } as const;
  let scratch: ScratchFolder;
  let mount: NfsMount;

  beforeEach(async () => {
    scratch = createScratchFolder();
    chmodSync(scratch.folder, 0o755);
    await exported.nfs.setattr(exported.directory, { uid: 1000, gid: 1000, mode: 0o755 });
    mkdirSync(exported.on('old'), { mode: 0o755 });
    writeFileSync(exported.on('old/file'), 'text', { mode: 0o640 });
    for (const name of ['old', 'old/file']) chownSync(exported.on(name), 1000, 1000);
    const options = { identity, checks: 'server', group } as const;
    mount = await mountNfs(scratch.folder, { nfs: exported.nfs, root: exported.directory }, options);
  });
  afterEach(async () => {
    expect(mount.faults).toEqual([]);
    await mount[Symbol.asyncDispose]();
    scratch[Symbol.dispose]();
  });

  test('shows that group for existing and new files, and changes nothing on the server', async () => {
    await runAs(1001, 'mkdir "$1/new"; echo text > "$1/new/file"; ln -s file "$1/new/link"', mount.at);
    const all = await runAs(1001, 'find "$1" -printf "%G\\n" | sort -u; ls -ln "$1/new" | cut -d" " -f4', mount.at);
    expect(new Set(all.split('\n').filter((line) => line !== ''))).toEqual(new Set([`${group}`]));
    const onServer = ['.', 'old', 'old/file', 'new', 'new/file'].map((name) => statSync(exported.on(name)).gid);
    expect(new Set(onServer)).toEqual(new Set([1000]));
  });

  test("lets two users change each other's files whatever their umask", async () => {
    await runAs(1001, 'umask 077; cd "$1"; mkdir d; echo first > d/file; echo first > old/file', mount.at);
    await runAs(1002, 'cd "$1"; test -w d/file; echo second >> d/file; mv d/file d/other; touch d/own', mount.at);
    await runAs(1001, 'cd "$1"; echo third >> d/other; mv d/own d/file; rm old/file', mount.at);
    expect(readFileSync(exported.on('d/other'), 'utf8')).toBe('first\nsecond\nthird\n');
  });

  test('shows the mode that an application has set', async () => {
    const script = 'cd "$1"; mkdir data; chmod 0700 data; touch key; chmod 0600 key; stat -c %a data key';
    expect(await runAs(1001, script, mount.at)).toBe('700\n600\n');
  });

  test('ignores a chgrp to the shown group; the server decides about other groups', async () => {
    await runAs(
      1001,
      `chgrp ${group} "$1/old/file"; cp --preserve=ownership,timestamps "$1/old/file" "$1/copy"`,
      mount.at,
    );
    await runAs(0, `chown 1000:${group} "$1/copy"`, mount.at);
    expect(statSync(exported.on('old/file')).gid).toBe(1000);
    await expect(runAs(1001, 'chgrp 3000 "$1/old/file"', mount.at)).rejects.toThrow('Operation not permitted');
    expect(await runAs(1001, 'stat -c %g "$1/old/file"', mount.at)).toBe(`${group}\n`);
  });
});
