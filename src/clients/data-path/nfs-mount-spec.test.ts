import { mkdtempDisposable, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import type { NfsConnection, Source } from '#core/model.ts';
import { createNfsClient, type NfsClientParts } from '../kinds/nfs.ts';
import { mountSpecOf } from './nfs-mount-spec.ts';

const way: NfsConnection = {
  client: 'built-in',
  addresses: ['10.0.0.1'],
  port: 2049,
  mountPort: undefined,
  root: 'AA==',
  connections: 1,
  sourcePorts: undefined,
  tls: undefined,
  network: undefined,
  squash: 'none',
  uid: 0,
  gid: 0,
  softMs: undefined,
  maxRead: 4096,
  maxWrite: 4096,
  locks: 'node',
  readOnly: false,
  quota: undefined,
};
const sourceWith = (more: Partial<NfsConnection>) =>
  ({ kind: 'nfs', hosts: ['nas'], path: '/export/a', way: { ...way, ...more } }) satisfies Source;
const quota = { bytes: 1024, ledger: 'BAUG' };

test("the spec contains the quota and the node's instance", async () => {
  expect((await mountSpecOf(sourceWith({ quota }), 'this-stowage')).quota).toEqual({ ...quota, host: 'this-stowage' });
  expect((await mountSpecOf(sourceWith({}), 'this-stowage')).quota).toBeUndefined();
});

test('the kernel checks permissions, unless all users are a single user on the server', async () => {
  for (const squash of ['none', 'root'] as const) {
    const spec = await mountSpecOf(sourceWith({ squash }), 'this-stowage');
    expect([spec.version, spec.checks]).toEqual([1, undefined]);
  }
  expect(await mountSpecOf(sourceWith({ squash: 'all' }), 'this-stowage')).toMatchObject({
    version: 2,
    checks: 'server',
  });
});

test('applications on a soft mount wait once more for each retry', async () => {
  expect((await mountSpecOf(sourceWith({ softMs: 5_000 }), 'this-stowage')).softMs).toBe(5_000);
  expect((await mountSpecOf(sourceWith({ softMs: 5_000, retries: 3 }), 'this-stowage')).softMs).toBe(20_000);
  expect((await mountSpecOf(sourceWith({ retries: 3 }), 'this-stowage')).softMs).toBeUndefined();
});

test('a data path that does not know sync does not serve a volume that requires it', async () => {
  expect(await mountSpecOf(sourceWith({ sync: true }), 'this-stowage')).toMatchObject({
    version: 3,
    sync: true,
    checks: 'kernel',
  });
  expect(await mountSpecOf(sourceWith({ sync: true, squash: 'all' }), 'this-stowage')).toMatchObject({
    version: 3,
    sync: true,
    checks: 'server',
  });
  expect((await mountSpecOf(sourceWith({}), 'this-stowage')).sync).toBeUndefined();
});

test('the spec contains the group that owns all files', async () => {
  expect((await mountSpecOf(sourceWith({ squash: 'all', group: 2000 }), 'this-stowage')).group).toBe(2000);
  expect((await mountSpecOf(sourceWith({ squash: 'all' }), 'this-stowage')).group).toBeUndefined();
  // Otherwise each file has its own group, and the kernel checks that.
  expect((await mountSpecOf(sourceWith({ squash: 'none', group: 2000 }), 'this-stowage')).group).toBeUndefined();
});

test("the system's client refuses a volume with an enforced size", () => {
  const { validate } = createNfsClient({} as NfsClientParts);
  expect(() => validate?.(sourceWith({ client: 'host', quota }))).toThrow(
    expect.objectContaining({ code: 'unsupported', reason: 'enforcement-unsupported' }),
  );
  expect(() => validate?.(sourceWith({ client: 'host' }))).not.toThrow();
  expect(() => validate?.(sourceWith({ quota }))).not.toThrow();
});

test('uses the certificate for mounts if there is one, and never combines it with the client key', async () => {
  await using folder = await mkdtempDisposable(join(tmpdir(), 'stowage-spec-'));
  const write = (...names: readonly string[]): Promise<unknown> =>
    Promise.all(names.map((name) => writeFile(join(folder.path, name), name)));
  const readTls = async () => (await mountSpecOf(sourceWith({ tls: { folder: folder.path } }), 'this-stowage')).tls;
  await write('ca.pem');
  expect(await readTls()).toEqual({ ca: 'ca.pem', serverName: 'nas' });
  await write('client.pem', 'client.key');
  expect(await readTls()).toEqual({ ca: 'ca.pem', certificate: 'client.pem', key: 'client.key', serverName: 'nas' });
  await write('mount.pem');
  await expect(readTls()).rejects.toMatchObject({
    message: `the file ${join(folder.path, 'mount.key')} for the store's TLS cannot be read`,
    action: "Create the file, or correct its permissions or the store's option tls.",
  });
  await write('mount.key');
  expect(await readTls()).toEqual({ ca: 'ca.pem', certificate: 'mount.pem', key: 'mount.key', serverName: 'nas' });
  // With half of the pair, it does not fall back to the client certificate, which allows everything.
  await rm(join(folder.path, 'mount.pem'));
  await expect(readTls()).rejects.toMatchObject({
    message: `the file ${join(folder.path, 'mount.pem')} for the store's TLS cannot be read`,
  });
});
