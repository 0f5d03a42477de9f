import { openSync, readSync, writeSync } from 'node:fs';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { createMemory } from '#base/linux/shared-memory.ts';
import { silentLog } from '#base/log.ts';
import { needs } from '#testbed/needs.ts';
import { createFakeClock, type FakeClock } from '#testing/fakes/clock.ts';
import { createFakeChildren, type FakeChild, type FakeChildren, settled } from '#testing/keeper/fake-children.ts';
import { heartbeatAt } from './heartbeat.ts';
import { createHeldDescriptors, type HeldDescriptors } from './held-descriptors.ts';
import { createSupervisor, type Supervisor } from './supervisor.ts';

const signal = new AbortController().signal;
let clock: FakeClock;
let children: FakeChildren;
let held: HeldDescriptors;
let supervisor: Supervisor;

describe.skipIf(needs('linux'))('the supervisor', () => {
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
  const nth = (i: number): FakeChild => children.all.at(i) ?? expect.fail(`child ${i} was not started`);
  const kinds = (child: FakeChild): readonly string[] => child.sent.map(({ kind }) => kind);

  function beat(): void {
    const word = Buffer.alloc(4);
    readSync(held.journal, word, 0, 4, heartbeatAt);
    word.writeUInt32LE(word.readUInt32LE() + 1);
    writeSync(held.journal, word, 0, 4, heartbeatAt);
  }

  /** Advances the clock while the data path beats. */
  function live(ms: number): void {
    for (let passed = 0; passed < ms; passed += 250) {
      beat();
      clock.advance(250);
    }
  }

  /** One serves, one is standby: children 0 and 1. */
  function serving(): void {
    nth(0).hello();
    addMount();
    nth(0).says({ kind: 'ready' });
    nth(1).hello();
  }

  describe('with one serving data path and one standby', () => {
    test('keeps a mount that arrives before the first data path is loaded', () => {
      addMount();
      expect(supervisor.state.doing).toBe('taking over');
      nth(0).hello();
      expect(nth(0).sent).toMatchObject([{ kind: 'serve', as: 'first', path: '/keeper', mounts: 1 }, { kind: 'add' }]);
      nth(0).says({ kind: 'ready' });
      expect(supervisor.state.doing).toBe('serving');
    });

    test('starts the next standby when the data path is ready, or after a while', () => {
      nth(0).hello();
      addMount();
      expect(children.all).toHaveLength(1);
      live(1_000);
      expect(children.all).toHaveLength(2);
    });

    test('gives everything to the standby only when the dead data path is certainly gone', async () => {
      serving();
      addMount('second');
      nth(0).says({ kind: 'holding', sockets: [{ socket: 's', about: 'x' }] }, [openSync('/dev/null', 'r')]);
      nth(0).breaks();
      await settled();
      expect(nth(0).isEnding).toBe(true);
      expect(kinds(nth(1))).toEqual([]);
      expect(supervisor.state.doing).toBe('taking over');
      await nth(0).dies();
      expect(nth(1).sent).toMatchObject([
        { kind: 'serve', as: 'successor', mounts: 2, sockets: 1 },
        { kind: 'add', mounts: [{ mount: 'm' }, { mount: 'second' }] },
        { kind: 'holding', sockets: [{ socket: 's' }] },
      ]);
      // Later messages of the dead one change nothing.
      nth(0).says({ kind: 'letGo', socket: 's' });
      expect(supervisor.state).toMatchObject({ takeovers: 1, sockets: 1, deaths: 1 });
    });

    test('uses a standby that is still loading as soon as it is loaded', async () => {
      serving();
      await nth(0).dies();
      expect(kinds(nth(1))).toContain('serve');
      nth(1).says({ kind: 'ready' });
      await nth(1).dies();
      expect(children.all).toHaveLength(3);
      expect(kinds(nth(2))).toEqual([]);
      nth(2).hello();
      expect(kinds(nth(2))).toContain('serve');
    });

    test('replaces a standby that dies', async () => {
      serving();
      await nth(1).dies();
      expect(children.all).toHaveLength(3);
      expect(supervisor.state.doing).toBe('serving');
    });

    test('ends and replaces a process that never says hello', async () => {
      clock.advance(30_000);
      expect(nth(0).isEnding).toBe(true);
      await nth(0).dies();
      clock.advance(1_000);
      expect(children.all).toHaveLength(2);
    });

    test('without mounts serves nothing and closes the sockets of the dead data path', async () => {
      serving();
      nth(0).says({ kind: 'holding', sockets: [{ socket: 's', about: 'x' }] }, [openSync('/dev/null', 'r')]);
      supervisor.remove('m');
      expect(kinds(nth(0))).toContain('remove');
      await nth(0).dies();
      expect(kinds(nth(1))).toEqual([]);
      expect(supervisor.state).toMatchObject({ doing: 'idle', active: null, sockets: 0 });
    });
  });

  describe('on a flush', () => {
    const asked = (child: FakeChild) => child.sent.filter((message) => message.kind === 'flush');

    test('returns the count from the data path', async () => {
      serving();
      addMount('second');
      const [one, other] = [supervisor.flush('m', 500, signal), supervisor.flush('second', 700, signal)];
      expect(asked(nth(0))).toMatchObject([
        { mount: 'm', ms: 500 },
        { mount: 'second', ms: 700 },
      ]);
      for (const [i, { ask }] of asked(nth(0)).entries()) nth(0).says({ kind: 'flushed', ask, files: i + 3 });
      expect([await one, await other]).toEqual([3, 4]);
    });

    test('asks the successor with the remaining time if the data path did not answer', async () => {
      serving();
      const flushing = supervisor.flush('m', 5_000, signal);
      live(1_000);
      await nth(0).dies();
      expect(asked(nth(1))).toMatchObject([{ mount: 'm', ms: 4_000 }]);
      const [{ ask } = expect.fail()] = asked(nth(1));
      // Messages of the dead one do not count.
      nth(0).says({ kind: 'flushed', ask, files: 0 });
      nth(1).says({ kind: 'flushed', ask, files: 7 });
      expect(await flushing).toBe(7);
    });

    test('returns one if no data path answers, because there may be incomplete files', async () => {
      addMount();
      const flushing = supervisor.flush('m', 5_000, signal);
      clock.advance(6_000);
      expect(await flushing).toBe(1);
    });

    test('returns zero for a mount that does not exist', async () => {
      serving();
      expect(await supervisor.flush('other', 5_000, signal)).toBe(0);
      expect(asked(nth(0))).toEqual([]);
    });
  });

  describe('with a data path that hangs', () => {
    test('kills it, and the standby takes over', async () => {
      serving();
      live(30_000);
      expect(nth(0).isEnding).toBe(false);
      for (let i = 0; i < 9; i++) clock.advance(500);
      expect(nth(0).isEnding).toBe(false);
      for (let i = 0; i < 2; i++) clock.advance(500);
      expect(nth(0).isEnding).toBe(true);
      await nth(0).dies();
      expect(kinds(nth(1))).toContain('serve');
    });

    test('does not count it as serving, even if it cannot be killed', () => {
      serving();
      live(1_000);
      expect(supervisor.state).toMatchObject({ doing: 'serving', active: { ready: true } });
      for (let i = 0; i < 11; i++) clock.advance(500);
      expect(nth(0).isEnding).toBe(true);
      expect(supervisor.state).toMatchObject({ doing: 'taking over', active: { ready: false } });
    });

    test('kills it at once if its program no longer runs', () => {
      serving();
      live(1_000);
      nth(0).wasKilled();
      // Its heartbeat moved since the last check.
      clock.advance(500);
      clock.advance(500);
      expect(nth(0).isEnding).toBe(true);
    });

    test('does not kill it if the whole machine stood still', () => {
      serving();
      live(1_000);
      clock.advance(3_600_000);
      live(1_000);
      expect(nth(0).isEnding).toBe(false);
    });

    test('gives a successor as much time as its predecessor', async () => {
      serving();
      live(1_000);
      for (let i = 0; i < 9; i++) clock.advance(500);
      await nth(0).dies();
      for (let i = 0; i < 9; i++) clock.advance(500);
      expect(nth(1).isEnding).toBe(false);
      clock.advance(500);
      clock.advance(500);
      expect(nth(1).isEnding).toBe(true);
    });
  });

  describe('with data paths that die repeatedly', () => {
    /** Number of starts in a minute in which each dies this way. */
    async function startsInAMinute(die: (child: FakeChild) => Promise<void>): Promise<number> {
      const before = children.all.length;
      for (let i = 0; i < 240; i++) {
        const last = nth(-1);
        if (last.isOpen) await die(last);
        live(250);
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
      live(11_000);
      nth(-1).hello();
      expect(kinds(nth(-1))).toContain('serve');
      nth(-1).says({ kind: 'ready' });
      live(61_000);
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
      serving();
      const upgrade = supervisor.upgrade('new', signal);
      expect(nth(2).program).toBe('new');
      expect(kinds(nth(0))).not.toContain('stop');
      nth(2).hello();
      await settled();
      expect(kinds(nth(0))).toContain('stop');
      expect(nth(0).isEnding).toBe(false);
      expect(nth(1).isEnding).toBe(true);
      expect(kinds(nth(2))).toEqual([]);
      nth(0).says({ kind: 'stopped' });
      await settled();
      // It may still have a call in flight.
      expect([nth(0).isEnding, kinds(nth(2))]).toEqual([true, []]);
      await nth(0).dies();
      expect(nth(2).sent[0]).toMatchObject({ kind: 'serve', as: 'successor' });
      nth(2).says({ kind: 'ready' });
      await upgrade;
      await nth(1).dies();
      expect(supervisor.state).toMatchObject({ doing: 'serving', active: { version: 'new' }, deaths: 0, takeovers: 1 });
      expect(nth(3).program).toBe('new');
    });

    test('waits at most two seconds for a stopped process whose exit it cannot see', async () => {
      serving();
      const upgrade = supervisor.upgrade('new', signal);
      nth(2).hello();
      await settled();
      nth(0).says({ kind: 'stopped' });
      live(1_750);
      await settled();
      expect(kinds(nth(2))).toEqual([]);
      live(250);
      await settled();
      expect(kinds(nth(2))).toContain('serve');
      nth(2).says({ kind: 'ready' });
      await upgrade;
    });

    test('kills a data path that does not stop', async () => {
      serving();
      const upgrade = supervisor.upgrade('new', signal);
      nth(2).hello();
      await settled();
      clock.advance(2_000);
      await settled();
      expect(nth(0).isEnding).toBe(true);
      await nth(0).dies();
      expect(kinds(nth(2))).toContain('serve');
      nth(2).says({ kind: 'ready' });
      await upgrade;
    });

    test('changes nothing if the new program does not start', async () => {
      serving();
      const upgrade = supervisor.upgrade('new', signal);
      const failed = expect(upgrade).rejects.toMatchObject({ reason: 'not-started' });
      await nth(2).dies();
      await failed;
      expect(kinds(nth(0))).not.toContain('stop');
      await nth(1).dies();
      live(1_000);
      expect(nth(3).program).toBe('old');
    });

    test('returns to the previous program if the new one dies while taking over', async () => {
      serving();
      const upgrade = supervisor.upgrade('new', signal);
      const failed = expect(upgrade).rejects.toMatchObject({ reason: 'not-ready' });
      nth(2).hello();
      await settled();
      nth(0).says({ kind: 'stopped' });
      await nth(0).dies();
      await nth(2).dies();
      await failed;
      live(2_000);
      expect(nth(-1).program).toBe('old');
      nth(-1).hello();
      expect(kinds(nth(-1))).toContain('serve');
    });

    test('returns to the previous program if the new one cannot serve a mount, and drops no mount', async () => {
      serving();
      addMount('second');
      const upgrade = supervisor.upgrade('new', signal);
      const failed = expect(upgrade).rejects.toThrow('cannot serve all mounts');
      nth(2).hello();
      await settled();
      nth(0).says({ kind: 'stopped' });
      await nth(0).dies();
      live(1_000);
      // Another process of the new program is already loaded.
      nth(3).hello();
      nth(2).says({ kind: 'ended', mount: 'second', unserved: true });
      nth(2).says({ kind: 'ended', mount: 'm', unserved: true });
      expect(nth(2).isEnding).toBe(true);
      await nth(2).dies();
      await failed;
      live(2_000);
      expect(kinds(nth(3))).not.toContain('serve');
      expect(nth(-1).program).toBe('old');
      nth(-1).hello();
      expect(nth(-1).sent[0]).toMatchObject({ kind: 'serve', mounts: 2 });
      // Without another program to try, the mount is dropped.
      nth(-1).says({ kind: 'ended', mount: 'second', unserved: true });
      expect([...held.mounts.keys()]).toEqual(['m']);
    });

    test('refuses a second concurrent upgrade', async () => {
      serving();
      const upgrade = supervisor.upgrade('new', signal);
      await expect(supervisor.upgrade('newer', signal)).rejects.toMatchObject({ reason: 'busy' });
      const failed = expect(upgrade).rejects.toThrow();
      await nth(2).dies();
      await failed;
    });
  });
});
