import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import { type Clock, systemClock } from '#base/clock.ts';
import { StowageError } from '#core/errors.ts';
import type { Volume, VolumeSpec } from '#core/model.ts';
import { volumeName } from '#core/names.ts';
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

// A host is killed at each call to the server that a verb makes: before the server gets the call, or after the server has
// executed it and before the reply. Then the same host restarts and retries; in half of the cases another host works on the
// store in between. The final state must be the same as without the crash.

interface PreparedVolumes {
  readonly a: Volume;
  readonly empty: Volume;
  readonly trashed: Volume;
  readonly released: Volume;
}
type Verb = (store: FileStore, setting: PreparedVolumes) => Promise<unknown>;

const name = volumeName;
const spec = (name: string, requestId: string): VolumeSpec =>
  volumeSpec(name, { requestId, bytes: 5n, labels: { team: 'x' }, instance: 'mortal' });

/** Labels, sizes and owners are changed in the same way. */
const verbs: Readonly<Record<string, Verb>> = {
  // With a path template, this label's folder does not exist yet.
  create: (store) => store.create({ ...spec('n', 'create'), labels: { team: 'fresh' } }, scope),
  delete: (store, { a }) => store.delete(a, scope),
  'delete an empty one': (store, { empty }) => store.delete(empty, scope),
  'delete an empty one, only if it is empty': (store, { empty }) => store.delete(empty, scope, { onlyIfEmpty: true }),
  'be refused to delete a full one': (store, { a }) =>
    store.delete(a, scope, { onlyIfEmpty: true }).catch((cause: unknown) => {
      if (!(cause instanceof StowageError) || cause.reason !== 'volume-not-empty') throw cause;
    }),
  rename: (store, { a }) => store.rename(a, name('n'), scope),
  'rename an empty one': (store, { empty }) => store.rename(empty, name('n'), scope),
  label: (store, { a }) => store.label(a, { x: 'y' }, scope),
  release: (store, { a }) => store.adoption.release(a, scope),
  'put into the trash': (store, { a }) => store.trash.put(a, keptForAWeek(2), scope),
  restore: (store, { trashed }) => store.trash.restore(trashed.id, trashed.name, scope),
  'restore under another name': (store, { trashed }) => store.trash.restore(trashed.id, name('n'), scope),
  purge: (store, { trashed }) => store.trash.purge(trashed.id, scope),
  'adopt planted data': (store) => store.adoption.adopt(name('d'), spec('d', 'adopt'), scope),
  'adopt a released volume': (store) => store.adoption.adopt(name('r'), spec('r', 'adopt'), scope),
};

/** An export, and how to connect to it. */
interface CrashExport {
  readonly folder: string;
  readonly uri: string;
  readonly options: Readonly<Record<string, string>>;
  readonly connect: Connect;
}

const processes = createProcesses();

const open = (
  ground: CrashExport,
  instance: string,
  connect = ground.connect,
  clock: Clock = shortWaitClock(systemClock()),
): Promise<FileStore> => {
  const kind = createNfsStoreKind(clock, connect);
  return openNfs({ uri: ground.uri, options: ground.options, instance, kind, marks: processes(instance) });
};

async function prepareVolumes(ground: CrashExport): Promise<PreparedVolumes> {
  const { folder } = ground;
  const store = await open(ground, 'mortal');
  const make = (called: string): Promise<Volume> => store.create(spec(called, `made ${called}`), scope);
  const fill = async (called: string): Promise<Volume> => {
    const volume = await make(called);
    const nested = join(folder, volume.labels['team'] ?? '', called);
    writeFileSync(join(existsSync(nested) ? nested : join(folder, called), 'file'), volume.id);
    return volume;
  };
  const [a, empty, trashed, released] = [await fill('a'), await make('e'), await fill('t'), await fill('r')];
  await store.trash.put(trashed, keptForAWeek(1), scope);
  await store.adoption.release(released, scope);
  mkdirSync(join(folder, 'd'));
  writeFileSync(join(folder, 'd', 'file'), 'planted');
  // Creates the reserve, so that no verb under test creates it.
  await store.housekeeping.reclaim(scope);
  await store.close();
  return { a, empty, trashed, released };
}

