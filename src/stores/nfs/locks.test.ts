import { execFileSync } from 'node:child_process';
import { mkdirSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, beforeEach, describe, expect, test, vi } from 'vitest';
import { systemClock } from '#base/clock.ts';
import type { StowageError } from '#core/errors.ts';
import type { Volume, VolumeSpec } from '#core/model.ts';
import { newVolumeId, volumeName } from '#core/names.ts';
import type { ProcessMarks } from '#core/ports.ts';
import { type Connect, createConnect } from '#stores/nfs/connect.ts';
import { createNfsStoreKind } from '#stores/nfs/kind.ts';
import { startGanesha } from '#testbed/ganesha.ts';
import { lacks } from '#testbed/lacks.ts';
import type { NfsServer } from '#testbed/nfs-server.ts';
import { scope } from '#testing/contracts/store.ts';
import { outcome } from '#testing/expected-errors.ts';
import { ganeshaFolders, portsOf } from '#testing/ganesha-folders.ts';
import { contentsOf, wrongRecords } from '#testing/nfs-contents.ts';
import { createProcesses, openNfs } from '#testing/nfs-store.ts';
import { type CallInterceptor, interceptCalls, shortWaitClock } from '#testing/nfs-tap.ts';
import { createScratchFolder, type ScratchFolder } from '#testing/scratch-folder.ts';
import { keptForAWeek } from '#testing/trash-retention.ts';
import { volumeSpec } from '#testing/volume-spec.ts';
import { NfsError, nfsStatus } from '#wire/nfs3/index.ts';
import type { FileStore } from '../file-store/verbs.ts';

// Hosts that die, are suspended or run out of space while they hold a lock.

const volumeNameOf = volumeName;
const spec = (name: string, instance: string): VolumeSpec =>
  volumeSpec(name, { requestId: `${instance} ${name}`, instance });
const reasonOf = (work: Promise<unknown>): Promise<string> => outcome(work, 'reason');

interface Host {
  readonly store: FileStore;
  readonly clock: ReturnType<typeof shortWaitClock>;
  /** How often this host waited for another one. */
  waits: number;
  /** Intercepts each call of this host. */
  hook: CallInterceptor;
}

