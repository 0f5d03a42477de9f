import { mkdir, readdir, rm, symlink } from 'node:fs/promises';
import { join } from 'node:path';
import { beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { createLocalStoreKind } from '#stores/local/kind.ts';
import { aCall } from '#testing/core-calls.ts';
import { type GatedKind, gated } from '#testing/fakes/gated-store.ts';
import { startCore, type TestCore } from '#testing/start-core.ts';
import type { LiveMount, Volume } from './model.ts';

describe('without the whole program', () => {
  let server: TestCore;
  let kind: GatedKind;

  beforeEach(async () => {
    kind = gated(createLocalStoreKind());
    server = await startCore({ kinds: [kind] });
    // Stopping unmounts all volumes that are not in use.
    onTestFinished(() => server[Symbol.asyncDispose]());
  });

  const create = (name: string): Promise<Volume> =>
    server.core.volumes.create({ store: undefined, name, bytes: 10n, access: undefined, labels: {} }, aCall());
  // Outside the state folder, where Stowage refuses to mount.
  const pathOf = (name: string): string => `${server.folder}-${name}`;
  const mount = (ref: string, target: string, readOnly = false): Promise<LiveMount> =>
    server.core.mounts.publish(ref, target, { readOnly, user: undefined }, aCall());

  test('an unmount waits for a mount in progress, then unmounts', async () => {
    const { id } = await create('a');
    const gate = kind.close('source');
    const mounting = mount('a', pathOf('m'));
    await gate.reached;
    const unmounting = server.core.mounts.unpublish(pathOf('m'), id, aCall());
    gate.open();
    await Promise.all([mounting, unmounting]);
    expect(await server.core.mounts.list(aCall())).toEqual([]);
    expect(await server.core.mounts.unpublish(pathOf('m'), id, aCall())).toBeUndefined();
  });

  describe('a target that contains a symbolic link', () => {
    const byLink = (): string => join(pathOf('link'), 'm');

    beforeEach(async () => {
      await mkdir(pathOf('real'));
      await symlink(pathOf('real'), pathOf('link'));
      onTestFinished(async () => {
        for (const name of ['link', 'real']) await rm(pathOf(name), { recursive: true });
      });
    });

    test('is unmounted, and unmounting it again succeeds', async () => {
      const { id } = await create('a');
      expect(await mount('a', byLink())).toMatchObject({ target: join(pathOf('real'), 'm') });
      for (let i = 0; i < 2; i++) await server.core.mounts.unpublish(byLink(), id, aCall());
      expect(await server.core.mounts.list(aCall())).toEqual([]);
      await server.core.mounts.unpublish(`${pathOf('missing')}/../m`, id, aCall());
    });
  });

  test('expanding a volume during a second mount does not deadlock', async () => {
    const { id } = await create('a');
    await mount('a', pathOf('m1'));
    const gate = kind.close('expand');
    const grown = server.core.volumes.expand(id, 50n, undefined, aCall());
    await gate.reached;
    const second = mount('a', pathOf('m2'));
    await new Promise((resolve) => setImmediate(resolve));
    gate.open();
    expect(await grown).toMatchObject({ bytes: 50n });
    expect(await second).toMatchObject({ mounted: true });
    expect(await server.core.mounts.ofVolume(id, aCall())).toHaveLength(2);
  });

  test('mounting twice at the same target succeeds; mounting something else there fails', async () => {
    await create('a');
    await create('b');
    const first = await mount('a', pathOf('m'));
    expect(await mount('a', pathOf('m'))).toEqual(first);
    await expect(mount('b', pathOf('m'))).rejects.toMatchObject({ code: 'conflict' });
    await expect(mount('a', pathOf('m'), true)).rejects.toMatchObject({
      code: 'conflict',
      message: `${pathOf('m')} has this volume read-write mounted already`,
    });
  });

  test('a store with mounted volumes is neither removed nor changed', async () => {
    const path = join(server.folder, 'keep');
    await mkdir(path);
    await server.core.stores.add('keep', `local://${path}`, aCall());
    await server.core.volumes.create(
      { store: 'keep', name: 'a', bytes: undefined, access: undefined, labels: {} },
      aCall(),
    );
    await mount('keep..a', pathOf('m'));
    await expect(server.core.stores.remove('keep', aCall())).rejects.toMatchObject({
      code: 'in-use',
      message: "store 'keep' has mounted volumes: keep/a",
    });
  });

  test('an unmount removes a target that Stowage created, even after another program unmounted it, and keeps an existing directory', async () => {
    await create('a');
    await mkdir(pathOf('theirs'));
    onTestFinished(() => rm(pathOf('theirs'), { recursive: true }));
    for (const name of ['m', 'theirs']) {
      await mount('a', pathOf(name));
      server.kept.mounts.remove(pathOf(name));
      await mount('a', pathOf(name));
      await server.core.mounts.unpublish(pathOf(name), undefined, aCall());
      // The mount is not on record any longer.
      await server.core.mounts.unpublish(pathOf(name), undefined, aCall());
    }
    await expect(readdir(pathOf('m'))).rejects.toMatchObject({ code: 'ENOENT' });
    expect(await readdir(pathOf('theirs'))).toEqual([]);
  });

  test('stopping unmounts idle volumes and removes the directories that Stowage created', async () => {
    await create('a');
    await mount('a', pathOf('m'));
    expect(await server.stop()).toEqual([]);
    expect(await readdir(join(server.folder, 'mounts'))).toEqual([]);
    await expect(readdir(pathOf('m'))).rejects.toMatchObject({ code: 'ENOENT' });
  });
});
