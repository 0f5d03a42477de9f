import { mkdir, mkdtemp, realpath, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { beforeEach, describe, expect, onTestFinished, test, vi } from 'vitest';
import { refuseOverlaps } from '#app/store-overlaps.ts';
import { systemClock } from '#base/clock.ts';
import { createUsageCounter } from '#front/csi/usage-counter.ts';
import { createUsedBytes } from '#front/docker-plugin/used-bytes.ts';
import { createLocalStoreKind } from '#stores/local/kind.ts';
import { aCall, collectingLog, runMaintenance, waitForOptions } from '#testing/core-calls.ts';
import { gated } from '#testing/fakes/gated-store.ts';
import { createMinimalStoreKind } from '#testing/fakes/minimal-store.ts';
import { startCore, type TestCore } from '#testing/start-core.ts';
import type { Volume } from './model.ts';
import { storeName } from './names.ts';

// The behaviour of core with a store that has the required members only.

const minimal = createMinimalStoreKind();
const kind = gated(minimal);
let folder: string;
/** The directory of the store. */
let root: string;
let config: string;
let server: TestCore;

const configure = (policy = ''): Promise<void> =>
  writeFile(config, `stores:\n  plain: minimal://${root}${policy}\n  local: local://${folder}/local\n`);

beforeEach(async () => {
  folder = await realpath(await mkdtemp(join(tmpdir(), 'stowage-facets-')));
  onTestFinished(() => rm(folder, { recursive: true }));
  [root, config] = [join(folder, 'plain'), join(folder, 'stowage.yaml')];
  for (const name of ['plain', 'local']) await mkdir(join(folder, name));
  await configure();
  const started = await startCore({ config, kinds: [createLocalStoreKind(), kind] });
  server = started;
  onTestFinished(async () => {
    await started.stop();
    await started[Symbol.asyncDispose]();
  });
});

const restart = async (): Promise<void> => {
  await server.stop();
  server = await startCore({ after: server, config, kinds: [createLocalStoreKind(), kind] });
};
const create = (name: string, bytes?: bigint): Promise<Volume> =>
  server.core.volumes.create({ store: 'plain', name, bytes, access: undefined, labels: {} }, aCall());
const volumes = async (): Promise<readonly string[]> => {
  const query = { stores: ['plain'], labels: {}, contains: undefined, after: undefined, limit: 100 };
  return (await server.core.catalogue.page(query, aCall())).volumes.map(({ name }) => name);
};
/** The kinds of all operations on record. */
const operations = (): readonly string[] =>
  server.core.operations.page({ limit: 100 }).items.map(({ operation }) => operation.kind);
const view = () => server.core.stores.view('plain');

describe('a store with the required members only', () => {
  test('creates, labels, mounts, inspects, checks and deletes volumes', async () => {
    const made = await create('a', 10n);
    const labelled = await server.core.volumes.label(made.id, { team: 'b' }, undefined, aCall());
    expect(await server.core.volumes.inspect(made.id, aCall())).toEqual({ volume: labelled, condition: 'ok' });
    const target = `${server.folder}-target`;
    await server.core.mounts.publish(made.id, target, { readOnly: false, user: undefined, group: 2000 }, aCall());
    await server.core.mounts.unpublish(target, made.id, aCall());
    expect(await server.core.stores.check('plain', aCall())).toMatchObject({ ok: true });
    expect(await server.core.deletions.delete(made.id, undefined, aCall())).toMatchObject({ outcome: 'deleted' });
    expect(await volumes()).toEqual([]);
    expect(minimal.volumesAt(root).size).toBe(0);
    await runMaintenance(server.core);
  });

  test('has no identity for core to remember', async () => {
    const made = await server.core.volumes.createWithStoreIdentity(
      { store: 'plain', name: 'a', bytes: undefined, access: undefined, labels: {} },
      aCall(),
    );
    expect(made.storeIdentity).toBeUndefined();
    await server.stop();
    const records = server.kept.records.open();
    expect(records.settings.get('identity of local')).toMatch(/./);
    expect(records.settings.get('identity of plain')).toBe('');
    records.close();
    await restart();
    expect(view().problem).toBeUndefined();
  });

  test('is not compared with the locations of other stores', async () => {
    const apart = refuseOverlaps({ ...minimal, placement: 'anywhere' }, async ({ name }) => ({ on: [name], root }));
    const { policy, ...given } = view().config;
    const context = { instance: 'i', node: server.core.node };
    for (const name of ['one', 'two'].map(storeName)) {
      const opened = await apart.open({ ...given, policy, name }, policy, context, aCall());
      onTestFinished(() => opened.close());
      expect(opened.name).toBe(name);
    }
  });

  test('gives the names of its volumes by listing them', async () => {
    const [a, b] = [await create('a'), await create('b')];
    server.core.records.volumes.remove(a.id);
    minimal.volumesAt(root).delete(b.name);
    await restart();
    expect(await volumes()).toEqual(['a']);
  });

  test('is changed by Stowage only, so listings do not refresh the catalogue from it', async () => {
    const made = await create('a');
    minimal.volumesAt(root).delete(made.name);
    expect(await volumes()).toEqual(['a']);
    expect(await server.core.liveness.findSilent([view().config.name], aCall())).toEqual(new Set());
  });

  test('cannot enforce the size of a volume, which is informational', async () => {
    const { id } = await create('a');
    const enforcing = { store: 'plain', name: 'b', bytes: 10n, enforce: true, access: undefined, labels: {} };
    const unsupported = {
      code: 'unsupported',
      reason: 'enforcement-unsupported',
      message: "store 'plain' cannot enforce the size of a volume",
    };
    await expect(server.core.volumes.create(enforcing, aCall())).rejects.toMatchObject(unsupported);
    await expect(server.core.volumes.enforce(id, true, undefined, aCall())).rejects.toMatchObject(unsupported);
    expect(operations()).toEqual(['volume.create']);
  });

  test('rejects an expansion before recording an operation, unless the volume has that size already', async () => {
    const made = await create('a', 10n);
    await expect(server.core.volumes.expand(made.id, 20n, undefined, aCall())).rejects.toMatchObject({
      code: 'unsupported',
      reason: 'expand-unsupported',
      message: "store 'plain' cannot enlarge volumes",
    });
    expect(await server.core.volumes.expand(made.id, 10n, undefined, aCall())).toEqual(made);
    const target = `${server.folder}-target`;
    await server.core.mounts.publish(made.id, target, { readOnly: false, user: undefined }, aCall());
    expect(await server.core.volumes.expand(made.id, 10n, undefined, aCall())).toEqual(made);
    await server.core.mounts.unpublish(target, made.id, aCall());
    expect(operations().filter((one) => one === 'volume.expand')).toEqual([]);
  });

  test('rejects a rename before recording an operation, unless the volume has that name already', async () => {
    const made = await create('a');
    await expect(server.core.volumes.rename(made.id, 'b', undefined, aCall())).rejects.toMatchObject({
      code: 'unsupported',
      reason: 'rename-unsupported',
      message: "store 'plain' cannot rename volumes",
    });
    expect(await server.core.volumes.rename(made.id, 'a', undefined, aCall())).toEqual(made);
    expect(operations()).toEqual(['volume.create']);
  });

  test('reports no usage, neither to CSI nor to Docker', async () => {
    const made = await create('a');
    await expect(server.core.volumes.usage(made.id, aCall())).rejects.toMatchObject({
      code: 'unsupported',
      reason: 'usage-unsupported',
      message: "store 'plain' cannot tell how much data its volumes hold",
    });
    const log = collectingLog();
    const counting = createUsageCounter({ volumes: server.core.volumes, clock: systemClock(), log });
    expect(await counting.usageOf(made)).toBeUndefined();
    using used = createUsedBytes(server.core, systemClock(), log);
    expect(await used.usedBytesOf(made)).toBeUndefined();
    expect(log.lines).toEqual([]);
  });

  test('decides by itself whether a volume that must be empty is deleted', async () => {
    const { id } = await create('a');
    await expect(server.core.deletions.delete(id, undefined, aCall(), { discard: true })).rejects.toMatchObject({
      code: 'conflict',
      reason: 'volume-not-empty',
    });
    expect(operations()).toEqual(['volume.delete', 'volume.create']);
    expect(await volumes()).toEqual(['a']);
  });

  test('has an unknown amount of free space', async () => {
    const log = collectingLog();
    const rooms = await server.core.liveness.rooms(['local', 'plain'].map(storeName), aCall({ log }));
    expect([...rooms.keys()]).toEqual(['local']);
    expect(log.lines).toEqual([]);
  });

  test('is skipped when trash is listed, searched and expired', async () => {
    const { id } = await create('a');
    const { trash, trashOf, restore, purge } = server.core.deletions;
    expect(await trashOf('plain', aCall())).toEqual([]);
    expect(await trash(['plain', 'local'], aCall())).toEqual({ entries: [], unanswered: [] });
    const unknown = { code: 'not-found', reason: 'trash-unknown' };
    await server.core.deletions.delete(id, undefined, aCall());
    await expect(restore(id, undefined, () => true, aCall())).rejects.toMatchObject(unknown);
    await expect(purge(id, () => true, aCall())).rejects.toMatchObject(unknown);
    const log = collectingLog();
    await runMaintenance(server.core, aCall({ log }));
    expect(log.lines.filter((line) => line.includes('trash'))).toEqual([]);
  });

  test('rejects an adoption before recording an operation', async () => {
    for (const dryRun of [true, false]) {
      const adopting = server.core.adoptions.adopt('plain', { dryRun, data: true }, aCall());
      await expect(adopting).rejects.toMatchObject({
        code: 'unsupported',
        reason: 'adoption-unsupported',
        message: "store 'plain' cannot adopt volumes",
      });
    }
    expect(operations()).toEqual([]);
  });

  test('has no orphans, no sweep, and no space to free', async () => {
    const { id } = await create('a');
    expect(await server.core.adoptions.orphans('plain', aCall())).toEqual([]);
    await server.core.deletions.delete(id, undefined, aCall());
    await restart();
    expect(view().problem).toBeUndefined();
  });

  test('has no use records', async () => {
    const made = await create('a');
    expect(await server.core.uses.list(made, aCall())).toBeUndefined();
    await expect(server.core.uses.release(made.id, 'host-2', aCall())).rejects.toMatchObject({
      code: 'unsupported',
      reason: 'uses-unsupported',
      message: "store 'plain' keeps no use records, since no other host can use its volumes",
    });
  });
});

describe.each(['archive', 'retain'])('onDelete=%s on a store that does not support it', (onDelete) => {
  const unsupported = {
    code: 'invalid',
    reason: 'store-policy-unsupported',
    message: `store 'plain' does not support onDelete=${onDelete}`,
  };

  test('is refused when the store is added', async () => {
    const adding = server.core.stores.add('other', `minimal://${root}?onDelete=${onDelete}`, aCall());
    await expect(adding).rejects.toMatchObject({
      code: 'invalid',
      reason: 'store-policy-unsupported',
      message: `store 'other' does not support onDelete=${onDelete}`,
    });
    expect(server.core.stores.list().map(({ config: { name } }) => name as string)).toEqual(['plain', 'local']);
  });

  test('keeps the store closed at a start, until the policy is changed', async () => {
    await create('a');
    await configure(`?onDelete=${onDelete}`);
    await restart();
    expect(view()).toMatchObject({ store: undefined, problem: unsupported });
    await configure();
    await server.reload();
    expect(view()).toMatchObject({ store: { name: 'plain' }, problem: undefined });
    expect(await volumes()).toEqual(['a']);
  });

  test('is refused when only the policy changes, and the old policy stays', async () => {
    const { id } = await create('a');
    const { store } = view();
    await configure(`?onDelete=${onDelete}`);
    await server.reload();
    const why = `its options changed; the change is pending: ${unsupported.message}`;
    expect(view()).toMatchObject({ config: { policy: { onDelete: 'delete' } }, problem: undefined, pending: why });
    await server.core.stores.retry(aCall());
    expect(view().pending).toBe(why);
    expect(view().store).toBe(store);
    expect(await server.core.deletions.delete(id, undefined, aCall())).toMatchObject({ outcome: 'deleted' });
    await configure();
    await server.reload();
    expect(view().pending).toBeUndefined();
  });

  test('makes the deletion fail if the policy changed while the store was being opened', async () => {
    const { id } = await create('a');
    await writeFile(config, `stores:\n  local: local://${folder}/local\n`);
    await server.reload();
    const gate = kind.close('open', { store: 'plain' });
    await configure();
    await server.reload();
    expect(view().problem).toMatchObject({ reason: 'store-opening' });
    await configure(`?onDelete=${onDelete}`);
    await server.reload();
    gate.open();
    await vi.waitFor(() => expect(view().store).toBeDefined(), waitForOptions);
    await expect(server.core.deletions.delete(id, undefined, aCall())).rejects.toMatchObject(unsupported);
    expect(await volumes()).toEqual(['a']);
    expect(minimal.volumesAt(root).size).toBe(1);
  });
});
