import { chmodSync, chownSync, mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import type { Source } from '#core/model.ts';
import { scope } from '#testing/contracts/store.ts';
import { nfsStoreOnDisk } from '#testing/nfs-store-on-disk.ts';
import { volumeSpec } from '#testing/volume-spec.ts';
import { createNfsServer } from '#wire/nfs3/server/server.ts';
import { createConnect } from './connect.ts';
import type { NfsStoreRoot } from './open-store-root.ts';
import { type NfsOptions, parseOptions } from './options.ts';
import { createWriteAccessCheck } from './write-access.ts';

const asRoot = process.getuid?.() === 0;

/** Runs the check on a directory with that owner and mode, on a server that squashes root or no user. */
async function checkAccess(
  squash: 'root' | 'none',
  owner: { readonly uid: number; readonly mode: number },
  options: Readonly<Record<string, string>> = {},
): Promise<unknown> {
  const parent = mkdtempSync(join(tmpdir(), 'stowage-usable-'));
  onTestFinished(() => rmSync(parent, { recursive: true, force: true }));
  const directory = join(parent, 'exported');
  mkdirSync(directory);
  const clock = systemClock();
  const server = await createNfsServer({
    clock,
    directory,
    state: join(parent, 'state'),
    port: 0,
    path: '/export',
    squash,
    onError: () => undefined,
  });
  onTestFinished(() => server.close());
  chmodSync(directory, owner.mode);
  chownSync(directory, owner.uid, owner.uid);
  const ports = { port: String(server.port), mountport: String(server.port) };
  const parsed: NfsOptions = parseOptions(`nfs://${server.host}/export`, { ...ports, ...options });
  const session = await createConnect(clock)(parsed, () => undefined, scope.signal);
  onTestFinished(() => session.close());
  const root = Buffer.from(await session.mount(scope.signal)).toString('base64');
  const storeRoot = { session, failure: (cause: unknown) => cause } as unknown as NfsStoreRoot;
  const source = {
    kind: 'nfs',
    hosts: [server.host],
    path: '/export',
    way: { root, uid: parsed.uid },
  } as unknown as Source;
  return await createWriteAccessCheck(storeRoot, parsed)(source, scope).catch((thrown: unknown) => thrown);
}

test.runIf(asRoot)('refuses a directory of root on a server with root_squash, and says what to do', async () => {
  expect(await checkAccess('root', { uid: 0, mode: 0o755 })).toMatchObject({
    code: 'denied',
    reason: 'volume-root-squashed',
    message: expect.stringContaining('root_squash'),
    action: expect.stringContaining('squash=root'),
  });
});

test.runIf(asRoot).each([
  [{ uid: 0, mode: 0o755 }, 'root', /^no container could write to the volume: squash=root maps root to user 7/],
  [{ uid: 1000, mode: 0o755 }, 'all', /^no container could write to the volume: squash=all maps every user to user 7/],
] as const)('a directory with %o is refused with squash=%s', async (owner, squash, message) => {
  expect(await checkAccess('none', owner, { squash, uid: '7', gid: '7' })).toMatchObject({
    code: 'denied',
    reason: 'volume-root-squashed',
    message: expect.stringMatching(message),
    action: expect.stringContaining('chown 7'),
  });
});

test.runIf(asRoot)('the fake server answers like a real one', async () => {
  const { store, folder } = await nfsStoreOnDisk({ squash: 'root', uid: '7', gid: '7' });
  const source = await store.source(await store.create(volumeSpec('photos'), scope), scope);
  await store.checkWritable?.(source, scope);
  chownSync(join(folder, 'photos'), 0, 0);
  await expect(store.checkWritable?.(source, scope)).rejects.toMatchObject({ reason: 'volume-root-squashed' });
});

test.runIf(asRoot).each([
  ['on a server without squash', 'none', { uid: 0, mode: 0o755 }, {}],
  ['that all users may write to', 'root', { uid: 0, mode: 0o777 }, {}],
  ['of an ordinary user', 'root', { uid: 1000, mode: 0o755 }, {}],
  ['that is read-only for all users', 'root', { uid: 0, mode: 0o555 }, {}],
  ["that is the store's user's", 'root', { uid: 7, mode: 0o755 }, { squash: 'root', uid: '7', gid: '7' }],
  ['of another ordinary user', 'root', { uid: 1000, mode: 0o755 }, { squash: 'root', uid: '7', gid: '7' }],
] as const)('a directory %s is not refused', async (_, squash, owner, options) => {
  expect(await checkAccess(squash, owner, options)).toBeUndefined();
});
