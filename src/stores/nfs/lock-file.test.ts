import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { type Attributes, type FileHandle, fileType, type SetAttributes, type Time } from '#wire/nfs3/index.ts';
import { createGuardTicks } from './guard-ticks.ts';
import { createLockFile, ctimeOf, type FoundFile, type LockFile, type LockIo } from './lock-file.ts';
import { createMarks, isFreeMark, newProcessMark } from './lock-marks.ts';

// Tests the protocol of docs/designs/store-locks.md with a model of a server. Its clock has coarse ticks, it may compare
// guards to the second only, and the test decides when it executes each call, once or twice.

interface ServerModel {
  /** The granularity of its clock in nanoseconds. */
  readonly tickNs: number;
  /** Whether it compares guards to the second only, as Linux before 6.9 does. */
  readonly comparesSeconds: boolean;
  /** False: it compares the guard first and changes the file later, as nfs-ganesha and Linux before 6.9 do. */
  readonly isAtomic: boolean;
}

const handle = Buffer.from('lock') as FileHandle;
const second = 1_000_000_000n;

/** One lock file on a server. Every call waits for its turns, which the test grants with `runTurn` in any order. */
function createServer({ tickNs, comparesSeconds, isAtomic }: ServerModel) {
  let now = 1_800_000_000n * second;
  let ctime = now;
  const times = { atime: 1, atimeNs: 500_000, mtime: 1, mtimeNs: 500_000 };
  const pendingTurns: (() => void)[] = [];
  const waitForTurn = (): Promise<void> => new Promise((resolve) => pendingTurns.push(resolve));
  const currentTick = (): bigint => now - (now % BigInt(tickNs));

  const attributes = (): Attributes => ({
    type: fileType.regular,
    mode: 0o600,
    links: 1,
    uid: 0,
    gid: 0,
    size: 0,
    used: 0,
    major: 0,
    minor: 0,
    fsid: 1n,
    fileId: 1n,
    ...times,
    ctime: Number(ctime / second),
    ctimeNs: Number(ctime % second),
  });

  const guardMatches = ({ seconds, nanoseconds }: Time): boolean => {
    const current = attributes();
    return seconds === current.ctime && (comparesSeconds || nanoseconds === current.ctimeNs);
  };

  function change({ atime, mtime }: SetAttributes): void {
    if (typeof atime === 'object') Object.assign(times, { atime: atime.seconds, atimeNs: atime.nanoseconds });
    if (typeof mtime === 'object') Object.assign(times, { mtime: mtime.seconds, mtimeNs: mtime.nanoseconds });
    ctime = currentTick();
  }

  async function setattr(set: SetAttributes, ifChangedAt: Time): Promise<Attributes | 'changed'> {
    await waitForTurn();
    if (!guardMatches(ifChangedAt)) return 'changed';
    if (!isAtomic) await waitForTurn();
    change(set);
    const after = attributes();
    await waitForTurn();
    return after;
  }

  return {
    setattr,
    attributes: async (): Promise<Attributes> => {
      await waitForTurn();
      const current = attributes();
      await waitForTurn();
      return current;
    },
    /** The attributes, without a call to the server. */
    currentAttributes: attributes,
    foundFile: (): FoundFile => ({ handle, attributes: attributes() }),
    get waiting() {
      return pendingTurns.length;
    },
    advanceClock: (ns: number): void => {
      now += BigInt(ns);
    },
    runTurn: (turnIndex: number): void => pendingTurns.splice(turnIndex % pendingTurns.length, 1)[0]?.(),
    takeTurn: waitForTurn,
  };
}

type Server = ReturnType<typeof createServer>;

const settlePromises = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

function hostOn(server: Server, comparesSeconds: boolean, io: Partial<LockIo> = {}, own = newProcessMark()): LockFile {
  const unused = (): never => {
    throw new Error('not used here');
  };
  // A sleep is a turn, too: the server's clock advances meanwhile.
  const clock = { ...systemClock(), elapsed: () => 0, sleep: () => server.takeTurn() };
  const marks = createMarks({ own, dead: [] });
  return createLockFile({
    marks,
    clock,
    ticks: createGuardTicks({ comparesNanoseconds: async () => !comparesSeconds }),
    io: {
      find: unused,
      create: unused,
      remove: unused,
      attributes: () => server.attributes(),
      setattr: (_, set, guard) => server.setattr(set, guard),
      ...io,
    },
  });
}

const kinds = fc.record({
  tickNs: fc.constantFrom(1, 1_000_000, 4_000_000, 1_000_000_000),
  comparesSeconds: fc.boolean(),
  isAtomic: fc.boolean(),
});
const signal = new AbortController().signal;

