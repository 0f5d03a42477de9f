import { execFile } from 'node:child_process';
import { copyFile, mkdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { type FarNetwork, makeFarNetwork } from '#testing/network-namespaces.ts';
import {
  createServerFolders,
  dataPath,
  mountsIn,
  runCli,
  startTestServer,
  waitUntilServing,
} from './nfs-mount-fixture.ts';
import { createNfsServeFixture } from './nfs-serve-fixture.ts';

const run = promisify(execFile);

/** Checks that the mounted volume and the exported folder show the same files, in both directions. */
async function expectSameFiles(mountPoint: string, exported: string): Promise<void> {
  await run('sh', ['-c', 'echo here > "$1/from-here"', 'sh', mountPoint], { timeout: 10_000 });
  expect(await readFile(join(exported, 'from-here'), 'utf8')).toBe('here\n');
  await writeFile(join(exported, 'from-there'), 'there\n');
  expect((await run('cat', [join(mountPoint, 'from-there')], { timeout: 10_000 })).stdout).toBe('there\n');
}

describe.skipIf(lacks('linux', 'root', 'mount', 'fuse', 'openssl'))(
  'the data path’s connection to the NFS server',
  () => {
    test('uses TLS, and only the data path gets the certificates', { timeout: 60_000 }, async () => {
      const { top: fixtureFolder, exported, serve } = await createNfsServeFixture();
      const createCertificate = async (name: string): Promise<readonly [cert: string, key: string]> => {
        const [cert, key] = [join(fixtureFolder, `${name}.pem`), join(fixtureFolder, `${name}.key`)];
        await run('openssl', [
          'req',
          '-x509',
          '-newkey',
          'ec',
          '-pkeyopt',
          'ec_paramgen_curve:prime256v1',
          '-nodes',
          '-days',
          '2',
          '-subj',
          `/CN=${name}`,
          '-addext',
          'subjectAltName=IP:127.0.0.1',
          '-keyout',
          key,
          '-out',
          cert,
        ]);
        return [cert, key];
      };
      const [cert, key] = await createCertificate('server');
      const [ownCert, ownKey] = await createCertificate('client');
      const folders = await createServerFolders();
      const nfsServer = await serve(['--tls-cert', cert, '--tls-key', key, '--tls-ca', ownCert, '--squash', 'none'], {
        env: { STOWAGE_SOCKET: folders.socket },
      });
      const tls = join(folders.top, 'tls');
      await mkdir(tls, { mode: 0o700 });
      await copyFile(cert, join(tls, 'ca.pem'));
      await copyFile(ownCert, join(tls, 'client.pem'));
      await copyFile(ownKey, join(tls, 'client.key'));
      const server = await startTestServer(folders);
      await runCli(server, 'store', 'add', 'silver', nfsServer.uri.replace('tls=/FOLDER', `tls=${tls}`));
      await runCli(server, 'volume', 'create', 'silver/photos');
      const mountPoint = join(folders.top, 'mnt');
      await runCli(server, 'mount', 'silver/photos', mountPoint);
      await expectSameFiles(mountPoint, join(exported, 'photos'));
      const { pid } = await waitUntilServing(server);
      process.kill(pid, 'SIGKILL');
      await expectSameFiles(mountPoint, join(exported, 'photos'));
      const secret = (await readFile(ownKey, 'utf8')).split('\n')[1] ?? '';
      expect(secret.length).toBeGreaterThan(40);
      const answers = await Promise.all(
        ['/v1/operations', '/v1/mounts', '/v1/client', '/v1/stores'].map(
          async (path) => (await server.api('GET', path)).body,
        ),
      );
      const commands = await run('sh', ['-c', 'cat /proc/[0-9]*/cmdline 2>/dev/null | tr "\\0" " "; true'], {
        maxBuffer: 1e8,
      });
      const files = ['s/state.db', 's/state.db-wal', 'r/keepers/host/log'].map((name) => join(folders.top, name));
      const written = await Promise.all(files.map((file) => readFile(file, 'latin1').catch(() => '')));
      expect(written.join('').length).toBeGreaterThan(10_000);
      for (const text of [JSON.stringify(answers), commands.stdout, server.output(), ...written])
        expect(text.includes(secret)).toBe(false);
      await runCli(server, 'unmount', mountPoint);
      expect(mountsIn(folders.top)).toEqual([]);
    });

    test('comes from a port below 1024, with CAP_NET_BIND_SERVICE and no other capability', {
      timeout: 60_000,
    }, async () => {
      const { exported, serve } = await createNfsServeFixture();
      const folders = await createServerFolders();
      const nfsServer = await serve([], { env: { STOWAGE_SOCKET: folders.socket } });
      const server = await startTestServer(folders);
      await runCli(server, 'store', 'add', 'silver', `${nfsServer.uri}&sourceport=privileged`);
      await runCli(server, 'volume', 'create', 'silver/photos');
      const mountPoint = join(folders.top, 'mnt');
      await runCli(server, 'mount', 'silver/photos', mountPoint);
      await expectSameFiles(mountPoint, join(exported, 'photos'));
      const { pid } = await waitUntilServing(server);
      const status = await readFile(`/proc/${pid}/status`, 'utf8');
      // Bit 10 is CAP_NET_BIND_SERVICE.
      expect(status).toMatch(/^CapEff:\t0{13}400$/m);
      expect(status).toMatch(/^CapBnd:\t0{13}400$/m);
      expect(status).toMatch(/^Uid:\t6[1-5]\d{3}\t/m);
      await runCli(server, 'unmount', mountPoint);
    });
  },
);

describe.skipIf(lacks('linux', 'root', 'mount', 'fuse', 'netns'))('a store in another network', () => {
  let far: FarNetwork;
  beforeAll(async () => {
    far = await makeFarNetwork();
  });
  afterAll(() => far[Symbol.asyncDispose]());

  test('is mounted in that network namespace, by a data path of its own', { timeout: 60_000 }, async () => {
    const folders = await createServerFolders();
    const server = await startTestServer(folders);
    const ports = `port=${far.port}&mountport=${far.port}`;
    await runCli(server, 'store', 'add', 'far', `nfs://${far.host}/export?${ports}&network=netns:${far.name}`);
    await runCli(server, 'volume', 'create', 'far/photos');
    const mountPoint = join(folders.top, 'mnt');
    await runCli(server, 'mount', 'far/photos', mountPoint);
    await expectSameFiles(mountPoint, join(far.exported, 'photos'));
    const { pid } = await waitUntilServing(server);
    const namespaceOf = async (processId: string): Promise<string> =>
      (await run('readlink', [`/proc/${processId}/ns/net`])).stdout;
    expect(await namespaceOf(String(pid))).not.toBe(await namespaceOf('self'));
    process.kill(pid, 'SIGKILL');
    await expectSameFiles(mountPoint, join(far.exported, 'photos'));
    await runCli(server, 'client', 'upgrade');
    await expectSameFiles(mountPoint, join(far.exported, 'photos'));
    await runCli(server, 'unmount', mountPoint);
    expect(await dataPath(server)).toMatchObject({ mounts: 0 });
  });
});
