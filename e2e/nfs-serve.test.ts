import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { chmod, chown, mkdir, readdir, readFile, stat, writeFile } from 'node:fs/promises';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { describe, expect, onTestFinished, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { asOrdinaryUser, ordinaryUid } from '#testbed/ordinary-user.ts';
import { openExport, rpcTo, user } from '#testing/nfs-export.ts';
import { mountProgram, mountVersion } from '#wire/nfs3/mount.ts';
import { fileType, nfsProgram, nfsVersion } from '#wire/nfs3/structures.ts';
import type { RpcClientOptions } from '#wire/rpc/client.ts';
import { getPort } from '#wire/rpc/portmap.ts';
import { createNfsServeFixture, type NfsServeProcess } from './nfs-serve-fixture.ts';
import { program, run } from './stowage.ts';

const host = '127.0.0.1';

/** Mounts the export with Stowage's NFS client. */
async function mountExport(
  { port }: Pick<NfsServeProcess, 'port'>,
  options?: Partial<RpcClientOptions>,
): ReturnType<typeof openExport> {
  const open = await openExport({ host, nfsPort: port, mountPort: port }, '/export', { deadlineMs: 5_000, ...options });
  onTestFinished(() => open[Symbol.dispose]());
  return open;
}

describe.skipIf(lacks('linux', 'libnfs'))('stowage nfs serve', () => {
  test('serves the libnfs tools', async () => {
    const { top, exported, serve } = await createNfsServeFixture();
    const serving = await serve();
    await writeFile(join(top, 'file'), 'through the network');
    expect((await run('nfs-cp', [join(top, 'file'), serving.url('/copy')])).status).toBe(0);
    expect(await readFile(join(exported, 'copy'), 'utf8')).toBe('through the network');
    expect((await run('nfs-cat', [serving.url('/copy')])).stdout).toBe('through the network');
    expect((await run('nfs-ls', [serving.url()])).stdout).toMatch(/^-rw.* 19 copy\n$/);
    expect(serving.stderr()).toBe('');
  });

  test.skipIf(lacks('root', 'ordinary-user'))(
    'admits only clients of its own user, unless --allow names others',
    async () => {
      const { exported, serve } = await createNfsServeFixture();
      await chmod(join(exported, '..'), 0o755);
      const asOther = ({ url }: NfsServeProcess): ReturnType<typeof run> => run(...asOrdinaryUser(['nfs-ls', url()]));
      const defaultServer = await serve();
      expect((await run('nfs-ls', [defaultServer.url()])).status).toBe(0);
      expect((await asOther(defaultServer)).status).not.toBe(0);
      const shared = await serve(['--allow', '127.0.0.0/8']);
      expect(await asOther(shared)).toMatchObject({ status: 0 });
      const closedServer = await serve(['--host', host, '--allow', '10.1.2.3']);
      expect((await run('nfs-ls', [closedServer.url()])).status).not.toBe(0);
    },
  );

  test.skipIf(lacks('ipv6'))(
    'is reachable for allowed clients over IPv6, and over IPv4 and IPv6 together',
    async () => {
      const { serve } = await createNfsServeFixture();
      const rootTypeOver = async ({ port }: NfsServeProcess, address: string): Promise<number> => {
        const open = await openExport({ host: address, nfsPort: port, mountPort: port }, '/export', {
          deadlineMs: 5_000,
        });
        onTestFinished(() => open[Symbol.dispose]());
        return (await open.nfs.getattr(open.root)).type;
      };
      const ipv6Server = await serve(['--allow', '::1']);
      expect(ipv6Server.uri).toContain('nfs://[::1]/');
      expect(await rootTypeOver(ipv6Server, '::1')).toBe(fileType.directory);
      const dualStackServer = await serve(['--allow', '::1', '--allow', host]);
      expect(await rootTypeOver(dualStackServer, '::1')).toBe(fileType.directory);
      expect(await rootTypeOver(dualStackServer, host)).toBe(fileType.directory);
    },
  );

  test('lets clients read everything and change nothing with --read-only', async () => {
    const { top, exported, serve } = await createNfsServeFixture();
    await writeFile(join(exported, 'file'), 'kept');
    const serving = await serve(['--read-only']);
    expect((await run('nfs-cat', [serving.url('/file')])).stdout).toBe('kept');
    await writeFile(join(top, 'new'), 'x');
    expect((await run('nfs-cp', [join(top, 'new'), serving.url('/new')])).status).not.toBe(0);
    expect(await readdir(exported)).toEqual(['file']);
  });

  test.skipIf(lacks('root'))('performs calls as the configured user', async () => {
    const { top, exported, serve } = await createNfsServeFixture();
    const allowHost = ['--allow', host];
    await writeFile(join(top, 'f'), 'x');
    const cp = async (serving: NfsServeProcess, to: string, more?: string): Promise<number | undefined> => {
      const { status } = await run('nfs-cp', [join(top, 'f'), serving.url(`/${to}`, more)]);
      return status === 0 ? (await stat(join(exported, to))).uid : undefined;
    };
    const squashed = await serve(allowHost);
    // The server maps the client's root to nobody, who has no write permission there. The client gets the error.
    expect(await cp(squashed, 'as-root')).toBeUndefined();
    expect(squashed.stderr()).toContain(`Run: chown 65534:65534 ${exported}; or, if you trust the clients`);
    expect(await cp(await serve([...allowHost, '--squash', 'none']), 'as-root')).toBe(0);
    await chmod(exported, 0o777);
    expect(await cp(squashed, 'squashed')).toBe(65_534);
    const everybody = await serve([...allowHost, '--squash', 'all', '--anon-uid', '1234', '--anon-gid', '1235']);
    expect(await cp(everybody, 'anonymous', '&uid=1000&gid=1000')).toBe(1234);
    expect((await stat(join(exported, 'anonymous'))).gid).toBe(1235);
    const mapping = await serve([...allowHost, '--map-uid', '1000:2000', '--map-gid', '1000:3000']);
    expect(await cp(mapping, 'mapped', '&uid=1000&gid=1000')).toBe(2000);
    expect((await stat(join(exported, 'mapped'))).gid).toBe(3000);
  });
});

describe.skipIf(lacks('linux'))('stowage nfs serve as a process', () => {
  test('prints what is exported, and how to use it', async () => {
    const { top, exported, serve } = await createNfsServeFixture();
    const { port } = await serve();
    // The port of the first server is in use.
    const serveArgs = ['nfs', 'serve', exported, '--state', join(top, 'state'), '--port', String(port)];
    const refused = await run(program, serveArgs);
    expect(refused).toMatchObject({ status: 5, stdout: '' });
    expect(refused.stderr).toContain(`error: cannot listen on 127.0.0.1:${port}: the port is in use\naction: `);
    const { child, uri, end } = await serve(['--path', '/a b/c']);
    expect(uri).toMatch(/^nfs:\/\/127\.0\.0\.1\/a%20b\/c\?port=(\d+)&mountport=\1$/);
    expect(child.exitCode).toBeNull();
    expect(await end()).toBe(0);
  });

  test.each(['SIGTERM', 'SIGINT'] as const)('stops cleanly on %s, also while a client is connected', async (signal) => {
    const { serve } = await createNfsServeFixture();
    const serving = await serve();
    await mountExport(serving);
    expect(await serving.end(signal)).toBe(0);
    expect(serving.stderr()).toBe('');
  });

  test('ends with the parent process that opened an IPC channel', async () => {
    const { serve } = await createNfsServeFixture();
    const { child } = await serve([], { channel: true });
    const ended = once(child, 'exit');
    child.disconnect();
    expect(await ended).toEqual([0, null]);
  });

  test('ends if the parent process was gone before it started', async () => {
    const { top, exported } = await createNfsServeFixture();
    const args = ['nfs', 'serve', exported, '--port', '0', '--state', join(top, 'state')];
    const child = spawn(program, args, { stdio: ['ignore', 'ignore', 'ignore', 'ipc'], timeout: 30_000 });
    const ended = once(child, 'exit');
    child.disconnect();
    expect(await ended).toEqual([0, null]);
  });

  test('keeps file handles and state valid when it is killed and restarted', async () => {
    const { top, exported, serve } = await createNfsServeFixture();
    await writeFile(join(exported, 'file'), 'kept');
    const first = await serve();
    const { nfs, root } = await mountExport(first);
    const { handle } = await nfs.lookup(root, 'file');
    expect(await first.end('SIGKILL')).toBe('SIGKILL');
    const second = await serve(['--port', String(first.port)]);
    expect((await nfs.getattr(handle)).size).toBe(4);
    await second.end();
    await serve(['--port', String(first.port), '--state', join(top, 'other')]);
    await expect(nfs.getattr(handle)).rejects.toMatchObject({ statusName: 'BADHANDLE' });
  });

  test('answers as a portmapper with --portmapper', async () => {
    const { serve } = await createNfsServeFixture();
    const { port, portmapper } = await serve(['--portmapper', '0']);
    using rpc = rpcTo(host, portmapper ?? 0, { identity: user(0) });
    expect(await rpc.call(getPort, { program: nfsProgram, version: nfsVersion })).toBe(port);
    expect(await rpc.call(getPort, { program: mountProgram, version: mountVersion })).toBe(port);
  });
});

describe.skipIf(lacks('linux', 'ordinary-user'))('stowage nfs serve as an ordinary user', () => {
  test('keeps a secret for each directory in the state folder, and serves only that user', async () => {
    const { top, exported, serve } = await createNfsServeFixture();
    const isRoot = process.getuid?.() === 0;
    const uid = isRoot ? ordinaryUid : (process.getuid?.() ?? 0);
    await mkdir(join(top, 'home'));
    if (isRoot) for (const path of [top, exported, join(top, 'home')]) await chown(path, uid, uid);
    const env = { HOME: join(top, 'home'), XDG_STATE_HOME: join(top, 'home', 'state') };
    const states = join(top, 'home', 'state', 'stowage', 'nfs-server');
    const [file, args] = asOrdinaryUser([program]);
    const serveOptions = { command: [file, ...args], env };
    const serving = await serve(['--state', join(states, 'given')], serveOptions);
    const { nfs, root } = await mountExport(serving);
    await nfs.create(root, 'mine', { mode: 'guarded', set: {} });
    expect((await stat(join(exported, 'mine'))).uid).toBe(uid);
    const serveWithDefaults = (directory: string): ReturnType<typeof run> =>
      run(
        ...asOrdinaryUser([
          'env',
          ...Object.entries(env).map((pair) => pair.join('=')),
          program,
          'nfs',
          'serve',
          directory,
          '--port',
          String(serving.port),
        ]),
      );
    // The server creates the secret before it finds that the port is in use.
    for (const directory of [exported, exported, join(top, 'home', 'state')]) {
      if (directory === exported) expect((await serveWithDefaults(directory)).status).toBe(5);
      else expect((await serveWithDefaults(directory)).stderr).toContain('is inside');
    }
    const secretFolders = (await readdir(states)).filter((name) => name !== 'given');
    expect(secretFolders).toHaveLength(1);
    expect((await stat(join(states, secretFolders[0] ?? ''))).mode & 0o777).toBe(0o700);
  });

  test.skipIf(lacks('root', 'netns'))('may not use ports below 1024', async () => {
    const { top, exported } = await createNfsServeFixture();
    await chown(top, ordinaryUid, ordinaryUid);
    await chmod(exported, 0o755);
    const serve = [program, 'nfs', 'serve', exported, '--state', join(top, 'state')];
    // In its own network namespace: elsewhere, ordinary users may be allowed to use such ports.
    const namespaceArgs = ['--net', 'sh', '-c', 'ip link set lo up && exec "$@"', 'sh'];
    const serveAsOrdinaryUser = (...options: readonly string[]): ReturnType<typeof run> =>
      run('unshare', [...namespaceArgs, ...asOrdinaryUser([...serve, ...options]).flat()]);
    const [low, portmapper] = [
      await serveAsOrdinaryUser('--port', '1023'),
      await serveAsOrdinaryUser('--port', '0', '--portmapper', '111'),
    ];
    expect(low).toMatchObject({ status: 3, stdout: '' });
    expect(low.stderr).toContain(
      '127.0.0.1:1023: only root may use ports below 1024\naction: Run the server as root, or choose',
    );
    expect(portmapper).toMatchObject({ status: 3, stdout: '' });
    expect(portmapper.stderr).toContain(
      '127.0.0.1:111: only root may use ports below 1024\naction: Run the server as root, or omit',
    );
  });
});

describe.skipIf(lacks('linux'))('stowage nfs serve refuses', () => {
  // src/app/nfs-plan.test.ts has the other cases.
  test('a directory that does not exist', async () => {
    const { top } = await createNfsServeFixture();
    expect(await run(program, ['nfs', 'serve', join(top, 'none')])).toEqual({
      status: 4,
      stdout: '',
      stderr: `error: directory ${top}/none not found\naction: Specify an existing directory: stowage nfs serve DIR\n`,
    });
  });

  test('the address of another machine', async () => {
    const { top, exported } = await createNfsServeFixture();
    const options = ['--state', join(top, 'state'), '--host', '192.0.2.1', '--allow', '192.0.2.0/24'];
    const { status, stderr } = await run(program, ['nfs', 'serve', exported, ...options]);
    expect(status).toBe(2);
    expect(stderr).toContain('cannot listen on 192.0.2.1:2049: EADDRNOTAVAIL\naction: Choose an address of this host');
  });

  test('a portmapper where one is already running', async () => {
    const { top, exported } = await createNfsServeFixture();
    const other = createServer().listen(0, host);
    onTestFinished(() => void other.close());
    await once(other, 'listening');
    const { port } = other.address() as { readonly port: number };
    const options = ['--state', join(top, 'state'), '--port', '0', '--portmapper', String(port)];
    const { status, stderr } = await run(program, ['nfs', 'serve', exported, ...options]);
    expect(status).toBe(5);
    expect(stderr).toContain('rpcbind probably uses the port');
  });
});

describe.skipIf(lacks('linux', 'openssl'))('stowage nfs serve with TLS', () => {
  /** A self-signed certificate with its key. */
  function certificate(folder: string, name: string): { readonly cert: string; readonly key: string } {
    const [key, cert] = [join(folder, `${name}.key`), join(folder, `${name}.pem`)];
    const subject = ['-subj', `/CN=${name}`, '-addext', `subjectAltName=IP:${host}`];
    const certificateArgs = [
      'req',
      '-x509',
      '-newkey',
      'ec',
      '-pkeyopt',
      'ec_paramgen_curve:P-256',
      '-nodes',
      '-days',
      '2',
    ];
    execFileSync('openssl', [...certificateArgs, '-keyout', key, '-out', cert, ...subject], { stdio: 'pipe' });
    return { cert, key };
  }
  const nfsPing = { program: nfsProgram, version: nfsVersion };

  test('refuses clients without TLS', async () => {
    const { top, serve } = await createNfsServeFixture();
    const { cert, key } = certificate(top, 'server');
    const serving = await serve(['--tls-cert', cert, '--tls-key', key]);
    expect(serving.uri).toContain('&tls=on');
    await expect(mountExport(serving)).rejects.toMatchObject({ failure: 'denied' });
    const tls = { options: { ca: await readFile(cert) }, ...nfsPing };
    const { nfs, root } = await mountExport(serving, { tls });
    expect((await nfs.getattr(root)).type).toBe(2);
    const optional = await serve(['--tls-cert', cert, '--tls-key', key, '--tls-optional']);
    await mountExport(optional);
    await mountExport(optional, { tls });
  });

  test('admits only clients with a certificate of the given authority if --tls-ca is set', async () => {
    const { top, serve } = await createNfsServeFixture();
    const [server, known, stranger] = ['server', 'known', 'stranger'].map((name) => certificate(top, name));
    const options = ['--tls-cert', server?.cert ?? '', '--tls-key', server?.key ?? '', '--tls-ca', known?.cert ?? ''];
    const serving = await serve([...options, '--squash', 'none']);
    const ca = await readFile(server?.cert ?? '');
    const clientOptions = async (own: typeof known): Promise<object> => ({
      tls: { options: { ca, cert: await readFile(own?.cert ?? ''), key: await readFile(own?.key ?? '') }, ...nfsPing },
      deadlineMs: 1_500,
    });
    await mountExport(serving, await clientOptions(known));
    await expect(mountExport(serving, await clientOptions(stranger))).rejects.toThrow();
    await expect(mountExport(serving, { tls: { options: { ca }, ...nfsPing }, deadlineMs: 1_500 })).rejects.toThrow();
  });
});