describe.skipIf(lacks('ganesha'))('on nfs-ganesha', () => {
  const ganesha = ganeshaFolders('locks');
  let folder: string;
  let freshExport: ReturnType<typeof ganesha.fresh>;
  beforeEach(() => {
    freshExport = ganesha.fresh();
    ({ folder } = freshExport);
  });

  /** `marks` undefined: a process that cannot know whether the one before it is dead. */
  async function startHost(instance: string, marks?: ProcessMarks): Promise<Host> {
    const started = { waits: 0, hook: ({ make }) => make() } as { -readonly [key in keyof Host]: Host[key] };
    started.clock = shortWaitClock(systemClock(), () => started.waits++);
    const connect: Connect = interceptCalls(createConnect(systemClock()), (call) => started.hook(call));
    started.store = await openNfs({
      ...freshExport,
      instance,
      kind: createNfsStoreKind(started.clock, connect),
      ...(marks === undefined ? {} : { marks }),
    });
    return started;
  }

  const heldLocks = (): string[] => contentsOf(folder).heldLocks();
  const untilReached = <T>(promise: Promise<T>, reached: Promise<void>): Promise<unknown> =>
    Promise.race([promise, reached]);

  /** Starts a host that is killed when it has taken the lock. */
  async function killWhileLocked(volume: Volume, instance: string, marks?: ProcessMarks): Promise<void> {
    const dying = await startHost(instance, marks);
    let isDead = false;
    dying.hook = async ({ procedure, make }) => {
      if (isDead) throw new Error('killed');
      const answer = await make();
      isDead = procedure === 'create';
      return answer;
    };
    await reasonOf(dying.store.label(volume, { x: 'dead' }, scope));
    expect(heldLocks()).toEqual([volume.id]);
  }

  /** Suspends the host right before that procedure, until `resume` is called. */
  function stopAt(host: Host, procedure: string): { readonly reached: Promise<void>; resume(): void } {
    const [reached, goOn] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
    host.hook = async (call) => {
      if (call.procedure !== procedure) return call.make();
      reached.resolve();
      await goOn.promise;
      return call.make();
    };
    return { reached: reached.promise, resume: goOn.resolve };
  }

  test('a restarted process takes the lock of its predecessor at once when that is known to be dead', async () => {
    const processes = createProcesses();
    const volume = await (await startHost('one', processes('one'))).store.create(spec('a', 'one'), scope);
    await killWhileLocked(volume, 'one', processes('one'));
    const restarted = await startHost('one', processes('one'));
    expect((await restarted.store.label(volume, { x: 'y' }, scope)).revision).toBe(2);
    expect(heldLocks()).toEqual([]);
  });

  test('a process of the same instance waits for a lock whose holder it cannot know to be dead', async () => {
    const volume = await (await startHost('one')).store.create(spec('a', 'one'), scope);
    await killWhileLocked(volume, 'one');
    const restarted = await startHost('one');
    expect(await reasonOf(restarted.store.label(volume, { x: 'y' }, scope))).toBe('volume-locked-elsewhere');
    restarted.clock.pass(120_000);
    expect((await restarted.store.label(volume, { x: 'y' }, scope)).revision).toBe(2);
  });

  test('two processes of one instance exclude each other', async () => {
    const [one, other] = [await startHost('cluster'), await startHost('cluster')];
    const volume = await one.store.create(spec('a', 'cluster'), scope);
    const { reached, resume } = stopAt(one, 'rename');
    const suspended = one.store.label(volume, { x: 'slow' }, scope);
    await untilReached(suspended, reached);
    expect(await reasonOf(other.store.label(volume, { x: 'y' }, scope))).toBe('volume-locked-elsewhere');
    resume();
    await suspended;
    expect((await other.store.label(volume, { x: 'y' }, scope)).revision).toBe(3);
  });

  test('a process does not take over a name that another process of the same instance has taken', async () => {
    const [one, other] = [await startHost('cluster'), await startHost('cluster')];
    const { reached, resume } = stopAt(one, 'write');
    const suspended = one.store.create(spec('a', 'first request'), scope);
    await untilReached(suspended, reached);
    expect(await reasonOf(other.store.create(spec('a', 'second request'), scope))).toBe('volume-being-made');
    resume();
    expect((await suspended).requestId).toBe('first request a');
  });

  test('a sweep of one process does not remove files that another process of the same instance is writing', async () => {
    const one = await startHost('cluster');
    const volume = await one.store.create(spec('a', 'cluster'), scope);
    const { reached, resume } = stopAt(one, 'rename');
    const suspended = one.store.label(volume, { x: 'slow' }, scope);
    await untilReached(suspended, reached);
    const other = await startHost('cluster');
    await other.store.housekeeping.sweep(scope);
    resume();
    expect((await suspended).revision).toBe(2);
    expect(contentsOf(folder).own('tmp')).toEqual([]);
  });

  test('second copies of the calls that took and released a lock, executed late, leave the lock of another host alone', async () => {
    const [one, two] = [await startHost('one'), await startHost('two')];
    const volume = await one.store.create(spec('a', 'one'), scope);
    // Creates the lock file, so that host one takes an existing lock.
    await two.store.label(volume, { x: 'before' }, scope);
    const sent: (() => Promise<unknown>)[] = [];
    one.hook = ({ procedure, args, make }) => {
      const isRemoval = procedure === 'remove' && args[1] === volume.id;
      if (procedure === 'setattr' || isRemoval) sent.push(make);
      return make();
    };
    await one.store.label(volume, { x: 'one' }, scope);
    const { reached, resume } = stopAt(two, 'rename');
    const suspended = two.store.label(volume, { x: 'two' }, scope);
    await untilReached(suspended, reached);
    expect(sent.length).toBeGreaterThan(0);
    for (const resend of sent) await resend().catch(() => undefined);
    expect(heldLocks()).toEqual([volume.id]);
    expect(await reasonOf(one.store.label(volume, { x: 'one again' }, scope))).toBe('volume-locked-elsewhere');
    resume();
    expect((await suspended).labels).toEqual({ x: 'two' });
    expect(heldLocks()).toEqual([]);
  });

  test('an operation after another one on the same volume makes three calls for its lock', async () => {
    const one = await startHost('one');
    const volume = await one.store.create(spec('a', 'one'), scope);
    await one.store.label(volume, { x: '1' }, scope);
    const lock = join(folder, '.stowage', 'locks', volume.id);
    const released = statSync(lock).ctimeMs;
    // Wait for a tick of the file system's clock.
    await vi.waitFor(() => {
      writeFileSync(join(folder, 'probe'), '');
      expect(statSync(join(folder, 'probe')).ctimeMs).toBeGreaterThan(released);
    });
    const calls: string[] = [];
    one.hook = ({ procedure, make }) => {
      calls.push(procedure);
      return make();
    };
    await one.store.label(volume, { x: '2' }, scope);
    expect(calls.filter((call) => call === 'setattr')).toHaveLength(3);
    expect(calls.filter((call) => call === 'create')).toHaveLength(1);
    expect(calls).not.toContain('remove');
  });

  test('other hosts wait for the lock of a dead host, and take it over after it has not changed for long', async () => {
    const other = await startHost('two');
    const volume = await other.store.create(spec('a', 'two'), scope);
    await killWhileLocked(volume, 'one');
    expect(await reasonOf(other.store.label(volume, { x: 'y' }, scope))).toBe('volume-locked-elsewhere');
    other.clock.pass(60_000);
    expect(await reasonOf(other.store.label(volume, { x: 'y' }, scope))).toBe('volume-locked-elsewhere');
    other.clock.pass(60_000);
    other.waits = 0;
    expect((await other.store.label(volume, { x: 'y' }, scope)).labels).toEqual({ x: 'y' });
    // It does not break the lock at the first check: after a server outage, a live owner must have had time to continue.
    expect(other.waits).toBeGreaterThan(15);
    expect(heldLocks()).toEqual([]);
  });

  test('of several hosts that take over a lock, one holds it at a time', async () => {
    const all = await Promise.all(['two', 'three', 'four', 'five'].map((instance) => startHost(instance)));
    const volume = await (all[0] as Host).store.create(spec('a', 'two'), scope);
    await killWhileLocked(volume, 'one');
    const label = (it: Host, i: number): Promise<string> => reasonOf(it.store.label(volume, { [`${i}`]: 'x' }, scope));
    await Promise.all(all.map(label));
    for (const { clock } of all) clock.pass(120_000);
    // Their clocks do not wait for the server, so one of them may time out while another holds the lock.
    const labelled = async (it: Host, i: number): Promise<string> => {
      let outcome = '';
      for (let turn = 0; turn < 100 && outcome !== 'done'; turn++) outcome = await label(it, i);
      return outcome;
    };
    expect(await Promise.all(all.map(labelled))).toEqual(['done', 'done', 'done', 'done']);
    expect((await all[0]?.store.get(volume.name, scope))?.volume.revision).toBe(5);
    expect(heldLocks()).toEqual([]);
  });

  test('a live host that has taken the lock again is not presumed dead', async () => {
    const [one, two] = [await startHost('one'), await startHost('two')];
    const volume = await one.store.create(spec('a', 'one'), scope);
    for (let round = 0; round < 3; round++) {
      const { reached, resume } = stopAt(one, 'rename');
      const labelled = one.store.label(volume, { round: `${round}` }, scope);
      await untilReached(labelled, reached);
      two.clock.pass(120_000);
      expect(await reasonOf(two.store.label(volume, { x: 'y' }, scope))).toBe('volume-locked-elsewhere');
      resume();
      await labelled;
    }
  });

  test('a host that was suspended too long does not remove the lock of another one', async () => {
    const [one, two] = [await startHost('one'), await startHost('two')];
    const volume = await one.store.create(spec('a', 'one'), scope);
    const first = stopAt(one, 'rename');
    const suspended = one.store.label(volume, { x: 'late' }, scope);
    await untilReached(suspended, first.reached);
    expect(await reasonOf(two.store.label(volume, { x: 'y' }, scope))).toBe('volume-locked-elsewhere');
    for (const { clock } of [one, two]) clock.pass(130_000);
    const second = stopAt(two, 'rename');
    const takenOver = two.store.label(volume, { x: 'y' }, scope);
    await untilReached(takenOver, second.reached);
    first.resume();
    await suspended;
    expect(heldLocks()).toEqual([volume.id]);
    second.resume();
    await takenOver;
    expect(heldLocks()).toEqual([]);
  });

  test('an empty record belongs to its creator until the creator has been silent for too long', async () => {
    const [one, two] = [await startHost('one'), await startHost('two')];
    const { reached, resume } = stopAt(one, 'write');
    const suspended = reasonOf(one.store.create(spec('a', 'one'), scope));
    await untilReached(suspended, reached);
    expect(await two.store.get(volumeNameOf('a'), scope)).toBeUndefined();
    expect(await reasonOf(two.store.create(spec('a', 'two'), scope))).toBe('volume-being-made');
    for (const { clock } of [one, two]) clock.pass(61_000);
    const made = await two.store.create(spec('a', 'two'), scope);
    resume();
    expect(await suspended).not.toBe('done');
    expect(await Array.fromAsync(one.store.list(scope))).toEqual([made]);
    expect(await reasonOf(one.store.create(spec('a', 'one'), scope))).toBe('volume-exists');
  });

  test('a volume stays if one of two hosts with the same request finds no space and the other succeeds', async () => {
    const [one, two] = [await startHost('one'), await startHost('two')];
    const want = spec('a', 'both');
    let other: Volume | undefined;
    one.hook = async ({ procedure, make }) => {
      if (procedure !== 'mkdir') return make();
      other = await two.store.create({ ...want, id: newVolumeId() }, scope);
      throw new NfsError('MKDIR', nfsStatus.NOSPC, false);
    };
    expect(await one.store.create(want, scope)).toEqual(other);
    expect(wrongRecords(contentsOf(folder).records())).toEqual([]);
    expect(await two.store.names(scope)).toEqual(['a']);
  });

  test('a record that another host replaces while it is read is read again', async () => {
    const [one, two] = [await startHost('one'), await startHost('two')];
    const volume = await one.store.create(spec('a', 'one'), scope);
    let remainingReplacements = 3;
    one.hook = async ({ procedure, make }) => {
      if (procedure === 'read' && remainingReplacements-- > 0)
        await two.store.label(volume, { x: `${remainingReplacements}` }, scope);
      return make();
    };
    expect((await one.store.get(volume.name, scope))?.volume.labels).toEqual({ x: '0' });
  });

  type Verb = (store: FileStore, volume: Volume) => Promise<unknown>;
  const put: Verb = (store, volume) => store.trash.put(volume, keptForAWeek(1), scope);
  test.each<[string, Verb, Verb?]>([
    ['rename', (store, volume) => store.rename(volume, volumeNameOf('n'), scope)],
    ['label', (store, volume) => store.label(volume, { x: volume.id }, scope)],
    ['delete', (store, volume) => store.delete(volume, scope)],
    ['put into the trash', put],
    ['restore', (store, volume) => store.trash.restore(volume.id, volume.name, scope), put],
    [
      'adopt',
      (store, { name: called }) => store.adoption.adopt(called, spec('a', 'adopt'), scope),
      (store, volume) => store.adoption.release(volume, scope),
    ],
  ])('%s: a host that was suspended for long gives up, and succeeds on a retry', async (_verb, verb, prepare) => {
    const one = await startHost('one');
    const outcomes = new Set<string>();
    for (let at = 1, calls = at; calls >= at; at++) {
      const volume = await one.store.create(spec('a', `one ${at}`), scope);
      writeFileSync(join(folder, 'a', 'file'), volume.id);
      await prepare?.(one.store, volume);
      calls = 0;
      one.hook = ({ make }) => {
        if (++calls === at) one.clock.pass(31_000);
        return make();
      };
      const first = await reasonOf(verb(one.store, volume));
      one.hook = ({ make }) => make();
      outcomes.add(first === 'done' ? first : `${first}, then ${await reasonOf(verb(one.store, volume))}`);
      expect(wrongRecords(contentsOf(folder).records())).toEqual([]);
      // Delete the volume, wherever it is, before the next round.
      for (const candidate of ['a', 'n'].map(volumeNameOf))
        await one.store.delete({ id: volume.id, name: candidate }, scope);
      await one.store.trash.purge(volume.id, scope);
    }
    expect([...outcomes].sort()).toEqual(['deadline, then done', 'done']);
    expect([contentsOf(folder).own('tmp'), heldLocks()]).toEqual([[], []]);
  });
});

