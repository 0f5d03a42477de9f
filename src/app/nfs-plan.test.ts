import { execFileSync } from 'node:child_process';
import { chmod, mkdir, mkdtemp, readdir, realpath, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, onTestFinished, test } from 'vitest';
import type { NfsServeOptions } from '#cli/io.ts';
import { run } from '#cli/scripted-server.ts';
import { lacks } from '#testbed/lacks.ts';
import { type NfsPlan, planNfsServer } from './nfs-plan.ts';
import { readTls } from './nfs-tls.ts';

interface Planned {
  readonly status: number;
  readonly stderr: string;
  readonly plan: NfsPlan | undefined;
  readonly options: NfsServeOptions | undefined;
}

interface Ground {
  readonly top: string;
  readonly exported: string;
  /** Runs the command line up to the plan, without starting a server. */
  plan(...args: string[]): Promise<Planned>;
}

async function ground(): Promise<Ground> {
  const top = await realpath(await mkdtemp(join(tmpdir(), 'stowage-nfs-plan-')));
  onTestFinished(() => rm(top, { recursive: true }));
  const exported = join(top, 'exported');
  await mkdir(exported);
  await writeFile(join(exported, 'file'), 'not a certificate');
  const plan = async (...args: string[]): Promise<Planned> => {
    let [plan, options]: [NfsPlan | undefined, NfsServeOptions | undefined] = [undefined, undefined];
    const nfsServe = async (given: NfsServeOptions): Promise<number> => {
      options = given;
      plan = await planNfsServer(given, join(top, 'states'));
      return 0;
    };
    const { status, stderr } = await run(undefined, ['--json', 'nfs', 'serve', ...args], { injected: { nfsServe } });
    return { status, stderr, plan, options };
  };
  return { top, exported, plan };
}

describe.skipIf(lacks('linux'))('the plan of an NFS server with', () => {
  test.each<readonly [string, readonly string[], Partial<NfsPlan>]>([
    ['the defaults', [], { host: '127.0.0.1', port: 2049, path: '/export', isOwnOnly: true, squash: 'none' }],
    ['a network', ['--allow', '10.0.0.0/8'], { host: '::', isOwnOnly: false, squash: 'root' }],
    ['an IPv4 loopback network', ['--allow', '127.0.0.0/8'], { host: '127.0.0.1', isOwnOnly: false, squash: 'root' }],
    ['the IPv6 loopback address', ['--allow', '::1'], { host: '::1', isOwnOnly: false, networks: ['::1'] }],
    ['both loopback addresses', ['--allow', '::1', '--allow', '127.0.0.1'], { host: '::', isOwnOnly: false }],
    ['another address of this machine', ['--host', '::1'], { host: '::1', isOwnOnly: true }],
    ['both', ['--host', '10.1.2.3', '--allow', 'fd00::/8'], { host: '10.1.2.3', networks: ['fd00::/8'] }],
    [
      'squashed users',
      ['--squash', 'all', '--anon-uid', '4294967294'],
      { squash: 'all', anonymous: { uid: 4294967294, gid: 65534 } },
    ],
    ['an export path', ['--path', '//a/b/'], { path: '/a/b' }],
    ['the shortest export path', ['--path', '/'], { path: '/' }],
  ])('%s', async (_what, args, expected) => {
    const { exported, plan } = await ground();
    const planned = await plan(exported, ...args);
    expect(planned).toMatchObject({ status: 0, stderr: '', plan: { directory: exported, ...expected } });
  });

  test('a symbolic link serves its target, whose state folder stays the same; another directory has another one', async () => {
    const { top, exported, plan } = await ground();
    await symlink(exported, join(top, 'link'));
    const states = await Promise.all([exported, join(top, 'link'), join(top, 'states')].map((path) => plan(path)));
    const [direct, linked, states2] = states.map((planned) => planned.plan);
    expect(linked).toEqual(direct);
    expect(states2).toBeUndefined();
    await mkdir(join(top, 'second'));
    expect((await plan(join(top, 'second'))).plan?.state).not.toBe(direct?.state);
  });

  test('every option reaches the server', async () => {
    const { exported, plan } = await ground();
    const ids = ['--map-uid', '1000:2000', '--map-uid', '5:6', '--map-gid', '1:2'];
    const { options } = await plan(
      exported,
      ...ids,
      '--read-only',
      '--async',
      '--privileged-ports',
      '--portmapper',
      '111',
    );
    expect(options).toMatchObject({
      users: [
        { client: 1000, here: 2000 },
        { client: 5, here: 6 },
      ],
      groups: [{ client: 1, here: 2 }],
      readOnly: true,
      async: true,
      privilegedPorts: true,
      portmapper: 111,
    });
  });
});

