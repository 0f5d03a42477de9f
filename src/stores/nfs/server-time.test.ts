import { mkdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { createConnect } from '#stores/nfs/connect.ts';
import { createNfsStoreKind } from '#stores/nfs/kind.ts';
import { startGanesha } from '#testbed/ganesha.ts';
import { lacks } from '#testbed/lacks.ts';
import { scope } from '#testing/contracts/store.ts';
import { portsOf } from '#testing/ganesha-folders.ts';
import { quickFolder } from '#testing/nfs-contents.ts';
import { openNfs } from '#testing/nfs-store.ts';
import { interceptCalls } from '#testing/nfs-tap.ts';
import { volumeSpec } from '#testing/volume-spec.ts';
import { NfsError, nfsStatus } from '#wire/nfs3/index.ts';
import { createNfsServer } from '#wire/nfs3/server/server.ts';
import { serverTime } from './server-time.ts';

const day = 86_400_000;
const toleranceMs = 60_000;
const trashOptions = { deletedAt: 1, retention: 5 * day };

describe('the time for the expiry of the trash', () => {
  test('is that of our own server', async () => {
    const parent = quickFolder('server-time');
    const [directory, state] = [join(parent, 'exported'), join(parent, 'state')];
    mkdirSync(directory);
    const serverOptions = { clock: systemClock(), directory, state, port: 0, path: '/', squash: 'none' } as const;
    const server = await createNfsServer({ ...serverOptions, onError: () => undefined });
    const options = { port: `${server.port}`, mountport: `${server.port}` };
    const store = await openNfs({ uri: `nfs://${server.host}/`, options });
    onTestFinished(async () => {
      await store.close();
      await server.close();
      rmSync(parent, { recursive: true, force: true });
    });
    const before = Date.now();
    const expiresAt = await store.trash.put(await store.create(volumeSpec('a'), scope), trashOptions, scope);
    expect(expiresAt).toBeGreaterThan(before + 5 * day - toleranceMs);
    expect(expiresAt).toBeLessThan(Date.now() + 5 * day + toleranceMs);
  });

  describe.skipIf(lacks('ganesha'))('on nfs-ganesha', () => {
    let parent: string;
    let server: Awaited<ReturnType<typeof startGanesha>>;
    beforeAll(async () => {
      parent = quickFolder('server-time');
      mkdirSync(join(parent, 'export'));
      writeFileSync(join(parent, 'clock'), `${(-1000 * day) / 1000}`);
      const exports = [{ path: join(parent, 'export'), tag: 'export' }] as const;
      server = await startGanesha({ exports, clockFile: join(parent, 'clock'), signal: scope.signal });
    });
    afterAll(async () => {
      await server[Symbol.asyncDispose]();
      rmSync(parent, { recursive: true, force: true });
    });

    test('is that of the server, whatever the clock of this machine', async () => {
      const store = await openNfs({ uri: `nfs://${server.host}${join(parent, 'export')}`, options: portsOf(server) });
      onTestFinished(() => store.close());
      const before = Date.now();
      const expiresAt = await store.trash.put(await store.create(volumeSpec('a'), scope), trashOptions, scope);
      expect(expiresAt).toBeGreaterThan(before - 995 * day - toleranceMs);
      expect(expiresAt).toBeLessThan(Date.now() - 995 * day + toleranceMs);
    });

    test('comes from a file if the server denies changing the folder', async () => {
      const folder = join(parent, 'export', 'refusing');
      mkdirSync(folder);
      const connect = interceptCalls(createConnect(systemClock()), ({ procedure, make }) =>
        procedure === 'setattr' ? Promise.reject(new NfsError('SETATTR', nfsStatus.PERM, false)) : make(),
      );
      const kind = createNfsStoreKind(systemClock(), connect);
      const store = await openNfs({ uri: `nfs://${server.host}${folder}`, options: portsOf(server), kind });
      onTestFinished(() => store.close());
      const before = Date.now();
      const expiresAt = await store.trash.put(await store.create(volumeSpec('a'), scope), trashOptions, scope);
      expect(expiresAt).toBeGreaterThan(before + 5 * day - toleranceMs);
      expect(expiresAt).toBeLessThan(Date.now() + 5 * day + toleranceMs);
    });
  });
});

describe('reading the server’s time', () => {
  const refusing = (code: string) => (): Promise<never> => Promise.reject(Object.assign(new Error(code), { code }));

  test('returns undefined on a full server', async () => {
    const files = { touch: refusing('EPERM'), write: refusing('ENOSPC'), unlink: async () => true };
    expect(await serverTime(files, '/tmp', () => '/tmp/x')).toBeUndefined();
  });

  test('does not fall back to a file if the server does not answer', async () => {
    const withoutReply = (): Promise<never> => Promise.reject(new Error('no answer'));
    const files = { touch: withoutReply, write: async () => 7, unlink: async () => true };
    await expect(serverTime(files, '/tmp', () => '/tmp/x')).rejects.toThrow('no answer');
  });
});