/** Describes the contents of the store, with keys instead of ids. */
function summary({ folder }: CrashExport, setting: PreparedVolumes): string[] {
  const contents = contentsOf(folder);
  const keyById = new Map(Object.entries(setting).map(([key, { id }]) => [id as string, key]));
  const withKeys = (text: string): string => text.replaceAll(/sv1-[0-9a-f-]+/g, (id) => keyById.get(id) ?? 'new');
  const records = contents.records();
  return [
    ...wrongRecords(records),
    ...records.map(({ at, id, data }) => `${at}: ${id} with the data of ${data}`),
    ...contents.unrecorded().map((entry) => `unrecorded ${entry}`),
    ...contents.heldLocks().map((entry) => `locked: ${entry}`),
    ...['deleting', 'tmp'].flatMap((part) => contents.own(part).map((entry) => `${part}: ${entry}`)),
  ]
    .map(withKeys)
    .sort();
}

async function sweepAndReclaim(store: FileStore): Promise<void> {
  await store.housekeeping.sweep(scope);
  await store.housekeeping.reclaim(scope);
}

/** The volume that a verb destroys. */
const volumeDestroyedBy: Readonly<Record<string, keyof PreparedVolumes>> = { delete: 'a', purge: 'trashed' };

function lostVolumes({ folder }: CrashExport, setting: PreparedVolumes, verb: string): string[] {
  const { has } = contentsOf(folder);
  const full = ['a', 'trashed', 'released'] as const;
  return full
    .filter((each) => volumeDestroyedBy[verb] !== each && !has(setting[each].id))
    .concat(has('planted') ? [] : ['d' as 'a']);
}

interface Crash {
  readonly verb: string;
  readonly at: number;
  readonly when: 'before' | 'after';
}

/** Returns whether the host crashed. A verb that makes fewer calls than `at` completes. */
async function runUntilCrash(
  ground: CrashExport,
  setting: PreparedVolumes,
  { verb, at, when }: Crash,
): Promise<boolean> {
  const host = crashableProcess(ground.connect);
  const store = await open(ground, 'mortal', host.connect);
  host.dieAt(at, when);
  try {
    await (verb === 'sweep' ? sweepAndReclaim(store) : (verbs[verb] as Verb)(store, setting));
    return host.isDead;
  } catch (cause) {
    if (!(cause instanceof StowageError) || !host.isDead) throw cause;
    return true;
  }
}

async function recover(ground: CrashExport, setting: PreparedVolumes, verb: string): Promise<string[]> {
  const store = await open(ground, 'mortal');
  await sweepAndReclaim(store);
  expect(lostVolumes(ground, setting, verb)).toEqual([]);
  const volumes = await Array.fromAsync(store.list(scope));
  expect(new Set(volumes.map(({ id }) => id)).size).toBe(volumes.length);
  await (verbs[verb] as Verb)(store, setting);
  await sweepAndReclaim(store);
  await store.close();
  return summary(ground, setting);
}

const maxCalls = 60;

interface PreparedExports {
  /** A new export with the same volumes each time. */
  next(): Promise<{ readonly ground: CrashExport; readonly setting: PreparedVolumes }>;
}

/** Killing a host before a call is the same as killing it after the previous call, so each pair is tested once. */
const crashPoints = [
  { when: 'before', between: 'nobody' },
  { when: 'after', between: 'another host' },
] as const;

async function runOtherHost(ground: CrashExport, setting: PreparedVolumes, verb: string): Promise<void> {
  let waits = 0;
  const clock = shortWaitClock(systemClock(), () => waits++);
  const other = await open(ground, 'another', ground.connect, clock);
  await sweepAndReclaim(other);
  await other.housekeeping.orphans(scope);
  expect(lostVolumes(ground, setting, verb)).toEqual([]);
  // The other host does not wait for locks of the dead host.
  expect(waits).toBe(0);
  await other.close();
}

function testCrashes(stage: () => PreparedExports, verbNames: readonly string[]): void {
  test.each(verbNames)('%s', async (verb) => {
    const { ground, setting } = await stage().next();
    const expectedSummary = await recover(ground, setting, verb);
    for (const { when, between } of crashPoints)
      for (let at = 1, died = true; died; at++) {
        expect(at).toBeLessThan(maxCalls);
        const now = await stage().next();
        died = await runUntilCrash(now.ground, now.setting, { verb, at, when });
        if (between === 'another host') await runOtherHost(now.ground, now.setting, verb);
        const end = await recover(now.ground, now.setting, verb);
        expect(end, `killed ${when} call ${at}, then ${between} between`).toEqual(expectedSummary);
      }
  });
}

