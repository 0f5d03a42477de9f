import { readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { StowageError } from '#core/errors.ts';
import type { Volume } from '#core/model.ts';
import { type Connect, createConnect } from '#stores/nfs/connect.ts';
import { createNfsStoreKind } from '#stores/nfs/kind.ts';
import { lacks } from '#testbed/lacks.ts';
import { scope } from '#testing/contracts/store.ts';
import { connectToDisk } from '#testing/fakes/nfs-on-disk.ts';
import { ganeshaFolders } from '#testing/ganesha-folders.ts';
import { contentsOf, quickFolder, snapshotOf, wrongRecords } from '#testing/nfs-contents.ts';
import { createProcesses, openNfs } from '#testing/nfs-store.ts';
import { crashableProcess, shortWaitClock } from '#testing/nfs-tap.ts';
import { keptForAWeek } from '#testing/trash-retention.ts';
import { volumeSpec } from '#testing/volume-spec.ts';
import type { FileStore } from '../file-store/verbs.ts';

// A host is killed at each call to the server while it maintains the trash: before the server gets the call, or after the
// server has executed it. No entry may be lost before it is due, and due entries must be purged in the end.

const week = 7 * 86_400_000;
const maxCalls = 80;

interface CrashExport {
  readonly folder: string;
  readonly uri: string;
  readonly options: Readonly<Record<string, string>>;
  readonly connect: Connect;
}

/** The entries of one store: one that an older Stowage left, and one that is due. */
interface Entries {
  readonly old: Volume;
  readonly due: Volume;
}

/** A running host. */
type Host = FileStore & { readonly clock: ReturnType<typeof shortWaitClock> };

const processes = createProcesses();

async function open({ uri, options, connect }: CrashExport, instance: string, connection = connect): Promise<Host> {
  const clock = shortWaitClock(systemClock());
  return {
    ...(await openNfs({
      uri,
      options,
      instance,
      kind: createNfsStoreKind(clock, connection),
      marks: processes(instance),
    })),
    clock,
  };
}

const recordOf = ({ folder }: CrashExport, { id }: Volume): string => join(folder, '.stowage', 'trash', id, 'meta');
const readRecord = (ground: CrashExport, volume: Volume) => JSON.parse(readFileSync(recordOf(ground, volume), 'utf8'));

async function prepareEntries(ground: CrashExport): Promise<Entries> {
  const store = await open(ground, 'mortal');
  const make = async (name: string): Promise<Volume> => {
    const volume = await store.create(volumeSpec(name, { instance: 'mortal' }), scope);
    writeFileSync(join(ground.folder, name, 'file'), volume.id);
    return volume;
  };
  const [old, due] = [await make('old'), await make('due')];
  await store.trash.put(old, keptForAWeek(1), scope);
  await store.trash.put(due, { deletedAt: 1, retention: 0 }, scope);
  const { expiry: _expiry, ...before } = readRecord(ground, old);
  writeFileSync(recordOf(ground, old), `${JSON.stringify(before)}\n`);
  await store.close();
  return { old, due };
}

/** Runs maintenance for some minutes. */
async function maintain({ trash, clock }: Host): Promise<void> {
  for (let round = 0; round < 2; round++) {
    for (const { volume } of await trash.listExpired(week, scope)) await trash.purgeExpired(volume.id, scope);
    clock.pass(5 * 60_000);
  }
}

/** Returns whether the host crashed. Maintenance that makes fewer calls than `at` completes. */
async function dieAt(ground: CrashExport, at: number, when: 'before' | 'after'): Promise<boolean> {
  const host = crashableProcess(ground.connect);
  const store = await open(ground, 'mortal', host.connect);
  host.dieAt(at, when);
  try {
    await maintain(store);
  } catch (cause) {
    if (!(cause instanceof StowageError) || !host.isDead) throw cause;
  }
  return host.isDead;
}

async function crashAtEveryCall(
  next: () => Promise<{ readonly ground: CrashExport; readonly entries: Entries }>,
): Promise<void> {
  for (const when of ['before', 'after'] as const)
    for (let at = 1, died = true; died; at++) {
      expect(at).toBeLessThan(maxCalls);
      const { ground, entries } = await next();
      died = await dieAt(ground, at, when);
      const crashPoint = `killed ${when} call ${at}`;
      // Another host in between purges nothing, and does not wait.
      const other = await open(ground, 'another');
      await maintain(other);
      await other.close();
      const contents = contentsOf(ground.folder);
      expect(contents.has(entries.old.id), crashPoint).toBe(true);
      const store = await open(ground, 'mortal');
      // A restart repeats the interrupted operations.
      await store.trash.purgeExpired(entries.due.id, scope);
      await store.housekeeping.sweep(scope);
      await maintain(store);
      await store.housekeeping.reclaim(scope);
      expect(wrongRecords(contents.records()), crashPoint).toEqual([]);
      expect(
        (await store.trash.list(scope)).map(({ volume }) => volume.id),
        crashPoint,
      ).toEqual([entries.old.id]);
      const { expiresAt, ...expiry } = readRecord(ground, entries.old).expiry;
      expect(expiry, crashPoint).toMatchObject({ retention: week, owner: 'mortal', seen: { by: 'mortal' } });
      expect(expiresAt, crashPoint).toBeGreaterThan(week);
      expect(['tmp', 'deleting'].flatMap(contents.own), crashPoint).toEqual([]);
      expect((await store.trash.restore(entries.old.id, entries.old.name, scope)).id).toBe(entries.old.id);
      expect(await store.names(scope)).toEqual(['old']);
      await store.close();
    }
}

describe('a host that is killed while it maintains the trash', () => {
  const prepared = {} as { ground: CrashExport; entries: Entries; resetFolder: () => void };
  beforeAll(async () => {
    const folder = quickFolder('trash-crash');
    prepared.ground = { folder, uri: 'nfs://nowhere/export', options: {}, connect: connectToDisk(folder) };
    prepared.entries = await prepareEntries(prepared.ground);
    prepared.resetFolder = snapshotOf(folder);
  });
  afterAll(() => rmSync(prepared.ground.folder, { recursive: true, force: true }));

  test('loses no entry that is not due, and purges the due one', () =>
    crashAtEveryCall(async () => {
      prepared.resetFolder();
      return prepared;
    }));
});

describe.skipIf(lacks('ganesha'))('a host that is killed while it maintains the trash on nfs-ganesha', () => {
  const ganesha = ganeshaFolders('trash-crash');
  test('loses no entry that is not due, and purges the due one', () =>
    crashAtEveryCall(async () => {
      const ground = { ...ganesha.fresh(), connect: createConnect(systemClock()) };
      return { ground, entries: await prepareEntries(ground) };
    }));
});

describe('maintenance of the trash', () => {
  test('makes few calls while nothing is due, however much is in the trash', async () => {
    const folder = quickFolder('trash-calls');
    const host = crashableProcess(connectToDisk(folder));
    const ground = { folder, uri: 'nfs://nowhere/export', options: {}, connect: host.connect };
    const store = await open(ground, 'mortal');
    const count = async (): Promise<number> => {
      host.dieAt(-1, 'before');
      await store.trash.listExpired(week, scope);
      return host.calls;
    };
    try {
      await count();
      expect(await count()).toBe(1);
      for (let i = 0; i < 40; i++) {
        const volume = await store.create(volumeSpec(`v${i}`, { requestId: `${i}` }), scope);
        await store.trash.put(volume, keptForAWeek(i), scope);
      }
      await count();
      const calls = await count();
      expect(calls).toBeLessThan(6);
      for (let i = 0; i < 3; i++) expect(await count()).toBe(calls);
    } finally {
      await store.close();
      rmSync(folder, { recursive: true, force: true });
    }
  });
});
