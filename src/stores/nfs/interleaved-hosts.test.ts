import { mkdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { StowageError } from '#core/errors.ts';
import type { NodeName, Volume, VolumeSpec } from '#core/model.ts';
import { newVolumeId, volumeName } from '#core/names.ts';
import { createNfsStoreKind } from '#stores/nfs/kind.ts';
import { newProcessMark } from '#stores/nfs/lock-marks.ts';
import { scope } from '#testing/contracts/store.ts';
import { connectToDisk } from '#testing/fakes/nfs-on-disk.ts';
import { contentsOf, quickFolder, snapshotOf, wrongRecords } from '#testing/nfs-contents.ts';
import { openNfs } from '#testing/nfs-store.ts';
import { type CallInterceptor, crashableProcess, interceptCalls, shortWaitClock } from '#testing/nfs-tap.ts';
import { keptForAWeek } from '#testing/trash-retention.ts';
import type { FileStore } from '../file-store/verbs.ts';

// Two hosts run one verb each. The first host is suspended before each of its calls to the server in turn. Meanwhile the
// second host runs its verb, to the end or until it waits for the first; then the first continues. Whatever the results are,
// no data may be lost without a deletion, no volume may exist twice, and every record must be valid.

interface Outcome {
  readonly volume?: Volume;
  readonly error?: StowageError;
}

/** The volumes at the start. Each contains a file that identifies its data. */
interface PreparedVolumes {
  readonly a: Volume;
  readonly trashed: Volume;
  readonly released: Volume;
}

type Verb = (store: FileStore, setting: PreparedVolumes, host: string) => Promise<unknown>;

/** The mark of an earlier process of the first host. */
const earlierMark = newProcessMark();

let folder: string;
let first: FileStore;
let second: FileStore;
let witness: FileStore;
/** Suspends the first host before call `at`, until `goOn` resolves. */
let stop: { readonly at: number; readonly reached: () => void; readonly goOn: Promise<void> } | undefined;
let calls = 0;
let resume: () => void = () => undefined;
let setting: PreparedVolumes;
let resetToPrepared: () => void;
let resetFolder: () => void;

const hook: CallInterceptor = async ({ make }) => {
  if (stop !== undefined && ++calls === stop.at) {
    stop.reached();
    await stop.goOn;
  }
  return make();
};

beforeAll(async () => {
  folder = quickFolder('pairs');
  const connect = connectToDisk(folder);
  const clock = systemClock();
  const open = (instance: string, kind: ReturnType<typeof createNfsStoreKind>): Promise<FileStore> =>
    openNfs({
      uri: 'nfs://nowhere/export',
      instance,
      kind,
      marks: { own: newProcessMark(), dead: instance === 'first' ? [earlierMark] : [] },
    });
  first = await open('first', createNfsStoreKind(shortWaitClock(clock), interceptCalls(connect, hook)));
  // When the second host waits, it waits for the first, so let the first continue.
  second = await open(
    'second',
    createNfsStoreKind(
      shortWaitClock(clock, () => resume()),
      connect,
    ),
  );
  witness = await open('witness', createNfsStoreKind(shortWaitClock(clock), connect));
});
beforeAll(async () => {
  setting = await setUp();
  resetToPrepared = snapshotOf(folder);
  resetFolder = resetToPrepared;
});
afterAll(() => rmSync(folder, { recursive: true, force: true }));

const volumeNameOf = volumeName;
const spec = (name: string, requestId: string, host = 'witness'): VolumeSpec => ({
  id: newVolumeId(),
  name: volumeNameOf(name),
  bytes: undefined,
  access: 'filesystem',
  labels: {},
  requestId,
  createdAt: 0,
  instance: host,
});

async function createFilled(name: string): Promise<Volume> {
  const volume = await witness.create(spec(name, `made ${name}`, 'first'), scope);
  writeFileSync(join(folder, name, 'file'), volume.id);
  return volume;
}

async function setUp(): Promise<PreparedVolumes> {
  const [a, trashed, released] = [await createFilled('a'), await createFilled('t'), await createFilled('r')];
  // The entry expires at once. Only the first host may purge it.
  await first.trash.put(trashed, { deletedAt: 1, retention: 0 }, scope);
  await witness.adoption.release(released, scope);
  mkdirSync(join(folder, 'd'));
  writeFileSync(join(folder, 'd', 'file'), 'planted');
  return { a, trashed, released };
}

const failWithoutUses = (): never => {
  throw new Error('this store has no use records');
};

const verbs: Readonly<Record<string, Verb>> = {
  'create n': (store, _, host) => store.create(spec('n', `create by ${host}`, host), scope),
  'create n, the same request': (store, _, host) => store.create(spec('n', 'create', host), scope),
  'create a again': (store, _, host) => store.create(spec('a', 'made a', host), scope),
  'create another a': (store, _, host) => store.create(spec('a', `create by ${host}`, host), scope),
  'delete a': (store, { a }) => store.delete(a, scope),
  'rename a to n': (store, { a }) => store.rename(a, volumeNameOf('n'), scope),
  'rename a to m': (store, { a }) => store.rename(a, volumeNameOf('m'), scope),
  'label a': (store, { a }, host) => store.label(a, { [host]: 'was here' }, scope),
  'release a': (store, { a }) => store.adoption.release(a, scope),
  'put a into the trash': (store, { a }) => store.trash.put(a, keptForAWeek(2), scope),
  'restore t': (store, { trashed }) => store.trash.restore(trashed.id, trashed.name, scope),
  'restore t as n': (store, { trashed }) => store.trash.restore(trashed.id, volumeNameOf('n'), scope),
  'purge t': (store, { trashed }) => store.trash.purge(trashed.id, scope),
  'expire t': (store, { trashed }) => store.trash.purgeExpired(trashed.id, scope),
  'adopt r': (store, _, host) => store.adoption.adopt(volumeNameOf('r'), spec('r', `adopt by ${host}`, host), scope),
  'adopt d': (store, _, host) => store.adoption.adopt(volumeNameOf('d'), spec('d', `adopt by ${host}`, host), scope),
  'adopt n': (store, _, host) => store.adoption.adopt(volumeNameOf('n'), spec('n', `adopt by ${host}`, host), scope),
  'use a': (store, { a }, host) =>
    store.uses?.put(a, { host, node: host as NodeName, users: [] }, scope) ?? failWithoutUses(),
  'write to a': (store, { a }, host) => store.uses?.takeWriter(a, host, scope) ?? failWithoutUses(),
  sweep: (store) => store.housekeeping.sweep(scope),
  reclaim: (store) => store.housekeeping.reclaim(scope),
};

const outcomeOf = async (work: Promise<unknown>): Promise<Outcome> => {
  try {
    const answer = await work;
    return typeof answer === 'object' ? { volume: answer as Volume } : {};
  } catch (error) {
    if (!(error instanceof StowageError)) throw error;
    return { error };
  }
};

/** Describes all inconsistencies of the store. */
function faults({ a, trashed, released }: PreparedVolumes, outcomes: readonly Outcome[], destroyed: readonly string[]) {
  const contents = contentsOf(folder);
  const all = contents.records();
  const found = wrongRecords(all);
  for (const { id } of [a, trashed, released])
    if (!destroyed.includes(id) && !all.some((one) => one.id === id && one.data === id)) found.push(`${id} is lost`);
  if (!contents.has('planted')) found.push('planted data are lost');
  for (const { volume, error } of outcomes) {
    const isThere = volume === undefined || all.some(({ id }) => id === volume.id) || destroyed.includes(volume.id);
    if (!isThere) found.push(`${volume.name} (${volume.id}) was returned, but does not exist`);
    if (error !== undefined && !['exists', 'not-found', 'busy', 'in-use'].includes(error.code))
      found.push(`${error.code}: ${error.message}`);
  }
  // Released data stay where they are, possibly under a name that the other host gave them.
  const retained = all
    .filter(({ at }) => at === 'retained')
    .flatMap(({ id }) => ['a', 'n', 'r'].map((name) => `${name}: ${id}`));
  const expected = ['d: planted', ...retained];
  for (const entry of contents.unrecorded()) if (!expected.includes(entry)) found.push(`without a record: ${entry}`);
  const isLive = (id: string): boolean => all.some((one) => one.id === id && one.at.endsWith('.meta'));
  for (const id of contents.own('users')) if (!isLive(id)) found.push(`${id} has a use record, but does not exist`);
  for (const entry of contents.heldLocks()) found.push(`left locked: ${entry}`);
  for (const entry of contents.own('tmp')) found.push(`left in tmp: ${entry}`);
  return found;
}

const maxCalls = 80;

interface Case {
  readonly one: string;
  readonly other: string;
  /** Ids that may be lost in addition to those that the two verbs destroy. */
  readonly expectedLosses: readonly string[];
  /** Runs before the store is checked. */
  readonly cleanUp: () => Promise<void>;
}

const idsDestroyedBy = (verb: string): string[] =>
  verb === 'delete a' ? [setting.a.id] : ['purge t', 'expire t'].includes(verb) ? [setting.trashed.id] : [];

/** Runs the two verbs once for each call of the first host, and suspends the first host before that call. */
async function interleave({ one, other, expectedLosses, cleanUp }: Case): Promise<void> {
  for (let at = 1; at < maxCalls; at++) {
    resetFolder();
    const reached = Promise.withResolvers<void>();
    const goOn = Promise.withResolvers<void>();
    resume = goOn.resolve;
    calls = 0;
    stop = { at, reached: reached.resolve, goOn: goOn.promise };
    const [verb, otherVerb] = [verbs[one] as Verb, verbs[other] as Verb];
    const outer = outcomeOf(verb(first, setting, 'first'));
    await Promise.race([reached.promise, outer]);
    const isOver = calls < at;
    const inner = outcomeOf(otherVerb(second, setting, 'second'));
    await Promise.race([inner, goOn.promise]);
    goOn.resolve();
    const outcomes = await Promise.all([outer, inner]);
    stop = undefined;
    await cleanUp();
    const answers = outcomes.map(({ volume, error }) => volume?.name ?? error?.reason ?? 'done');
    // A verb that was refused has destroyed nothing.
    const succeeded = [one, other].filter((_, i) => outcomes[i]?.error?.code !== 'in-use');
    // A restored volume must exist, even if the other verb purges it.
    const isRestored = outcomes.some(({ volume }) => volume?.id === setting.trashed.id);
    const destroyedIds = succeeded.flatMap(idsDestroyedBy).filter((id) => !isRestored || id !== setting.trashed.id);
    const foundFaults = faults(setting, outcomes, [...expectedLosses, ...destroyedIds]);
    expect(foundFaults, `stopped before call ${at}; answers: ${answers.join(', ')}`).toEqual([]);
    if (isOver) return;
  }
  throw new Error('it never ends');
}

const withoutLosses = { expectedLosses: [], cleanUp: async () => undefined };

const commonVerbs = [
  'create n',
  'create n, the same request',
  'create a again',
  'delete a',
  'rename a to n',
  'label a',
  'put a into the trash',
  'restore t as n',
  'sweep',
];
describe.each(commonVerbs)('%s, interrupted by', (one) => {
  test.each(commonVerbs)('%s', (other) => interleave({ ...withoutLosses, one, other }));
});

test.each([
  ['rename a to n', 'rename a to m'],
  ['create another a', 'delete a'],
  ['create another a', 'rename a to m'],
  ['restore t', 'restore t as n'],
  ['restore t', 'purge t'],
  ['restore t', 'expire t'],
  ['restore t as n', 'expire t'],
  ['purge t', 'expire t'],
  ['purge t', 'purge t'],
  ['release a', 'create a again'],
  ['release a', 'rename a to n'],
  ['release a', 'release a'],
  ['adopt d', 'adopt d'],
  ['adopt d', 'sweep'],
  ['adopt r', 'adopt r'],
  ['adopt r', 'create n'],
  ['delete a', 'reclaim'],
  ['purge t', 'reclaim'],
  ['reclaim', 'reclaim'],
  ['use a', 'delete a'],
  ['use a', 'put a into the trash'],
  ['use a', 'release a'],
  ['use a', 'rename a to n'],
  ['use a', 'create a again'],
  ['use a', 'use a'],
  ['use a', 'sweep'],
  ['write to a', 'delete a'],
  ['write to a', 'put a into the trash'],
  ['write to a', 'write to a'],
])('%s, interrupted by %s, and vice versa', async (one, other) => {
  await interleave({ ...withoutLosses, one, other });
  await interleave({ ...withoutLosses, one: other, other: one });
});

/** The first host was killed `callsLeft` calls before the end of a verb, and was restarted. */
describe.each([
  ['rename a to n', 2, ['create n', 'rename a to m', 'restore t as n', 'adopt n', 'sweep']],
  ['rename a to n, whose name was then given up', 2, ['create n', 'rename a to m', 'restore t as n', 'delete a']],
  ['restore t as n', 3, ['create n', 'restore t', 'adopt n', 'sweep', 'expire t', 'purge t']],
  ['delete a', 2, ['create a again', 'delete a', 'put a into the trash', 'use a', 'sweep']],
  ['put a into the trash', 2, ['create a again', 'delete a', 'put a into the trash', 'use a', 'sweep']],
] as const)('after the first host was killed during: %s', (crashedVerb, callsLeft, laterVerbs) => {
  const expectedLosses = (): string[] => idsDestroyedBy(crashedVerb);

  beforeAll(async () => {
    resetFolder = resetToPrepared;
    resetFolder();
    const verb = verbs[crashedVerb.replace(/,.*/, '')] as Verb;
    const crashable = crashableProcess(connectToDisk(folder));
    const open = (): Promise<FileStore> =>
      openNfs({
        uri: 'nfs://nowhere/export',
        instance: 'first',
        marks: { own: earlierMark, dead: [] },
        // By a clock of its own: on a busy machine the renewal of a lock would be one call more.
        kind: createNfsStoreKind(shortWaitClock(systemClock()), crashable.connect),
      });
    const counting = await open();
    crashable.dieAt(-1, 'before');
    await verb(counting, setting, 'first');
    const callCount = crashable.calls;
    resetFolder();
    const dying = await open();
    crashable.dieAt(callCount - callsLeft + 1, 'before');
    await outcomeOf(verb(dying, setting, 'first'));
    expect(crashable.isDead).toBe(true);
    // Remove the locks of the dead host: locks.test.ts tests how long other hosts wait for them.
    rmSync(join(folder, '.stowage', 'locks'), { recursive: true });
    mkdirSync(join(folder, '.stowage', 'locks'));
    if (crashedVerb.endsWith('given up')) rmSync(join(folder, 'n.meta'));
    resetFolder = snapshotOf(folder);
  });

  describe.each(laterVerbs)('%s, interrupted by', (one) => {
    test.each(laterVerbs)('%s', (other) =>
      interleave({
        one,
        other,
        expectedLosses: expectedLosses(),
        cleanUp: async () => {
          await first.housekeeping.sweep(scope);
          await first.housekeeping.reclaim(scope);
        },
      }),
    );
  });
});
