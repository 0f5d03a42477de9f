import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { certificate } from '#testing/certificate.ts';
import { type ConnectionFault, startFaultProxy } from '#testing/fault-proxy.ts';
import { startKeeperMounts } from '#testing/keeper-mounts.ts';
import { startOwnServer } from '#testing/own-nfs-server.ts';
import { run } from '#testing/workloads.ts';
import { nfsProgram, nfsVersion } from '#wire/nfs3/structures.ts';

describe.skipIf(lacks('root', 'fuse', 'openssl'))('a TLS server that restarts', () => {
  test.each<ConnectionFault>(['resets', 'closes in the handshake'])(
    'hard mounts continue after a server that meanwhile %s',
    { timeout: 60_000 },
    async (fault) => {
      const { key, cert } = certificate('server');
      const server = await startOwnServer({ tls: { options: { key, cert }, required: true } });
      const proxy = await startFaultProxy(server.server);
      const tlsUpgrade = { options: { ca: cert }, program: nfsProgram, version: nfsVersion };
      const { root } = await server.mount({ tls: tlsUpgrade });
      await using mounts = await startKeeperMounts();
      const source = { host: proxy.host, port: proxy.port, root: Buffer.from(root).toString('base64') };
      const tls = { ca: String(cert), certificate: undefined, key: undefined, serverName: undefined };
      const mount = await mounts.mount(source, { tls, cacheMs: 0 });
      writeFileSync(join(server.directory, 'file'), 'data');
      await run('cat', [mount.on('file')]);
      proxy.fault = fault;
      proxy.cut();
      const before = proxy.connections;
      const work = Promise.all([
        run('cat', [mount.on('file')]),
        run('mkdir', [mount.on('directory')]),
        run('sh', ['-c', 'echo new >"$1"', 'sh', mount.on('new')]),
      ]);
      work.catch(() => undefined);
      await expect.poll(() => proxy.connections - before, { timeout: 20_000 }).toBeGreaterThan(8);
      expect(await mount.waiting()).toBeGreaterThanOrEqual(3);
      proxy.fault = 'passes';
      expect((await work)[0].stdout).toBe('data');
      expect(readdirSync(server.directory).toSorted()).toEqual(['directory', 'file', 'new']);
      expect(readFileSync(join(server.directory, 'new'), 'utf8')).toBe('new\n');
      await run('umount', [mount.at]);
    },
  );
});

describe.skipIf(lacks('root', 'fuse', 'openssl'))('a mount whose certificate is confined to volumes', () => {
  test('supports all that applications do, and enforces its quota', { timeout: 60_000 }, async () => {
    const [server, agent, keeper] = [certificate('server'), certificate('agent'), certificate('keeper')];
    const options = { ...server, ca: `${agent.cert}${keeper.cert}`, requestCert: true, rejectUnauthorized: true };
    const own = await startOwnServer({ tls: { options, required: true }, confined: ['keeper'] });
    mkdirSync(join(own.directory, 'volume'));
    mkdirSync(join(own.directory, '.stowage', 'quota', 'id'), { recursive: true });
    const tlsUpgrade = { options: { ca: server.cert, ...agent }, program: nfsProgram, version: nfsVersion };
    const { nfs, root } = await own.mount({ tls: tlsUpgrade });
    const find = async (...names: readonly string[]): Promise<string> => {
      let at = root;
      for (const name of names) at = (await nfs.lookup(at, name)).handle;
      return Buffer.from(at).toString('base64');
    };
    const tls = { ca: `${server.cert}`, certificate: `${keeper.cert}`, key: `${keeper.key}`, serverName: undefined };
    const quota = { bytes: 8 * 1024 * 1024, ledger: await find('.stowage', 'quota', 'id'), host: 'node-1' };
    const { host, port } = own.server;
    await using mounts = await startKeeperMounts();
    const mount = await mounts.mount({ host, port, root: await find('volume') }, { tls, quota });
    const script =
      'mkdir -p a/b && echo text >a/b/file && mv a/b c && ln c/file linked && ln -s c/file soft && cat soft && ls -la . c && cd c && ls -la ..';
    const { stdout } = await run('sh', ['-c', `cd "$1" && ${script}`, 'sh', mount.at]);
    expect(stdout).toContain('text');
    expect(readFileSync(join(own.directory, 'volume', 'linked'), 'utf8')).toBe('text\n');
    const tooMuch = run('dd', ['if=/dev/zero', `of=${mount.on('large')}`, 'bs=1M', 'count=16', 'conv=fsync']);
    await expect(tooMuch).rejects.toThrow(/[Qq]uota exceeded/);
    expect(readdirSync(join(own.directory, '.stowage', 'quota', 'id'))).toContain('base');
    await run('rm', ['-rf', mount.on('a'), mount.on('c')]);
    expect(readdirSync(join(own.directory, 'volume')).toSorted()).toEqual(['large', 'linked', 'soft']);
    await run('umount', [mount.at]);
  });
});