describe.skipIf(lacks('linux'))('an NFS server refuses', () => {
  test.each<readonly [string, readonly string[], number, string, string]>([
    ['a missing directory', ['DIR/none'], 4, 'directory DIR/none not found', 'nfs-directory-missing'],
    ['a file instead of a directory', ['DIR/file'], 2, 'DIR/file is not a directory', 'nfs-directory-invalid'],
    ['a path below a file', ['DIR/file/x'], 2, 'DIR/file/x is not a directory', 'nfs-directory-invalid'],
    ['to start without a directory', [], 2, "missing required argument 'dir'", 'usage'],
    ['an invalid port', ['DIR', '--port', '65536'], 2, "'65536' is not a valid number for --port", 'number-invalid'],
    ['an invalid network', ['DIR', '--allow', '10.0.0/8'], 2, '"10.0.0/8" is not a network', 'nfs-network-invalid'],
    [
      'to listen on all addresses without --allow',
      ['DIR', '--host', '0.0.0.0'],
      2,
      'other hosts can reach 0.0.0.0',
      'nfs-open-to-all',
    ],
    [
      'to listen on a host name without --allow',
      ['DIR', '--host', 'example.org'],
      2,
      'other hosts can reach example.org',
      'nfs-open-to-all',
    ],
    [
      'an export path without a slash',
      ['DIR', '--path', 'export'],
      2,
      "'export' is not a valid export path",
      'nfs-path-invalid',
    ],
    [
      'an export path with ..',
      ['DIR', '--path', '/a/../b'],
      2,
      "'/a/../b' is not a valid export path",
      'nfs-path-invalid',
    ],
    [
      'a state folder in the exported directory',
      ['DIR', '--state', 'DIR/state'],
      2,
      'is inside the exported directory DIR',
      'nfs-state-exported',
    ],
    [
      'a state folder there through a symbolic link',
      ['DIR', '--state', 'DIR/../link'],
      2,
      'is inside the exported directory DIR',
      'nfs-state-exported',
    ],
    ['a file as the state folder', ['DIR', '--state', 'DIR/../f'], 3, 'cannot create or write', 'nfs-state-unusable'],
    ['an unknown squash mode', ['DIR', '--squash', 'some'], 2, "argument 'some' is invalid", 'usage'],
    [
      'an invalid mapping',
      ['DIR', '--map-uid', '5'],
      2,
      "'5' is not a valid mapping for --map-uid",
      'nfs-mapping-invalid',
    ],
    [
      'an invalid group id in a mapping',
      ['DIR', '--map-gid', '1:4294967295'],
      2,
      'for --map-gid',
      'nfs-mapping-invalid',
    ],
    [
      'a certificate without its key',
      ['DIR', '--tls-cert', 'DIR/file'],
      2,
      'TLS requires a certificate and its key',
      'nfs-tls-incomplete',
    ],
    [
      'TLS without a server certificate',
      ['DIR', '--tls-ca', 'DIR/file'],
      2,
      'TLS requires a certificate',
      'nfs-tls-incomplete',
    ],
    [
      '--tls-confine without --tls-ca',
      ['DIR', '--tls-confine', 'keeper'],
      2,
      '--tls-confine requires --tls-ca',
      'nfs-tls-unknown-callers',
    ],
    [
      '--tls-optional without a certificate',
      ['DIR', '--tls-optional'],
      2,
      'TLS requires a certificate',
      'nfs-tls-incomplete',
    ],
    ['a missing certificate', ['DIR', '--tls-cert', 'DIR/x', '--tls-key', 'DIR/x'], 2, 'x (ENOENT)', 'nfs-tls-file'],
    [
      'a file without a certificate',
      ['DIR', '--tls-cert', 'DIR/file', '--tls-key', 'DIR/file'],
      2,
      'no certificate in PEM format',
      'nfs-tls-invalid',
    ],
  ])('%s', async (_what, args, status, message, reason) => {
    const { top, exported, plan } = await ground();
    await writeFile(join(top, 'f'), '');
    await symlink(exported, join(top, 'link'));
    const refused = await plan(...args.map((arg) => arg.replace('DIR', exported)));
    expect(refused, refused.stderr).toMatchObject({ status, plan: undefined });
    const problem = JSON.parse(refused.stderr);
    expect(problem).toMatchObject({ reason });
    expect(problem.detail).toContain(message.replaceAll('DIR', exported));
    expect(problem.action).toMatch(/\S/);
    expect(await readdir(exported)).toEqual(['file']);
  });
});

