import { existsSync, readdirSync, readFileSync, rmSync, utimesSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { StowageError } from '#core/errors.ts';
import type { Volume } from '#core/model.ts';
import { createNfsStoreKind } from '#stores/nfs/kind.ts';
import { scope } from '#testing/contracts/store.ts';
import { connectToDisk } from '#testing/fakes/nfs-on-disk.ts';
import { quickFolder } from '#testing/nfs-contents.ts';
import { openNfs } from '#testing/nfs-store.ts';
import { type CallInterceptor, interceptCalls, shortWaitClock } from '#testing/nfs-tap.ts';
import { keptForAWeek } from '#testing/trash-retention.ts';
import { volumeSpec } from '#testing/volume-spec.ts';
import { RpcError } from '#wire/nfs3/index.ts';
import type { FileStore } from '../file-store/verbs.ts';

// Hosts that are suspended or die while they work on the trash of a store that others share.

const minute = 60_000;
const week = 7 * 24 * 60 * minute;

let folder: string;
beforeEach(() => {
  folder = quickFolder('trash-races');
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
});

interface Host {
  readonly store: FileStore;
  readonly clock: ReturnType<typeof shortWaitClock>;
  hook: CallInterceptor;
}

async function startHost(instance: string): Promise<Host> {
  const clock = shortWaitClock(systemClock());
  const host = { clock, hook: (({ make }) => make()) as CallInterceptor };
  const kind = createNfsStoreKind(
    clock,
    interceptCalls(connectToDisk(folder), (call) => host.hook(call)),
  );
  return Object.assign(host, { store: await openNfs({ uri: 'nfs://nowhere/export', instance, kind }) });
}

const ownPath = (...path: readonly string[]): string => join(folder, '.stowage', ...path);
const recordOf = ({ id }: Volume): string => ownPath('trash', id, 'meta');
const readRecord = (volume: Volume) => JSON.parse(readFileSync(recordOf(volume), 'utf8'));

async function create({ store }: Host, name: string): Promise<Volume> {
  const volume = await store.create(volumeSpec(name, { requestId: name }), scope);
  writeFileSync(join(folder, name, 'file'), volume.id);
  return volume;
}

const nameIn = (location: unknown): string => (location as { readonly name: string }).name;
/** The old and the new name of a RENAME. */
const movedFrom = (args: readonly unknown[]): string => nameIn(args[0]);
const movedTo = (args: readonly unknown[]): string => nameIn(args[1]);

/** Runs maintenance every half minute until `isDone`. The test times out if that never happens. */
async function maintainUntil({ clock, store }: Host, isDone: () => boolean): Promise<void> {
  for (; !isDone(); clock.pass(minute / 2)) {
    await store.housekeeping.reclaim(scope);
    await store.trash.listExpired(week, scope);
  }
}

/** Like a user who retries while another host has the volume locked. The test times out if that does not end. */
async function retryWhileBusy<T>({ clock }: Host, work: () => Promise<T>): Promise<T> {
  for (;;)
    try {
      return await work();
    } catch (cause) {
      if (!(cause instanceof StowageError) || cause.code !== 'busy') throw cause;
      clock.pass(minute);
    }
}

/** Runs `meanwhile` when the host is about to move the volume's entry out of the trash, which it does afterwards. */
function suspendAtPurge(host: Host, { id }: Volume, meanwhile: () => Promise<void>): () => boolean {
  let isOver = false;
  host.hook = async ({ procedure, args, make }) => {
    if (procedure === 'rename' && !isOver && movedFrom(args) === id) {
      isOver = true;
      await meanwhile();
      host.clock.pass(10 * minute);
    }
    return make();
  };
  return () => isOver;
}

/** Kills the host right after the server has executed the first rename for which `isLast` returns true. */
function killAfterRename(host: Host, isLast: (args: readonly unknown[]) => boolean): void {
  let isDead = false;
  const killedError = (): RpcError => new RpcError('the process was killed', { failure: 'closed', maybeDone: true });
  host.hook = async ({ procedure, args, make }) => {
    if (isDead) throw killedError();
    const answer = await make();
    isDead = procedure === 'rename' && isLast(args);
    if (isDead) throw killedError();
    return answer;
  };
}

describe('a host that is suspended right before it purges', () => {
  test.each<[string, (host: Host, volume: Volume) => Promise<unknown>]>([
    ['an expired entry', ({ store }, { id }) => store.trash.purgeExpired(id, scope)],
    ['an entry for a user', ({ store }, { id }) => store.trash.purge(id, scope, { deletedAt: 1 })],
  ])('does not destroy a later deletion of the same volume when it goes on: %s', async (_what, purge) => {
    const [slow, other] = [await startHost('slow'), await startHost('other')];
    const volume = await create(slow, 'a');
    await slow.store.trash.put(volume, { deletedAt: 1, retention: 0 }, scope);
    const wasSuspended = suspendAtPurge(slow, volume, async () => {
      const restored = await retryWhileBusy(other, () => other.store.trash.restore(volume.id, volume.name, scope));
      await retryWhileBusy(other, () => other.store.trash.put(restored, keptForAWeek(2), scope));
    });
    await expect(purge(slow, volume)).rejects.toMatchObject({ code: 'deadline' });
    expect(wasSuspended()).toBe(true);
    for (const { store } of [slow, other]) await store.housekeeping.reclaim(scope);
    expect(await other.store.trash.list(scope)).toMatchObject([{ volume: { id: volume.id }, deletedAt: 2 }]);
    await retryWhileBusy(other, () => other.store.trash.restore(volume.id, volume.name, scope));
    expect(readFileSync(join(folder, 'a', 'file'), 'utf8')).toBe(volume.id);
    expect(readdirSync(ownPath('trash'))).toEqual([]);
  });
});

describe('a host that dies while it purges', () => {
  const dieWhilePurging = async (): Promise<Volume> => {
    const dying = await startHost('dying');
    const volume = await create(dying, 'a');
    await dying.store.trash.put(volume, keptForAWeek(1), scope);
    killAfterRename(dying, (args) => movedFrom(args) === volume.id);
    await expect(dying.store.trash.purge(volume.id, scope, { deletedAt: 1 })).rejects.toThrow();
    expect(existsSync(recordOf(volume))).toBe(false);
    return volume;
  };

  test('leaves an entry that another host puts back into the trash', async () => {
    const volume = await dieWhilePurging();
    const other = await startHost('other');
    await maintainUntil(other, () => existsSync(recordOf(volume)));
    expect(await other.store.trash.list(scope)).toMatchObject([{ volume: { id: volume.id }, deletedAt: 1 }]);
    expect((await other.store.trash.restore(volume.id, volume.name, scope)).id).toBe(volume.id);
    expect(readFileSync(join(folder, 'a', 'file'), 'utf8')).toBe(volume.id);
  });

  test('leaves an entry that can be restored or purged', async () => {
    const volume = await dieWhilePurging();
    const other = await startHost('other');
    expect(await other.store.trash.list(scope)).toMatchObject([{ volume: { id: volume.id }, deletedAt: 1 }]);
    const restored = await retryWhileBusy(other, () => other.store.trash.restore(volume.id, volume.name, scope));
    await other.store.trash.put(restored, keptForAWeek(2), scope);
    killAfterRename(other, (args) => movedFrom(args) === volume.id);
    await expect(other.store.trash.purge(volume.id, scope, { deletedAt: 2 })).rejects.toThrow();
    const last = await startHost('last');
    await retryWhileBusy(last, () => last.store.trash.purge(volume.id, scope, { deletedAt: 2 }));
    expect(await last.store.trash.list(scope)).toEqual([]);
    expect(readdirSync(ownPath('trash'))).toEqual([]);
  });
});

test('a repeated purge leaves the data of a later deletion that was interrupted before its record followed', async () => {
  const [dying, other] = [await startHost('dying'), await startHost('other')];
  const volume = await create(dying, 'a');
  killAfterRename(dying, (args) => movedTo(args) === 'data');
  await expect(dying.store.trash.put(volume, keptForAWeek(2), scope)).rejects.toThrow();
  expect([existsSync(ownPath('trash', volume.id, 'data')), existsSync(recordOf(volume))]).toEqual([true, false]);
  for (const expectedEntry of [{ deletedAt: 1 }, undefined])
    await retryWhileBusy(other, () => other.store.trash.purge(volume.id, scope, expectedEntry));
  await other.store.housekeeping.reclaim(scope);
  // A repeated call finishes the deletion.
  await other.store.trash.put(volume, keptForAWeek(2), scope);
  expect(await other.store.trash.list(scope)).toMatchObject([{ volume: { id: volume.id }, deletedAt: 2 }]);
  await other.store.trash.restore(volume.id, volume.name, scope);
  expect(readFileSync(join(folder, 'a', 'file'), 'utf8')).toBe(volume.id);
});

test('entries without a date whose locks a dead host left get one, and no round waits two minutes for them', async () => {
  const host = await startHost('host');
  const volumes = [await create(host, 'a'), await create(host, 'b'), await create(host, 'c')];
  for (const volume of volumes) {
    await host.store.trash.put(volume, keptForAWeek(1), scope);
    const { expiry: _expiry, ...before } = readRecord(volume);
    writeFileSync(recordOf(volume), `${JSON.stringify(before)}\n`);
    // Set the mark of an unknown process.
    utimesSync(ownPath('locks', volume.id), 4711, 4711);
  }
  const isDated = (volume: Volume): boolean => readRecord(volume).expiry?.expiresAt > week;
  const other = await startHost('other');
  for (let round = 0; round < 4; round++) {
    const before = other.clock.elapsed();
    expect(await other.store.trash.listExpired(week, scope)).toEqual([]);
    expect(other.clock.elapsed() - before).toBeLessThan(10_000);
    expect(volumes.filter(isDated)).toEqual([]);
    other.clock.pass(minute / 2);
  }
  other.clock.pass(minute / 2);
  await maintainUntil(other, () => volumes.every(isDated));
  expect(volumes.filter(isDated)).toEqual(volumes);
});
