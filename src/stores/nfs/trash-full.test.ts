import { execFileSync } from 'node:child_process';
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import type { Volume } from '#core/model.ts';
import { createConnect } from '#stores/nfs/connect.ts';
import { createNfsStoreKind } from '#stores/nfs/kind.ts';
import { startGanesha } from '#testbed/ganesha.ts';
import { lacks } from '#testbed/lacks.ts';
import { scope } from '#testing/contracts/store.ts';
import { portsOf } from '#testing/ganesha-folders.ts';
import { quickFolder } from '#testing/nfs-contents.ts';
import { openNfs } from '#testing/nfs-store.ts';
import { shortWaitClock } from '#testing/nfs-tap.ts';
import { volumeSpec } from '#testing/volume-spec.ts';
import type { FileStore } from '../file-store/verbs.ts';

const minute = 60_000;
const day = 24 * 60 * minute;

describe.skipIf(lacks('ganesha', 'mount'))('the trash of a full NFS store', () => {
  let folder: string;
  let server: Awaited<ReturnType<typeof startGanesha>>;
  let store: FileStore;
  const clock = shortWaitClock(systemClock());

  beforeEach(async () => {
    folder = quickFolder('trash-full');
    execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=8m', 'stowage-trash-full', folder]);
    server = await startGanesha({ exports: [{ path: folder, tag: 'export' }], signal: scope.signal });
    const kind = createNfsStoreKind(clock, createConnect(systemClock()));
    store = await openNfs({ uri: `nfs://${server.host}${folder}`, options: portsOf(server), kind });
  });
  afterEach(async () => {
    await store.close();
    await server[Symbol.asyncDispose]();
    execFileSync('umount', [folder]);
    rmSync(folder, { recursive: true });
  });

  const reserve = (): string => join(folder, '.stowage', 'reserve');
  const create = (name: string): Promise<Volume> => store.create(volumeSpec(name, { requestId: name }), scope);
  function fillDisk(): void {
    mkdirSync(join(folder, 'filling'));
    expect(() => writeFileSync(join(folder, 'filling', 'file'), Buffer.alloc(16 << 20))).toThrow('ENOSPC');
  }

  test('accepts volumes, and restores them once there is space', async () => {
    const made = [await create('a'), await create('b')];
    await store.housekeeping.reclaim(scope);
    fillDisk();
    for (const volume of made) {
      const expiresAt = await store.trash.put(volume, { deletedAt: 1, retention: day }, scope);
      expect(expiresAt).toBeGreaterThan(Date.now() + day - minute);
    }
    expect((await store.trash.list(scope)).map(({ volume }) => volume.name).toSorted()).toEqual(['a', 'b']);
    expect(readdirSync(reserve()).length).toBeLessThan(8);
    rmSync(join(folder, 'filling'), { recursive: true });
    await store.housekeeping.reclaim(scope);
    expect(readdirSync(reserve())).toHaveLength(8);
    for (const { id, name } of made) expect((await store.trash.restore(id, name, scope)).id).toBe(id);
  });

  test('purges due entries, but none whose date could not be recorded yet', async () => {
    const [due, old] = [await create('due'), await create('old')];
    for (const volume of [due, old]) await store.trash.put(volume, { deletedAt: 1, retention: 0 }, scope);
    const record = join(folder, '.stowage', 'trash', old.id, 'meta');
    const { expiry: _expiry, ...before } = JSON.parse(readFileSync(record, 'utf8'));
    writeFileSync(record, `${JSON.stringify(before)}\n`);
    fillDisk();
    for (let round = 0; round < 3; round++) {
      for (const { volume } of await store.trash.listExpired(0, scope))
        await store.trash.purgeExpired(volume.id, scope);
      clock.pass(day);
    }
    expect(await store.trash.list(scope)).toMatchObject([{ volume: { id: old.id }, expiresAt: undefined }]);
    rmSync(join(folder, 'filling'), { recursive: true });
    expect(await store.trash.listExpired(day, scope)).toEqual([]);
    expect((await store.trash.list(scope))[0]?.expiresAt).toBeGreaterThan(Date.now());
  });
});
