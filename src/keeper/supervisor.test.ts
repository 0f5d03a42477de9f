import { openSync, readSync, writeSync } from 'node:fs';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { createMemory } from '#base/linux/shared-memory.ts';
import { silentLog } from '#base/log.ts';
import { lacks } from '#testbed/lacks.ts';
import { createFakeClock, type FakeClock } from '#testing/fakes/clock.ts';
import { createFakeChildren, type FakeChild, type FakeChildren, settled } from '#testing/keeper/fake-children.ts';
import { heartbeatOffset } from './heartbeat.ts';
import { createHeldDescriptors, type HeldDescriptors } from './held-descriptors.ts';
import { createSupervisor, type Supervisor } from './supervisor.ts';

const signal = new AbortController().signal;
let clock: FakeClock;
let children: FakeChildren;
let held: HeldDescriptors;
let supervisor: Supervisor;

describe.skipIf(lacks('linux'))('the supervisor', () => {
  beforeEach(() => {
    clock = createFakeClock();
    children = createFakeChildren();
    held = createHeldDescriptors(createMemory('test', 4096));
    supervisor = createSupervisor({
      clock,
      log: silentLog(),
      start: children.start,
      program: 'old',
      path: '/keeper',
      held,
      wasServed: false,
      serving: undefined,
      changed: () => undefined,
    });
  });
  afterEach(() => {
    supervisor.release();
    held[Symbol.dispose]();
  });

  const addMount = (id = 'm'): void => supervisor.add({ id, spec: {}, fd: openSync('/dev/null', 'r') });
  const childAt = (i: number): FakeChild => children.all.at(i) ?? expect.fail(`child ${i} was not started`);
  const kinds = (child: FakeChild): readonly string[] => child.sent.map(({ kind }) => kind);

  function beat(): void {
    const word = Buffer.alloc(4);
    readSync(held.journal, word, 0, 4, heartbeatOffset);
    word.writeUInt32LE(word.readUInt32LE() + 1);
    writeSync(held.journal, word, 0, 4, heartbeatOffset);
  }

  /** Advances the clock while the data path beats. */
  function advanceWithHeartbeat(ms: number): void {
    for (let passed = 0; passed < ms; passed += 250) {
      beat();
      clock.advance(250);
    }
  }

  /** One serves, one is standby: children 0 and 1. */
  function startServing(): void {
    childAt(0).hello();
    addMount();
    childAt(0).says({ kind: 'ready' });
    childAt(1).hello();
  }

  describe('with one serving data path and one standby', () => {
    test('keeps a mount that arrives before the first data path is loaded', () => {
      addMount();
      expect(supervisor.state.doing).toBe('taking over');
      childAt(0).hello();
      expect(childAt(0).sent).toMatchObject([
        { kind: 'serve', as: 'first', path: '/keeper', mounts: 1 },
        { kind: 'add' },
      ]);
      childAt(0).says({ kind: 'ready' });
      expect(supervisor.state.doing).toBe('serving');
    });

    test('starts the next standby when the data path is ready, or after a while', () => {
      childAt(0).hello();
      addMount();
      expect(children.all).toHaveLength(1);
      advanceWithHeartbeat(1_000);
      expect(children.all).toHaveLength(2);
    });

    test('gives everything to the standby only when the dead data path is certainly gone', async () => {
      startServing();
      addMount('second');
      childAt(0).says({ kind: 'holding', sockets: [{ socket: 's', about: 'x' }] }, [openSync('/dev/null', 'r')]);
      childAt(0).breaks();
      await settled();
      expect(childAt(0).isEnding).toBe(true);
      expect(kinds(childAt(1))).toEqual([]);
      expect(supervisor.state.doing).toBe('taking over');
      await childAt(0).dies();
      expect(childAt(1).sent).toMatchObject([
        { kind: 'serve', as: 'successor', mounts: 2, sockets: 1 },
        { kind: 'add', mounts: [{ mount: 'm' }, { mount: 'second' }] },
        { kind: 'holding', sockets: [{ socket: 's' }] },
      ]);
      // Later messages of the dead one change nothing.
      childAt(0).says({ kind: 'letGo', socket: 's' });
      expect(supervisor.state).toMatchObject({ takeovers: 1, sockets: 1, deaths: 1 });
    });

    test('uses a standby that is still loading as soon as it is loaded', async () => {
      startServing();
      await childAt(0).dies();
      expect(kinds(childAt(1))).toContain('serve');
      childAt(1).says({ kind: 'ready' });
      await childAt(1).dies();
      expect(children.all).toHaveLength(3);
      expect(kinds(childAt(2))).toEqual([]);
      childAt(2).hello();
      expect(kinds(childAt(2))).toContain('serve');
    });

    test('replaces a standby that dies', async () => {
      startServing();
      await childAt(1).dies();
      expect(children.all).toHaveLength(3);
      expect(supervisor.state.doing).toBe('serving');
    });

    test('ends and replaces a process that never says hello', async () => {
      clock.advance(30_000);
      expect(childAt(0).isEnding).toBe(true);
      await childAt(0).dies();
      clock.advance(1_000);
      expect(children.all).toHaveLength(2);
    });

    test('without mounts serves nothing and closes the sockets of the dead data path', async () => {
      startServing();
      childAt(0).says({ kind: 'holding', sockets: [{ socket: 's', about: 'x' }] }, [openSync('/dev/null', 'r')]);
      supervisor.remove('m');
      expect(kinds(childAt(0))).toContain('remove');
      await childAt(0).dies();
      expect(kinds(childAt(1))).toEqual([]);
      expect(supervisor.state).toMatchObject({ doing: 'idle', active: null, sockets: 0 });
    });
  });

  describe('on a flush', () => {
    const flushRequests = (child: FakeChild) => child.sent.filter((message) => message.kind === 'flush');

    test('returns the count from the data path', async () => {
      startServing();
      addMount('second');
      const [one, other] = [supervisor.flush('m', 500, signal), supervisor.flush('second', 700, signal)];
      expect(flushRequests(childAt(0))).toMatchObject([
        { mount: 'm', ms: 500 },
        { mount: 'second', ms: 700 },
      ]);
      for (const [i, { ask }] of flushRequests(childAt(0)).entries())
        childAt(0).says({ kind: 'flushed', ask, files: i + 3 });
      expect([await one, await other]).toEqual([3, 4]);
    });

    test('asks the successor with the remaining time if the data path did not answer', async () => {
      startServing();
      const flushing = supervisor.flush('m', 5_000, signal);
      advanceWithHeartbeat(1_000);
      await childAt(0).dies();
      expect(flushRequests(childAt(1))).toMatchObject([{ mount: 'm', ms: 4_000 }]);
      const [{ ask } = expect.fail()] = flushRequests(childAt(1));
      // Messages of the dead one do not count.
      childAt(0).says({ kind: 'flushed', ask, files: 0 });
      childAt(1).says({ kind: 'flushed', ask, files: 7 });
      expect(await flushing).toBe(7);
    });

    test('returns one if no data path answers, because there may be incomplete files', async () => {
      addMount();
      const flushing = supervisor.flush('m', 5_000, signal);
      clock.advance(6_000);
      expect(await flushing).toBe(1);
    });

    test('returns zero for a mount that does not exist', async () => {
      startServing();
      expect(await supervisor.flush('other', 5_000, signal)).toBe(0);
      expect(flushRequests(childAt(0))).toEqual([]);
    });
  });

  describe('with a data path that hangs', () => {
    test('kills it, and the standby takes over', async () => {
      startServing();
      advanceWithHeartbeat(30_000);
      expect(childAt(0).isEnding).toBe(false);
      for (let i = 0; i < 9; i++) clock.advance(500);
      expect(childAt(0).isEnding).toBe(false);
      for (let i = 0; i < 2; i++) clock.advance(500);
      expect(childAt(0).isEnding).toBe(true);
      await childAt(0).dies();
      expect(kinds(childAt(1))).toContain('serve');
    });

    test('does not count it as serving, even if it cannot be killed', () => {
      startServing();
      advanceWithHeartbeat(1_000);
      expect(supervisor.state).toMatchObject({ doing: 'serving', active: { ready: true } });
      for (let i = 0; i < 11; i++) clock.advance(500);
      expect(childAt(0).isEnding).toBe(true);
      expect(supervisor.state).toMatchObject({ doing: 'taking over', active: { ready: false } });
    });

    test('kills it at once if its program no longer runs', () => {
      startServing();
      advanceWithHeartbeat(1_000);
      childAt(0).wasKilled();
      // Its heartbeat moved since the last check.
      clock.advance(500);
      clock.advance(500);
      expect(childAt(0).isEnding).toBe(true);
    });

    test('does not kill it if the whole machine stood still', () => {
      startServing();
      advanceWithHeartbeat(1_000);
      clock.advance(3_600_000);
      advanceWithHeartbeat(1_000);
      expect(childAt(0).isEnding).toBe(false);
    });

    test('gives a successor as much time as its predecessor', async () => {
      startServing();
      advanceWithHeartbeat(1_000);
      for (let i = 0; i < 9; i++) clock.advance(500);
      await childAt(0).dies();
      for (let i = 0; i < 9; i++) clock.advance(500);
      expect(childAt(1).isEnding).toBe(false);
      clock.advance(500);
      clock.advance(500);
      expect(childAt(1).isEnding).toBe(true);
    });
  });

  describe('with data paths that die repeatedly', () => {
    /** Number of starts in a minute in which each dies this way. */
    async function startsInAMinute(die: (child: FakeChild) => Promise<void>): Promise<number> {
      const before = children.all.length;
      for (let i = 0; i < 240; i++) {
        const last = childAt(-1);
        if (last.isOpen) await die(last);
        advanceWithHeartbeat(250);
      }
      return children.all.length - before;
    }

    test('before they are loaded starts fewer and fewer, reports it, and never gives up', async () => {
      addMount();
      const starts = await startsInAMinute((child) => child.dies());
      expect(starts).toBeGreaterThan(5);
      expect(starts).toBeLessThan(25);
      expect(supervisor.state.doing).toBe('failing');
      // Finally one survives.
      advanceWithHeartbeat(11_000);
      childAt(-1).hello();
      expect(kinds(childAt(-1))).toContain('serve');
      childAt(-1).says({ kind: 'ready' });
      advanceWithHeartbeat(61_000);
      expect(supervisor.state).toMatchObject({ doing: 'serving', deaths: 0 });
    });

    test('after they were ready starts one per second', async () => {
      addMount();
      const starts = await startsInAMinute(async (child) => {
        child.hello();
        child.says({ kind: 'ready' });
        await child.dies();
      });
      expect(starts).toBeGreaterThan(50);
      expect(starts).toBeLessThan(75);
      expect(supervisor.state.doing).toBe('failing');
    });

    test('retries a program that cannot be started', () => {
      let tries = 0;
      const other = createSupervisor({
        clock,
        log: silentLog(),
        program: 'old',
        path: '/keeper',
        held,
        wasServed: false,
        serving: undefined,
        changed: () => undefined,
        start: () => {
          tries++;
          throw new Error('no memory');
        },
      });
      for (let i = 0; i < 600; i++) clock.advance(100);
      expect(tries).toBeGreaterThan(5);
      expect(tries).toBeLessThan(25);
      other.release();
    });
  });

  describe('on an upgrade', () => {
    test('loads the new program first, then stops the old one before the new one starts', async () => {
      startServing();
      const upgrade = supervisor.upgrade('new', signal);
      expect(childAt(2).program).toBe('new');
      expect(kinds(childAt(0))).not.toContain('stop');
      childAt(2).hello();
      await settled();
      expect(kinds(childAt(0))).toContain('stop');
      expect(childAt(0).isEnding).toBe(false);
      expect(childAt(1).isEnding).toBe(true);
      expect(kinds(childAt(2))).toEqual([]);
      childAt(0).says({ kind: 'stopped' });
      await settled();
      // It may still have a call in flight.
      expect([childAt(0).isEnding, kinds(childAt(2))]).toEqual([true, []]);
      await childAt(0).dies();
      expect(childAt(2).sent[0]).toMatchObject({ kind: 'serve', as: 'successor' });
      childAt(2).says({ kind: 'ready' });
      await upgrade;
      await childAt(1).dies();
      expect(supervisor.state).toMatchObject({ doing: 'serving', active: { version: 'new' }, deaths: 0, takeovers: 1 });
      expect(childAt(3).program).toBe('new');
    });

    test('waits at most two seconds for a stopped process whose exit it cannot see', async () => {
      startServing();
      const upgrade = supervisor.upgrade('new', signal);
      childAt(2).hello();
      await settled();
      childAt(0).says({ kind: 'stopped' });
      advanceWithHeartbeat(1_750);
      await settled();
      expect(kinds(childAt(2))).toEqual([]);
      advanceWithHeartbeat(250);
      await settled();
      expect(kinds(childAt(2))).toContain('serve');
      childAt(2).says({ kind: 'ready' });
      await upgrade;
    });

    test('kills a data path that does not stop', async () => {
      startServing();
      const upgrade = supervisor.upgrade('new', signal);
      childAt(2).hello();
      await settled();
      clock.advance(2_000);
      await settled();
      expect(childAt(0).isEnding).toBe(true);
      await childAt(0).dies();
      expect(kinds(childAt(2))).toContain('serve');
      childAt(2).says({ kind: 'ready' });
      await upgrade;
    });

    test('changes nothing if the new program does not start', async () => {
      startServing();
      const upgrade = supervisor.upgrade('new', signal);
      const failed = expect(upgrade).rejects.toMatchObject({ reason: 'not-started' });
      await childAt(2).dies();
      await failed;
      expect(kinds(childAt(0))).not.toContain('stop');
      await childAt(1).dies();
      advanceWithHeartbeat(1_000);
      expect(childAt(3).program).toBe('old');
    });

    test('returns to the previous program if the new one dies while taking over', async () => {
      startServing();
      const upgrade = supervisor.upgrade('new', signal);
      const failed = expect(upgrade).rejects.toMatchObject({ reason: 'not-ready' });
      childAt(2).hello();
      await settled();
      childAt(0).says({ kind: 'stopped' });
      await childAt(0).dies();
      await childAt(2).dies();
      await failed;
      advanceWithHeartbeat(2_000);
      expect(childAt(-1).program).toBe('old');
      childAt(-1).hello();
      expect(kinds(childAt(-1))).toContain('serve');
    });

    test('returns to the previous program if the new one cannot serve a mount, and drops no mount', async () => {
      startServing();
      addMount('second');
      const upgrade = supervisor.upgrade('new', signal);
      const failed = expect(upgrade).rejects.toThrow('cannot serve all mounts');
      childAt(2).hello();
      await settled();
      childAt(0).says({ kind: 'stopped' });
      await childAt(0).dies();
      advanceWithHeartbeat(1_000);
      // Another process of the new program is already loaded.
      childAt(3).hello();
      childAt(2).says({ kind: 'ended', mount: 'second', unserved: true });
      childAt(2).says({ kind: 'ended', mount: 'm', unserved: true });
      expect(childAt(2).isEnding).toBe(true);
      await childAt(2).dies();
      await failed;
      advanceWithHeartbeat(2_000);
      expect(kinds(childAt(3))).not.toContain('serve');
      expect(childAt(-1).program).toBe('old');
      childAt(-1).hello();
      expect(childAt(-1).sent[0]).toMatchObject({ kind: 'serve', mounts: 2 });
      // Without another program to try, the mount is dropped.
      childAt(-1).says({ kind: 'ended', mount: 'second', unserved: true });
      expect([...held.mounts.keys()]).toEqual(['m']);
    });

    test('refuses a second concurrent upgrade', async () => {
      startServing();
      const upgrade = supervisor.upgrade('new', signal);
      await expect(supervisor.upgrade('newer', signal)).rejects.toMatchObject({ reason: 'busy' });
      const failed = expect(upgrade).rejects.toThrow();
      await childAt(2).dies();
      await failed;
    });
  });
});
