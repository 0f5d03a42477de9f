import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { createLocalStoreKind } from '#stores/local/kind.ts';
import { lacks } from '#testbed/lacks.ts';
import { aCall } from '#testing/core-calls.ts';
import { type GatedKind, gated } from '#testing/fakes/gated-store.ts';
import { startCore, type TestCore } from '#testing/start-core.ts';
import type { Access, LiveMount, Volume } from './model.ts';

describe.skipIf(lacks('ext4'))('a volume whose content cannot be counted', () => {
  let server: TestCore;
  let kind: GatedKind;

  beforeEach(async () => {
    kind = gated(createLocalStoreKind());
    server = await startCore({ kinds: [kind] });
    onTestFinished(() => server[Symbol.asyncDispose]());
    const storeFolder = mkdtempSync(join(tmpdir(), 'stowage-images-'));
    onTestFinished(() => rmSync(storeFolder, { recursive: true, force: true }));
    await server.core.stores.add('images', `local://${storeFolder}?layout=image&filesystem=ext4`, aCall());
  });

  const target = (): string => `${server.folder}-m`;
  const create = (access: Access): Promise<Volume> =>
    server.core.volumes.create({ store: 'images', name: 'a', bytes: 1n << 24n, access, labels: {} }, aCall());
  const mount = (readOnly = false, call = aCall()): Promise<LiveMount> =>
    server.core.mounts.publish('images..a', target(), { readOnly, user: undefined }, call);
  const isEmpty = async (): Promise<boolean> => (await server.core.volumes.usage('images..a', aCall())).empty;

  test.each<[Access, boolean]>([
    ['filesystem', false],
    ['filesystem', true],
    ['block', false],
  ])('is never considered empty once it was mounted (%s, read-only %s)', async (access, readOnly) => {
    const { id } = await create(access);
    expect(await isEmpty()).toBe(true);
    await mount(readOnly);
    expect(await isEmpty()).toBe(false);
    await server.core.mounts.unpublish(target(), id, aCall());
    expect(await isEmpty()).toBe(false);
  });

  test('is mounted only after its use is recorded', async () => {
    const { id } = await create('filesystem');
    const gate = kind.close('markUsed');
    const mounting = mount();
    await gate.reached;
    expect(await server.core.mounts.isStaged(id, aCall())).toBe(false);
    gate.open();
    expect(await mounting).toMatchObject({ mounted: true });
    await server.core.mounts.unpublish(target(), id, aCall());
  });

  test('is not mounted if its use cannot be recorded', async () => {
    const { id } = await create('filesystem');
    const gate = kind.close('markUsed');
    const mountAbort = new AbortController();
    const mounting = mount(false, { ...aCall(), signal: mountAbort.signal });
    await gate.reached;
    mountAbort.abort();
    await expect(mounting).rejects.toThrow();
    expect(await server.core.mounts.isStaged(id, aCall())).toBe(false);
    expect(await server.core.mounts.list(aCall())).toEqual([]);
  });
});
