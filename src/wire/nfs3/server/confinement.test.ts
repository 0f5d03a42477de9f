import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { beforeAll, describe, expect, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { lacks } from '#testbed/lacks.ts';
import { certificate } from '#testing/certificate.ts';
import { type OwnServer, startOwnServer } from '#testing/own-nfs-server.ts';
import type { RpcClient } from '../../rpc/client.ts';
import { createNfsClient, type NfsClient } from '../client.ts';
import { mnt } from '../mount.ts';
import { lookup } from '../procedures.ts';
import { type FileHandle, nameOf, nfsProgram, nfsVersion, stability } from '../structures.ts';

const textOf = async (nfs: NfsClient, file: FileHandle): Promise<string> => {
  const into = Buffer.alloc(100);
  return into.toString('utf8', 0, (await nfs.read(file, 0, into)).count);
};
const accessDenied = { statusName: 'ACCES' };

describe.skipIf(lacks('linux', 'openssl'))('a caller whose certificate is confined to volumes', () => {
  let [server, agent, keeper]: ReturnType<typeof certificate>[] = [];
  beforeAll(() => {
    [server, agent, keeper] = ['server', 'agent', 'keeper'].map((name) => certificate(name));
  });

  interface TestSetup {
    readonly own: OwnServer;
    readonly control: NfsClient;
    readonly root: FileHandle;
    readonly confined: NfsClient;
    readonly keeperRpc: RpcClient;
    /** The handle of what is at a path, as a caller finds it that is not confined. */
    find(...names: readonly string[]): Promise<FileHandle>;
  }

  async function setUp(): Promise<TestSetup> {
    const ca = [agent?.cert, keeper?.cert].join('\n');
    const options = { ...server, ca, requestCert: true, rejectUnauthorized: true };
    const own = await startOwnServer({ tls: { options, required: true }, confined: ['keeper'] });
    for (const folder of ['quota/id-a', 'trash/id-b', 'locks'])
      mkdirSync(join(own.directory, '.stowage', folder), { recursive: true });
    for (const volume of ['a', 'group/b', 'group/c']) mkdirSync(join(own.directory, volume), { recursive: true });
    for (const file of ['a/file', 'a.meta', 'group/b/file', '.stowage/store.json', '.stowage/quota/id-a/base'])
      writeFileSync(join(own.directory, file), file);
    const withCertificate = (clientCertificate: typeof agent) => ({
      tls: { options: { ca: server?.cert, ...clientCertificate }, program: nfsProgram, version: nfsVersion },
    });
    const { nfs: control, root } = await own.mount(withCertificate(agent));
    const keeperRpc = own.rpc(withCertificate(keeper));
    return {
      own,
      control,
      root,
      keeperRpc,
      confined: createNfsClient(keeperRpc, systemClock()),
      find: async (...names) => {
        let at = root;
        for (const name of names) at = (await control.lookup(at, name)).handle;
        return at;
      },
    };
  }

  test('can use the volume and the ledger whose handles it has', async () => {
    const { own, confined, find } = await setUp();
    const volume = await find('a');
    const { handle: file } = await confined.lookup(volume, 'file');
    expect(await textOf(confined, file)).toBe('a/file');
    const { handle: createdFolder } = await confined.mkdir(volume, 'made', {});
    await confined.rename({ directory: volume, name: 'file' }, { directory: createdFolder ?? volume, name: 'moved' });
    expect(readFileSync(join(own.directory, 'a', 'made', 'moved'), 'utf8')).toBe('a/file');
    const ledger = await find('.stowage', 'quota', 'id-a');
    const { handle: base } = await confined.lookup(ledger, 'base');
    await confined.write(base, 0, Buffer.from('counted'), stability.fileSync);
    expect(readFileSync(join(own.directory, '.stowage/quota/id-a/base'), 'utf8')).toMatch(/^counted/);
    expect((await confined.fsstat(volume)).totalBytes).toBeGreaterThan(0n);
  });

  test('cannot reach any other part of .stowage by any handle', async () => {
    const { confined, find } = await setUp();
    const controlPaths = [[], ['store.json'], ['trash'], ['trash', 'id-b'], ['locks'], ['quota']];
    for (const names of controlPaths) {
      const handle = await find('.stowage', ...names);
      await expect(confined.getattr(handle), names.join('/')).rejects.toMatchObject(accessDenied);
    }
    const trash = await find('.stowage', 'trash');
    await expect(confined.mkdir(trash, 'more', {})).rejects.toMatchObject(accessDenied);
    const to = { directory: await find('a'), name: 'taken' };
    await expect(confined.rename({ directory: trash, name: 'id-b' }, to)).rejects.toMatchObject(accessDenied);
    await expect(confined.link(await find('.stowage', 'store.json'), to)).rejects.toMatchObject(accessDenied);
  });

  test('cannot reach the exported directory or any directory above its volume', async () => {
    const { confined, keeperRpc, root, find } = await setUp();
    await expect(confined.getattr(root)).rejects.toMatchObject(accessDenied);
    await expect(confined.lookup(root, 'a')).rejects.toMatchObject(accessDenied);
    await expect(
      confined.rename({ directory: root, name: '.stowage' }, { directory: root, name: 'x' }),
    ).rejects.toMatchObject(accessDenied);
    for (const volume of [await find('a'), await find('group', 'b')])
      await expect(keeperRpc.call(lookup, { directory: volume, name: '..' })).rejects.toMatchObject(accessDenied);
  });

  test('gets no handle of the parent directory, also after another caller has listed the directory', async () => {
    const { control, confined, find } = await setUp();
    const volume = await find('group', 'b');
    const parentHandle = async (nfs: NfsClient): Promise<unknown> => {
      const { entries } = await nfs.readdirplus({ directory: volume, cookie: 0n, verifier: 0n, bytes: 4096 });
      return entries.find((entry) => nameOf(entry) === '..')?.handle;
    };
    expect(await parentHandle(control)).toEqual(await find('group'));
    expect(await parentHandle(confined)).toBeUndefined();
    expect(await parentHandle(control)).toEqual(await find('group'));
  });

  test('cannot mount', async () => {
    const { keeperRpc } = await setUp();
    for (const path of ['/', '/a', '/.stowage'])
      await expect(keeperRpc.call(mnt, path), path).rejects.toMatchObject(accessDenied);
  });

  test('keeps its rights across a restart of the server, and gets no others', async () => {
    const { own, confined, keeperRpc, find } = await setUp();
    const [volume, file, storeFile] = [await find('a'), await find('a', 'file'), await find('.stowage', 'store.json')];
    await own.restart();
    expect(await textOf(confined, file)).toBe('a/file');
    await expect(confined.getattr(storeFile)).rejects.toMatchObject(accessDenied);
    await expect(keeperRpc.call(lookup, { directory: volume, name: '..' })).rejects.toMatchObject(accessDenied);
  });

  test('loses access to a volume that is moved to the trash', async () => {
    const { control, root, confined, find } = await setUp();
    const [volume, file] = [await find('a'), await find('a', 'file')];
    await confined.getattr(file);
    const trash = await find('.stowage', 'trash', 'id-b');
    await control.rename({ directory: root, name: 'a' }, { directory: trash, name: 'data' });
    for (const handle of [volume, file]) await expect(confined.getattr(handle)).rejects.toMatchObject(accessDenied);
  });
});