describe.skipIf(lacks('linux', 'openssl'))('certificates', () => {
  /** A self-signed certificate with its key. */
  function certificate(
    folder: string,
    name: string,
    ...more: string[]
  ): { readonly cert: string; readonly key: string } {
    const [key, cert] = [join(folder, `${name}.key`), join(folder, `${name}.pem`)];
    const how = [
      'req',
      '-x509',
      '-newkey',
      'ec',
      '-pkeyopt',
      'ec_paramgen_curve:P-256',
      '-nodes',
      '-subj',
      `/CN=${name}`,
    ];
    execFileSync('openssl', [...how, ...more, '-keyout', key, '-out', cert], { stdio: 'pipe' });
    return { cert, key };
  }

  test('a key must belong to its certificate, and should not be readable by everybody', async () => {
    const { top, exported, plan } = await ground();
    const [one, two] = [certificate(top, 'one'), certificate(top, 'two')];
    const refused = await plan(exported, '--tls-cert', one.cert, '--tls-key', two.key);
    expect(JSON.parse(refused.stderr)).toMatchObject({
      reason: 'nfs-tls-mismatch',
      detail: `the key in ${two.key} does not belong to the certificate in ${one.cert}`,
    });
    const good = { tlsCert: one.cert, tlsKey: one.key, tlsOptional: false };
    expect(await readTls(good)).toMatchObject({ required: true, notes: [] });
    await chmod(one.key, 0o644);
    expect((await readTls(good))?.notes).toEqual([`${one.key} is readable by every user; run: chmod 600 ${one.key}`]);
  });

  test('warns about an expired certificate before a client rejects it', async () => {
    const { top } = await ground();
    const { cert, key } = certificate(top, 'short', '-days', '2');
    const notesAt = async (days: number): Promise<readonly string[] | undefined> =>
      (await readTls({ tlsCert: cert, tlsKey: key, tlsOptional: false }, Date.now() + days * 86_400_000))?.notes;
    expect(await notesAt(1)).toEqual([]);
    expect(await notesAt(3)).toEqual([expect.stringMatching(/ expired on .*; clients will reject it$/)]);
    expect(await notesAt(-1)).toEqual([expect.stringMatching(/ is not valid before /)]);
  });

  test('--tls-ca and --tls-optional exclude each other', async () => {
    const { top, exported, plan } = await ground();
    const { cert, key } = certificate(top, 'one');
    const options = [exported, '--tls-cert', cert, '--tls-key', key, '--tls-ca', cert];
    expect((await plan(...options)).plan).toMatchObject({
      host: '127.0.0.1',
      isOwnOnly: false,
      squash: 'root',
      tls: { required: true, options: { requestCert: true, rejectUnauthorized: true } },
    });
    expect(JSON.parse((await plan(...options, '--tls-optional')).stderr).reason).toBe('nfs-tls-contradictory');
    expect((await plan(...options, '--host', '0.0.0.0')).plan?.host).toBe('0.0.0.0');
  });
});
