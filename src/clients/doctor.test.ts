import { chmod, mkdir, mkdtempDisposable, symlink, writeFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import { createServer as createRawServer, type Server } from 'node:net';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { silentLog } from '#base/log.ts';
import { lacks } from '#testbed/lacks.ts';
import { type DoctorOptions, type Finding, runChecks } from './doctor.ts';

const scope = { signal: new AbortController().signal, log: silentLog() };

/** The files of a machine without problems. */
const healthyMachine = {
  'proc/filesystems': 'nodev\tfuse\nnodev\toverlay\n\txfs\n\text4\n',
  'proc/self/status': 'CapEff:\t000001ffffffffff\n',
  'proc/self/mountinfo': '20 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n',
  'proc/self/ns/user': '',
  'proc/self/attr/current': 'unconfined\n',
  'proc/sys/user/max_user_namespaces': '15000\n',
  'sys/fs/cgroup/cgroup.controllers': 'cpu memory\n',
  'dev/loop-control': '',
  'dev/fuse': '',
};
const programs = [
  'mount',
  'umount',
  'setpriv',
  'prlimit',
  'choom',
  'mkfs.xfs',
  'xfs_repair',
  'mkfs.ext4',
  'resize2fs',
  'e2fsck',
];

async function runDoctorOn(
  files: Readonly<Record<string, string | undefined>>,
  options: Partial<DoctorOptions> = {},
): Promise<readonly Finding[]> {
  await using folder = await mkdtempDisposable(join(tmpdir(), 'stowage-doctor-'));
  const root = folder.path;
  for (const [name, text] of Object.entries({ ...healthyMachine, ...files })) {
    if (text === undefined) continue;
    await mkdir(dirname(join(root, name)), { recursive: true });
    await writeFile(join(root, name), text);
  }
  await mkdir(join(root, 'bin'));
  for (const program of programs) {
    await writeFile(join(root, 'bin', program), '');
    await chmod(join(root, 'bin', program), 0o755);
  }
  return await runChecks(
    {
      clock: systemClock(),
      root,
      path: join(root, 'bin'),
      stateFolder: join(root, 'state'),
      platform: 'linux',
      release: '6.12.1',
      engines: [],
      ...options,
    },
    scope,
  );
}

const findingOf = (findings: readonly Finding[], check: string): Finding | undefined =>
  findings.find((finding) => finding.check.startsWith(check));

describe('doctor', () => {
  test('finds no problem on a good machine, except the missing engine', async () => {
    const findings = await runDoctorOn({});
    expect(findings.filter((finding) => finding.ok !== 'yes').map((finding) => finding.check)).toEqual([
      'container engines',
    ]);
    expect(findings.map((finding) => finding.check)).toEqual(
      expect.arrayContaining([...programs, 'fuse', 'loop', 'xfs', 'ext4', 'overlay', 'cgroup', 'AppArmor', 'SELinux']),
    );
  });

  test('reports a fix with every problem', async () => {
    const findings = await runDoctorOn(
      {
        'proc/filesystems': '',
        'proc/self/status': 'CapEff:\t0000000000000000\n',
        'proc/self/mountinfo': '20 1 0:9 / / rw - overlay overlay rw\n',
        'proc/sys/user/max_user_namespaces': '0',
        'sys/fs/cgroup/cgroup.controllers': undefined,
        'sys/fs/selinux/enforce': '1',
        'sys/module/apparmor/parameters/enabled': 'Y\n',
        'proc/self/attr/current': 'docker-default (enforce)\n',
        'dev/loop-control': undefined,
        'dev/fuse': undefined,
      },
      { release: '5.4.0-100-generic', path: '' },
    );
    const passed = findings.filter((finding) => finding.ok === 'yes');
    expect(passed).toEqual([]);
    for (const finding of findings) expect(finding.fix, finding.check).toMatch(/.{10}/);
    expect(findingOf(findings, 'permission to mount')?.ok).toBe('no');
    expect(findingOf(findings, 'AppArmor')?.fix).toContain('apparmor=unconfined');
    expect(findingOf(findings, 'SELinux')?.fix).toContain('label=disable');
    expect(findingOf(findings, 'resize2fs')?.fix).toBe(
      'Install it: apt install e2fsprogs (Debian, Ubuntu) or apk add e2fsprogs-extra (Alpine).',
    );
    expect(findingOf(findings, 'propagation of /')?.fix).toContain('mount --make-rshared /');
    expect(findingOf(findings, 'state folder')?.detail).toContain('is lost with the container');
  });

  test("does not accept busybox's programs", async () => {
    await using folder = await mkdtempDisposable(join(tmpdir(), 'stowage-doctor-'));
    await writeFile(join(folder.path, 'busybox'), '', { mode: 0o755 });
    for (const name of ['mount', 'mkfs.xfs']) await symlink('busybox', join(folder.path, name));
    const findings = await runDoctorOn({}, { path: folder.path });
    expect(findingOf(findings, 'mount')).toMatchObject({
      ok: 'no',
      detail: `${join(folder.path, 'mount')} belongs to busybox`,
      fix: 'Install it: apt install mount (Debian, Ubuntu) or apk add mount (Alpine).',
    });
    expect(findingOf(findings, 'mkfs.xfs')?.ok).toBe('warn');
  });

  test.each([
    ['5.4.0-41-generic', 'warn'],
    ['5.8.0', 'yes'],
    ['7.0.0-rc1', 'yes'],
    ['6.18.44-fc', 'yes'],
  ])('reports kernel %s as %s', async (release, ok) => {
    expect(findingOf(await runDoctorOn({}, { release }), 'kernel')?.ok).toBe(ok);
  });

  test('rejects a state folder on a network file system', async () => {
    const findings = await runDoctorOn({ 'proc/self/mountinfo': '20 1 0:9 / / rw shared:1 - nfs4 server:/x rw\n' });
    expect(findingOf(findings, 'state folder')).toMatchObject({
      ok: 'no',
      detail: expect.stringContaining('is on nfs4, and the database needs a local file system'),
    });
  });

  test('distinguishes engines that answer, hang and are gone', async () => {
    await using folder = await mkdtempDisposable(join(tmpdir(), 'stowage-doctor-'));
    const [answering, silent, gone] = ['a', 's', 'g'].map((name) => join(folder.path, name)) as [
      string,
      string,
      string,
    ];
    await using _engine = await listenOn(
      createServer((_, response) => response.end('{"Version":"20.10.24"}')),
      answering,
    );
    await using _hangingEngine = await listenOn(
      createRawServer((socket) => socket.resume()),
      silent,
    );
    await writeFile(gone, '');
    const engines = [
      { name: 'Docker', socket: answering },
      { name: 'Podman', socket: silent },
      { name: 'Docker (rootless)', socket: gone },
    ];
    const findings = await runDoctorOn({}, { engines, deadlineMs: 1_000, platform: 'darwin' });
    expect(findingOf(findings, 'operating system')).toMatchObject({
      ok: 'no',
      detail: 'this is darwin: stores and volumes can be managed, volumes cannot be mounted',
    });
    expect(findingOf(findings, 'Docker')).toMatchObject({
      ok: 'yes',
      detail: `answers at ${answering}, version 20.10.24`,
    });
    expect(findingOf(findings, 'Podman')).toMatchObject({
      ok: 'warn',
      detail: `${silent} exists, but does not answer (timeout)`,
      fix: 'See whether it runs: systemctl status podman',
    });
    expect(findingOf(findings, 'Docker (rootless)')?.detail).toBe(`${gone} exists, but does not answer (ECONNREFUSED)`);
    expect(findingOf(findings, 'state folder')?.ok).toBe('yes');
    expect(findingOf(findings, 'xfs')).toBeUndefined();
  });

  test('ends when it is cancelled', async () => {
    const signal = AbortSignal.abort(new Error('enough'));
    await expect(runChecks({ clock: systemClock(), stateFolder: '/nowhere' }, { ...scope, signal })).rejects.toThrow(
      'enough',
    );
  });

  test.skipIf(lacks('linux'))('examines this machine without an error', async () => {
    const findings = await runChecks({ clock: systemClock(), stateFolder: tmpdir() }, scope);
    expect(findingOf(findings, 'state folder')?.ok).not.toBe('no');
    expect(findings.filter((finding) => finding.detail.startsWith('could not be determined'))).toEqual([]);
  });
});

async function listenOn(server: Server, socket: string): Promise<AsyncDisposable> {
  await new Promise<void>((done) => server.listen(socket, done));
  return {
    [Symbol.asyncDispose]: async () => {
      await new Promise((done) => server.close(done));
    },
  };
}
