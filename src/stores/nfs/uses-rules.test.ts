import {
  existsSync,
  linkSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  truncateSync,
  utimesSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import type { NodeName, Use, Volume } from '#core/model.ts';
import { newVolumeId, volumeName } from '#core/names.ts';
import type { Uses } from '#core/ports.ts';
import { scope } from '#testing/contracts/store.ts';
import { expectError, refusal } from '#testing/expected-errors.ts';
import { connectToDisk } from '#testing/fakes/nfs-on-disk.ts';
import { contentsOf, quickFolder } from '#testing/nfs-contents.ts';
import { openNfs } from '#testing/nfs-store.ts';
import { crashableProcess, interceptCalls, shortWaitClock } from '#testing/nfs-tap.ts';
import { keptForAWeek } from '#testing/trash-retention.ts';
import { volumeSpec } from '#testing/volume-spec.ts';
import { presumedDeadMs } from '../file-store/store-root.ts';
import type { FileStore } from '../file-store/verbs.ts';
import { createNfsStoreKind } from './kind.ts';
import { newProcessMark } from './lock-marks.ts';
import { maxHosts, maxTotalChars, unreadHosts } from './use-record-reader.ts';

// Use records with one active host. uses-races.test.ts tests two concurrent hosts.

/** The mark of an earlier process of this host. */
const earlierMark = newProcessMark();

let folder: string;
let store: FileStore;
let uses: Uses;
let volume: Volume;
/** The procedures called since a test last emptied the list. */
let procedures: string[];

beforeEach(async () => {
  folder = quickFolder('rules');
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
  procedures = [];
  const connect = interceptCalls(connectToDisk(folder), ({ procedure, make }) => {
    procedures.push(procedure);
    return make();
  });
  const marks = { own: newProcessMark(), dead: [earlierMark] };
  store = await openNfs({ uri: 'nfs://nowhere/export', kind: createNfsStoreKind(systemClock(), connect), marks });
  uses = store.uses as Uses;
  volume = await store.create(volumeSpec('photos'), scope);
});

const use = (host: string, ...pods: readonly string[]): Use => ({
  host,
  node: `node of ${host}` as NodeName,
  users: pods.map((name) => ({ kind: 'pod', name }) as const),
});
const usersFolder = (): string => join(folder, '.stowage', 'users');
const recordPath = (file: string): string => join(usersFolder(), volume.id, file);

const removeVerbs = {
  delete: () => store.delete(volume, scope),
  release: () => store.adoption.release(volume, scope),
  'put into the trash': () => store.trash.put(volume, keptForAWeek(1), scope),
} as const;
const refusedVerbs = { ...removeVerbs, rename: () => store.rename(volume, volumeName('pictures'), scope) };

describe.each(Object.entries(removeVerbs))('after %s', (_, end) => {
  test('no host can begin to use the volume, and the attempt leaves nothing', async () => {
    await end();
    const notFound = {
      code: 'not-found',
      reason: 'volume-unknown',
      message: /^there is no volume 'photos' in store test$/,
      action: /stowage volume list --store test$/,
    };
    expectError(await refusal(uses.put(volume, use('h1'), scope)), notFound);
    expectError(await refusal(uses.takeWriter(volume, 'h1', scope)), notFound);
    for (const part of ['users', 'tmp']) expect(readdirSync(join(folder, '.stowage', part))).toEqual([]);
    expect(contentsOf(folder).heldLocks()).toEqual([]);
  });
});

test('a volume that never existed, or whose name is another volume’s by now, cannot be used', async () => {
  const { name } = volume;
  expect(await refusal(uses.put({ id: newVolumeId(), name }, use('h1'), scope))).toMatchObject({ code: 'not-found' });
  expect(readdirSync(usersFolder())).toEqual([]);
});

test('a renamed volume can be used under its old name', async () => {
  await store.rename(volume, volumeName('pictures'), scope);
  await uses.put(volume, use('h1'), scope);
  expect(await uses.list(volume.id, scope)).toMatchObject([{ host: 'h1' }]);
});

test('a volume whose data are gone cannot be used', async () => {
  rmSync(join(folder, 'photos'), { recursive: true });
  expect(await refusal(uses.put(volume, use('h1'), scope))).toMatchObject({ reason: 'volume-data-unusable' });
  await store.delete(volume, scope);
  expect(await store.names(scope)).toEqual([]);
});

describe.each(Object.entries(refusedVerbs))('%s', (verb, end) => {
  const done = verb === 'rename' ? 'renamed' : 'deleted';

  test.each([
    ['a use', () => uses.put(volume, use('h1', 'web-0'), scope), 'node of h1 \\(h1, pod web-0\\)'],
    ['a writer without a use record', () => uses.takeWriter(volume, 'h1', scope), 'h1 \\(h1\\)'],
  ])('is refused for %s, until it is removed', async (_, begin, shownHost) => {
    await begin();
    expectError(await refusal(end()), {
      code: 'in-use',
      reason: 'volume-in-use-elsewhere',
      message: new RegExp(`^volume 'test/photos' cannot be ${done}: it is used by host ${shownHost}$`),
      action: /: stowage volume release test\/photos --host h1$/,
    });
    expect([existsSync(join(folder, 'photos')), await store.names(scope)]).toEqual([true, ['photos']]);
    await uses.remove(volume.id, 'h1', scope);
    await end();
    expect(existsSync(join(folder, 'photos.meta'))).toBe(false);
    expect(readdirSync(usersFolder())).toEqual([]);
  });
});

test('the suggested command removes the record of a stale host rather than that of a live one', async () => {
  await uses.put(volume, use('h1'), scope);
  await uses.put(volume, use('h2'), scope);
  utimesSync(recordPath('h2'), 1, 1);
  expect((await refusal(store.delete(volume, scope))).action).toMatch(/ --host h2$/);
});

test('leftovers of a crash do not prevent a deletion, and go with the volume', async () => {
  await uses.takeWriter(volume, 'h1', scope);
  truncateSync(recordPath('.writer'));
  expect(await uses.list(volume.id, scope)).toEqual([]);
  await store.delete(volume, scope);
  expect(readdirSync(usersFolder())).toEqual([]);
});

test.each([
  ['contains no host id', () => writeFileSync(recordPath('.writer'), '../h1\n')],
  ['is not a file', () => mkdirSync(recordPath('.writer'))],
])('a writer file that %s counts as an unknown host', async (_, damageWriterFile) => {
  mkdirSync(join(usersFolder(), volume.id));
  damageWriterFile();
  expect(await uses.list(volume.id, scope)).toMatchObject([{ host: 'unknown', users: [], writer: true }]);
  expect(await refusal(store.delete(volume, scope))).toMatchObject({ code: 'in-use' });
  expect(await refusal(uses.takeWriter(volume, 'h1', scope))).toMatchObject({ reason: 'volume-written-elsewhere' });
});

test('a writer file of an unknown host can be removed', async () => {
  mkdirSync(join(usersFolder(), volume.id));
  writeFileSync(recordPath('.writer'), '../h1\n');
  await uses.remove(volume.id, 'unknown', scope);
  await store.delete(volume, scope);
  expect(readdirSync(usersFolder())).toEqual([]);
});

test('a host that was suspended while it had the volume locked gives up', async () => {
  const clock = shortWaitClock(systemClock());
  const connect = interceptCalls(connectToDisk(folder), ({ procedure, make }) => {
    if (procedure === 'mkdir') clock.pass(presumedDeadMs / 2 + 1_000);
    return make();
  });
  const suspendedStore = await openNfs({ uri: 'nfs://nowhere/export', kind: createNfsStoreKind(clock, connect) });
  expect(await refusal((suspendedStore.uses as Uses).put(volume, use('h1'), scope))).toMatchObject({
    code: 'deadline',
  });
  expect(await uses.list(volume.id, scope)).toEqual([]);
  await uses.remove(volume.id, 'h1', scope);
  expect(await refusal((suspendedStore.uses as Uses).takeWriter(volume, 'h1', scope))).toMatchObject({
    code: 'deadline',
  });
  expect(await uses.list(volume.id, scope)).toEqual([]);
  expect(readdirSync(join(folder, '.stowage', 'tmp'))).toEqual([]);
  expect(contentsOf(folder).heldLocks()).toEqual([]);
});

describe('a renewal', () => {
  test('makes three calls, and none creates, moves or removes a file', async () => {
    await uses.put(volume, use('h1', 'web-0'), scope);
    const before = readFileSync(recordPath('h1'), 'utf8');
    procedures = [];
    await uses.put(volume, use('h1', 'web-0'), scope);
    expect(procedures).toEqual(['lookup', 'lookup', 'write']);
    expect(readFileSync(recordPath('h1'), 'utf8')).toBe(before);
  });

  test('with other users replaces the old ones', async () => {
    for (const pods of [['web-0'], ['web-0', 'web-1', 'web-2'], ['x'], []]) {
      await uses.put(volume, use('h1', ...pods), scope);
      const users = pods.map((name) => ({ kind: 'pod', name }));
      expect(await uses.list(volume.id, scope)).toMatchObject([{ host: 'h1', node: 'node of h1', users }]);
    }
  });

  test('replaces a record that is too long', async () => {
    await uses.put(volume, use('h1'), scope);
    writeFileSync(recordPath('h1'), 'x'.repeat(70_000));
    await uses.put(volume, use('h1', 'web-0'), scope);
    expect(await uses.list(volume.id, scope)).toMatchObject([{ users: [{ kind: 'pod', name: 'web-0' }] }]);
  });
});

test('listing the uses of an unused volume makes one call, and listing volumes reads no use records', async () => {
  // The first call looks up the folder of all records, too.
  await uses.list(volume.id, scope);
  procedures = [];
  expect(await uses.list(volume.id, scope)).toEqual([]);
  expect(procedures).toEqual(['lookup']);
  await uses.put(volume, use('h1'), scope);
  const paths: string[] = [];
  const connect = interceptCalls(connectToDisk(folder), ({ args, make }) => {
    paths.push(String(args[0]));
    return make();
  });
  const other = await openNfs({ uri: 'nfs://nowhere/export', kind: createNfsStoreKind(systemClock(), connect) });
  paths.length = 0;
  await other.names(scope);
  await other.changedByOthers?.revisions?.(scope);
  await Array.fromAsync(other.list(scope));
  await other.get(volume.name, scope);
  expect(paths.length).toBeGreaterThan(0);
  expect(paths.filter((path) => path.includes('users'))).toEqual([]);
});

describe('a volume with use records of 3000 hosts', () => {
  const hostCount = 3000;
  const hosts = Array.from({ length: hostCount }, (_, i) => `h${i}`);
  let inFlight = 0;
  let maxInFlight = 0;

  /** Creates records of maximum size for all hosts. Counts the concurrent calls of the store that it opens. */
  async function openWithManyHosts(): Promise<Uses> {
    const record = JSON.stringify({ version: 1, host: 'h', node: 'somewhere', users: [] }).padEnd(65_000);
    await uses.put(volume, use('h0'), scope);
    writeFileSync(recordPath('h0'), record);
    for (const host of hosts.slice(1)) linkSync(recordPath('h0'), recordPath(host));
    writeFileSync(recordPath('.writer'), 'h2999');
    [inFlight, maxInFlight] = [0, 0];
    const connect = interceptCalls(connectToDisk(folder), async ({ make }) => {
      maxInFlight = Math.max(maxInFlight, ++inFlight);
      try {
        return await make();
      } finally {
        inFlight--;
      }
    });
    return (await openNfs({ uri: 'nfs://nowhere/export', kind: createNfsStoreKind(systemClock(), connect) }))
      .uses as Uses;
  }

  test('makes list() read only some records, including that of the writer, and at most 16 at a time', async () => {
    const seen = await (await openWithManyHosts()).list(volume.id, scope);
    expect(maxInFlight).toBeLessThanOrEqual(16);
    expect(maxInFlight).toBeGreaterThan(1);
    expect(seen.length).toBeLessThan(maxHosts + 20);
    expect(seen.filter(({ writer }) => writer)).toMatchObject([{ host: 'h2999' }]);
    expect(seen.at(-1)).toEqual({
      host: unreadHosts,
      node: `${hostCount - seen.length + 1} more hosts`,
      users: [],
      writer: false,
      stale: false,
      renewedAt: expect.any(Number),
    });
    // Only the first records are read within the size limit.
    const withNode = seen.filter(({ node }) => node === 'somewhere').length;
    expect(withNode).toBe(Math.floor(maxTotalChars / 65_000));
    expect(seen.filter(({ node, host }) => node === host)).toHaveLength(seen.length - 1 - withNode);
  });

  test('cannot be deleted, and the error counts the hosts', async () => {
    await openWithManyHosts();
    procedures = [];
    expectError(await refusal(store.delete(volume, scope)), {
      code: 'in-use',
      reason: 'volume-in-use-elsewhere',
      message: /it is used by host .* and 5\d\d more$/,
      action: / --host h\d+$/,
    });
    expect(procedures.filter((procedure) => procedure === 'read').length).toBeLessThan(2 * maxHosts);
    expect(await refusal(uses.remove(volume.id, unreadHosts, scope))).toMatchObject({ reason: 'host-id-invalid' });
  });
});

describe('after the host of a deletion was killed between removing the data and the record', () => {
  test.each([
    ['using the volume', () => uses.put(volume, use('h1'), scope)],
    ['becoming its writer', () => uses.takeWriter(volume, 'h1', scope)],
  ])('%s finishes the deletion and fails with volume-unknown', async (_, begin) => {
    writeFileSync(join(folder, 'photos', 'file'), 'data');
    const isHalfDone = (): boolean => !existsSync(join(folder, 'photos')) && existsSync(join(folder, 'photos.meta'));
    const host = crashableProcess(connectToDisk(folder));
    const kind = createNfsStoreKind(shortWaitClock(systemClock()), host.connect);
    const dying = await openNfs({ uri: 'nfs://nowhere/export', kind, marks: { own: earlierMark, dead: [] } });
    host.dieOnce(isHalfDone);
    await refusal(dying.delete(volume, scope));
    expect(isHalfDone()).toBe(true);
    expect(await refusal(begin())).toMatchObject({ code: 'not-found', reason: 'volume-unknown' });
    expect(existsSync(join(folder, 'photos.meta'))).toBe(false);
    expect(readdirSync(usersFolder())).toEqual([]);
  });
});