/** Uses one folder, which is reset for each crash. */
function onDisk(options: Readonly<Record<string, string>> = {}): () => PreparedExports {
  const prepared = {} as { ground: CrashExport; setting: PreparedVolumes; resetFolder: () => void };
  beforeAll(async () => {
    const folder = quickFolder('crash');
    prepared.ground = { folder, uri: 'nfs://nowhere/export', options, connect: connectToDisk(folder) };
    prepared.setting = await prepareVolumes(prepared.ground);
    prepared.resetFolder = snapshotOf(folder);
  });
  afterAll(() => rmSync(prepared.ground.folder, { recursive: true, force: true }));
  return () => ({
    next: async () => {
      prepared.resetFolder();
      return prepared;
    },
  });
}

describe('a host that is killed at any call', () => {
  const stage = onDisk();
  const all = Object.keys(verbs);
  testCrashes(stage, all);

  test.each(['delete', 'rename', 'put into the trash', 'restore'])(
    '%s, and killed again when it comes back',
    async (verb) => {
      const { ground, setting } = await stage().next();
      const expectedSummary = await recover(ground, setting, verb);
      const needed = await countCalls(stage(), verb);
      for (let at = 1, died = true; died; at++) {
        expect(at).toBeLessThan(maxCalls);
        await stage().next();
        // The data have moved, the record has not.
        await runUntilCrash(ground, setting, { verb, at: needed - (verb === 'restore' ? 2 : 1), when: 'before' });
        died = await runUntilCrash(ground, setting, { verb: 'sweep', at, when: 'before' });
        expect(await recover(ground, setting, verb), `killed before call ${at} of the sweep`).toEqual(expectedSummary);
      }
    },
  );
});

test('an abandoned intent does not lead to the data of another volume', async () => {
  const folder = quickFolder('crash');
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
  const ground = { folder, uri: 'nfs://nowhere/export', options: {}, connect: connectToDisk(folder) };
  const setting = await prepareVolumes(ground);
  const { empty } = setting;
  const verb = 'rename an empty one';
  // Killed after it wrote the intent and before it moved the data.
  for (let at = 1; !readFileSync(join(folder, 'e.meta'), 'utf8').includes('movingTo'); at++)
    expect(await runUntilCrash(ground, setting, { verb, at, when: 'after' })).toBe(true);
  await sweepAndReclaim(await open(ground, 'mortal'));
  mkdirSync(join(folder, 'n'));
  writeFileSync(join(folder, 'n', 'file'), 'another user’s');
  // Killed after it removed the data and before it removed the record.
  const resetFolder = snapshotOf(folder);
  for (let at = 1; existsSync(join(folder, 'e')); at++) {
    resetFolder();
    expect(await runUntilCrash(ground, setting, { verb: 'delete an empty one', at, when: 'after' })).toBe(true);
  }
  expect(existsSync(join(folder, 'e.meta'))).toBe(true);
  const restarted = await open(ground, 'mortal');
  await sweepAndReclaim(restarted);
  await restarted.delete(empty, scope);
  await sweepAndReclaim(restarted);
  expect(readFileSync(join(folder, 'n', 'file'), 'utf8')).toBe('another user’s');
  expect(await restarted.names(scope)).toEqual(['a']);
});

async function countCalls(stage: PreparedExports, verb: string): Promise<number> {
  const { ground, setting } = await stage.next();
  const host = crashableProcess(ground.connect);
  const store = await open(ground, 'mortal', host.connect);
  host.dieAt(-1, 'before');
  await (verbs[verb] as Verb)(store, setting);
  return host.calls;
}

describe('with volumes in folders, killed', () => {
  testCrashes(onDisk({ pathTemplate: '{label:team}/{name}' }), ['create', 'put into the trash', 'restore']);
});

describe.skipIf(lacks('ganesha'))('on nfs-ganesha, killed', () => {
  const ganesha = ganeshaFolders('crash');
  const next = async () => {
    const ground = { ...ganesha.fresh(), connect: createConnect(systemClock()) };
    return { ground, setting: await prepareVolumes(ground) };
  };
  testCrashes(() => ({ next }), ['create', 'rename']);
});