describe('with calls executed in any order', () => {
  test('only one of several hosts holds a lock at a time', async () => {
    const steps = fc.infiniteStream(
      fc.record({ which: fc.nat(1000), ns: fc.constantFrom(0, 0, 1000, 3_000_000, 700_000_000) }),
    );
    let entries = 0;
    await fc.assert(
      fc.asyncProperty(kinds, fc.integer({ min: 2, max: 4 }), steps, async (kind, hosts, order) => {
        const server = createServer(kind);
        let holders = 0;
        let maxHolders = 0;
        const work = async (): Promise<void> => {
          const own = newProcessMark();
          const host = hostOn(server, kind.comparesSeconds, {}, own);
          for (let rounds = 0, tries = 0; rounds < 2 && tries < 12; tries++) {
            const found = { handle, attributes: await server.attributes() };
            const mayTake = isFreeMark(found.attributes) || found.attributes.mtime === own;
            const held = mayTake ? await host.take(found, false, signal) : undefined;
            if (held === undefined) continue;
            maxHolders = Math.max(maxHolders, ++holders);
            entries++;
            await server.takeTurn();
            holders--;
            await host.release(held);
            rounds++;
          }
        };
        let isOver = false;
        const all = Promise.all(Array.from({ length: hosts }, work)).then(() => {
          isOver = true;
        });
        for (await settlePromises(); !isOver; await settlePromises()) {
          const { which, ns } = order.next().value;
          server.advanceClock(ns);
          if (server.waiting > 0) server.runTurn(which);
          // With a clock that never advances, no host would get the lock.
          if (ns === 0) server.advanceClock(50_000);
        }
        await all;
        expect(maxHolders).toBeLessThanOrEqual(1);
      }),
      { numRuns: 150 },
    );
    expect(entries).toBeGreaterThan(150);
  }, 120_000);
});

/** Runs every call at once, and advances the clock, until the work ends. */
async function runToEnd<T>(server: Server, work: Promise<T>, ns = 1_000_000): Promise<T> {
  let isOver = false;
  const done = work.finally(() => {
    isOver = true;
  });
  for (await settlePromises(); !isOver; await settlePromises()) {
    server.advanceClock(ns);
    if (server.waiting > 0) server.runTurn(0);
  }
  return done;
}

const preciseServer: ServerModel = { tickNs: 4_000_000, comparesSeconds: false, isAtomic: true };
const coarseServer: ServerModel = { tickNs: 4_000_000, comparesSeconds: true, isAtomic: false };

describe.each([
  ['a server that compares nanoseconds', preciseServer],
  ['a server that compares seconds', coarseServer],
])('on %s', (_, kind) => {
  /** A host that records every SETATTR that it sends. */
  function recordingHost(server: Server): {
    readonly host: LockFile;
    readonly sent: (readonly [SetAttributes, Time])[];
  } {
    const sent: (readonly [SetAttributes, Time])[] = [];
    const setattr: LockIo['setattr'] = (_handle, set, guard) => {
      sent.push([set, guard]);
      return server.setattr(set, guard);
    };
    return { host: hostOn(server, kind.comparesSeconds, { setattr }), sent };
  }

  test('second copies of all calls of a host, executed while another one holds the lock, change nothing', async () => {
    const server = createServer(kind);
    const { host, sent } = recordingHost(server);
    const held = await runToEnd(server, host.take(server.foundFile(), false, signal));
    if (held === undefined) throw new Error('not taken');
    expect(await runToEnd(server, host.release(held))).toBeDefined();
    const other = hostOn(server, kind.comparesSeconds);
    const otherLock = await runToEnd(server, other.take(server.foundFile(), false, signal));
    expect(otherLock).toBeDefined();
    const before = server.currentAttributes();
    for (const [set, guard] of sent) expect(await runToEnd(server, server.setattr(set, guard), 0)).toBe('changed');
    expect(server.currentAttributes()).toEqual(before);
    expect(sent.length).toBeGreaterThanOrEqual(3);
  });

  test('detects that a release was done although the reply was lost', async () => {
    const server = createServer(kind);
    const setattrWithLostReply: LockIo['setattr'] = async (_handle, set, guard) => {
      await server.setattr(set, guard);
      throw new Error('no answer');
    };
    const held = await runToEnd(server, hostOn(server, kind.comparesSeconds).take(server.foundFile(), false, signal));
    if (held === undefined) throw new Error('not taken');
    const after = await runToEnd(
      server,
      hostOn(server, kind.comparesSeconds, { setattr: setattrWithLostReply }).release(held),
    );
    expect(after?.attributes.ctime).toBe(server.currentAttributes().ctime);
    expect(isFreeMark(server.currentAttributes())).toBe(true);
  });

  test('detects by its mark that it took a lock although the replies were lost', async () => {
    const server = createServer(kind);
    const setattrWithLostReply: LockIo['setattr'] = async (_handle, set, guard) => {
      await server.setattr(set, guard);
      throw new Error('no answer');
    };
    const host = hostOn(server, kind.comparesSeconds, { setattr: setattrWithLostReply });
    const held = await runToEnd(server, host.take(server.foundFile(), false, signal));
    expect(held?.mark.seconds).toBe(server.currentAttributes().mtime);
    expect(held && ctimeOf(held.attributes)).toEqual(ctimeOf(server.currentAttributes()));
  });

  test('a host does not release the lock that another one took over', async () => {
    const server = createServer(kind);
    const [one, other] = [hostOn(server, kind.comparesSeconds), hostOn(server, kind.comparesSeconds)];
    const held = await runToEnd(server, one.take(server.foundFile(), false, signal));
    if (held === undefined) throw new Error('not taken');
    const otherLock = await runToEnd(server, other.take(server.foundFile(), false, signal));
    const before = server.currentAttributes();
    expect(await runToEnd(server, one.release(held))).toBeUndefined();
    expect(server.currentAttributes()).toEqual(before);
    expect(otherLock && (await runToEnd(server, other.release(otherLock)))).toBeDefined();
  });
});