describe.skipIf(lacks('ganesha', 'mount'))('on a full server', () => {
  let scratch: ScratchFolder;
  let path: string;
  let server: NfsServer;
  beforeAll(async () => {
    scratch = createScratchFolder();
    path = join(scratch.folder, 'small');
    mkdirSync(path);
    execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=1m,nr_inodes=60', 'stowage-small', path]);
    server = await startGanesha({ exports: [{ path, tag: 'export' }], signal: scope.signal });
  });
  afterAll(async () => {
    await server?.[Symbol.asyncDispose]();
    scratch[Symbol.dispose]();
  });

  test('a volume can be deleted without space for a lock file; other verbs are refused and change nothing', async () => {
    const store = await openNfs({ uri: `nfs://${server.host}${path}`, options: portsOf(server) });
    const [a, b] = [await store.create(spec('a', 'one'), scope), await store.create(spec('b', 'one'), scope)];
    writeFileSync(join(path, 'a', 'file'), a.id);
    expect(() => {
      for (let i = 0; ; i++) writeFileSync(join(path, 'b', `${i}`), '');
    }).toThrow('ENOSPC');
    const refused = [
      store.create(spec('c', 'one'), scope),
      store.label(a, { x: 'y' }, scope),
      store.rename(a, volumeNameOf('c'), scope),
      store.trash.put(a, keptForAWeek(1), scope),
    ].map((full) => full.then(String, (cause: StowageError) => cause.code));
    expect(await Promise.all(refused)).toEqual(Array(4).fill('exhausted'));
    expect(
      wrongRecords(
        contentsOf(path)
          .records()
          .filter(({ at }) => at === 'a.meta'),
      ),
    ).toEqual([]);
    await store.delete(a, scope);
    await store.delete(b, scope);
    await store.housekeeping.reclaim(scope);
    expect(await store.names(scope)).toEqual([]);
    const created = await store.create(spec('c', 'one'), scope);
    await store.delete(created, scope);
    expect(contentsOf(path).own('locks')).toEqual([]);
  });

  test.each([
    ['have no lock file yet', false],
    ['have a lock file', true],
  ])('volumes that %s are still locked by one host at a time', async (_, hasLock) => {
    const open = (): Promise<FileStore> => openNfs({ uri: `nfs://${server.host}${path}`, options: portsOf(server) });
    const one = await open();
    const volume = await one.create(spec(`v-${hasLock}`, 'one'), scope);
    if (hasLock) await one.label(volume, { x: 'y' }, scope);
    const resume = Promise.withResolvers<void>();
    const reached = Promise.withResolvers<void>();
    const connect = interceptCalls(createConnect(systemClock()), async ({ procedure, make }) => {
      if (procedure !== 'rmdir') return make();
      reached.resolve();
      await resume.promise;
      return make();
    });
    const [slow, other] = [
      await openNfs({
        uri: `nfs://${server.host}${path}`,
        options: portsOf(server),
        kind: createNfsStoreKind(systemClock(), connect),
      }),
      await openNfs({
        uri: `nfs://${server.host}${path}`,
        options: portsOf(server),
        kind: createNfsStoreKind(shortWaitClock(systemClock()), createConnect(systemClock())),
      }),
    ];
    using filled = exhaustInodes(path);
    const deleted = slow.delete(volume, scope);
    await Promise.race([deleted, reached.promise]);
    expect(await reasonOf(other.delete(volume, scope))).toBe('volume-locked-elsewhere');
    // The other host now has space for a lock file.
    filled[Symbol.dispose]();
    expect(await reasonOf(other.delete(volume, scope))).toBe('volume-locked-elsewhere');
    // The lock file of the last attempt exists now.
    expect(await reasonOf(other.delete(volume, scope))).toBe('volume-locked-elsewhere');
    resume.resolve();
    await deleted;
    await other.delete(volume, scope);
    expect(await one.names(scope)).toEqual([]);
    expect(contentsOf(path).heldLocks()).toEqual([]);
    // The file that was created while the volume was deleted is removed, too.
    await one.housekeeping.sweep(scope);
    expect(contentsOf(path).own('locks')).toEqual([]);
  });
});

/** Uses all inodes until it is disposed of. */
function exhaustInodes(path: string): Disposable {
  const folder = join(path, 'filling');
  mkdirSync(folder);
  expect(() => {
    for (let i = 0; ; i++) writeFileSync(join(folder, `${i}`), '');
  }).toThrow('ENOSPC');
  return { [Symbol.dispose]: () => rmSync(folder, { recursive: true, force: true }) };
}
