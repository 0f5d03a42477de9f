import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { type Attributes, type FileHandle, fileType, type SetAttributes, type Time } from '#wire/nfs3/index.ts';
import { createGuardTicks } from './guard-ticks.ts';
import { createLockFile, ctimeOf, type FoundFile, type LockFile, type LockIo } from './lock-file.ts';
import { createMarks, isFreeMark, newProcessMark } from './lock-marks.ts';

// The protocol of docs/designs/store-locks.md against a server that is only a model: its clock has coarse ticks, it may
// compare guards badly, and calls are executed when the test says so, once or twice.

interface Kind {
  /** How far its clock moves at a time, in nanoseconds. */
  readonly tick: number;
  /** Linux before 6.9. */
  readonly comparesSeconds: boolean;
  /** Compares first, and changes the file later: nfs-ganesha, and Linux before 6.9. */
  readonly isAtomic: boolean;
}

const handle = Buffer.from('lock') as FileHandle;
const second = 1_000_000_000n;

/** One lock file on a server. Every call waits for its turns, which `run` gives in an order that the test chooses. */
function createServer({ tick, comparesSeconds, isAtomic }: Kind) {
  let now = 1_800_000_000n * second;
  let ctime = now;
  const times = { atime: 1, atimeNs: 500_000, mtime: 1, mtimeNs: 500_000 };
  const waiting: (() => void)[] = [];
  const turn = (): Promise<void> => new Promise((resolve) => waiting.push(resolve));
  const stamp = (): bigint => now - (now % BigInt(tick));

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

  const fits = ({ seconds, nanoseconds }: Time): boolean => {
    const is = attributes();
    return seconds === is.ctime && (comparesSeconds || nanoseconds === is.ctimeNs);
  };

  function change({ atime, mtime }: SetAttributes): void {
    if (typeof atime === 'object') Object.assign(times, { atime: atime.seconds, atimeNs: atime.nanoseconds });
    if (typeof mtime === 'object') Object.assign(times, { mtime: mtime.seconds, mtimeNs: mtime.nanoseconds });
    ctime = stamp();
  }

  async function setattr(set: SetAttributes, ifChangedAt: Time): Promise<Attributes | 'changed'> {
    await turn();
    if (!fits(ifChangedAt)) return 'changed';
    if (!isAtomic) await turn();
    change(set);
    const after = attributes();
    await turn();
    return after;
  }

  return {
    setattr,
    attributes: async (): Promise<Attributes> => {
      await turn();
      const is = attributes();
      await turn();
      return is;
    },
    /** Outside of any call. */
    look: attributes,
    found: (): FoundFile => ({ handle, attributes: attributes() }),
    get waiting() {
      return waiting.length;
    },
    pass: (ns: number): void => {
      now += BigInt(ns);
    },
    run: (which: number): void => waiting.splice(which % waiting.length, 1)[0]?.(),
    waitUntil: turn,
  };
}

type Server = ReturnType<typeof createServer>;

const settle = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

function hostOn(server: Server, comparesSeconds: boolean, io: Partial<LockIo> = {}, own = newProcessMark()): LockFile {
  const unused = (): never => {
    throw new Error('not used here');
  };
  // A pause is a turn, too: meanwhile the server's clock moves on.
  const clock = { ...systemClock(), elapsed: () => 0, sleep: () => server.waitUntil() };
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
  tick: fc.constantFrom(1, 1_000_000, 4_000_000, 1_000_000_000),
  comparesSeconds: fc.boolean(),
  isAtomic: fc.boolean(),
});
const signal = new AbortController().signal;

describe('whatever the order in which a server works', () => {
  test('of several hosts that take a lock, one has it at a time', async () => {
    const steps = fc.infiniteStream(
      fc.record({ which: fc.nat(1000), ns: fc.constantFrom(0, 0, 1000, 3_000_000, 700_000_000) }),
    );
    let entries = 0;
    await fc.assert(
      fc.asyncProperty(kinds, fc.integer({ min: 2, max: 4 }), steps, async (kind, hosts, order) => {
        const server = createServer(kind);
        let inside = 0;
        let most = 0;
        const work = async (): Promise<void> => {
          const own = newProcessMark();
          const host = hostOn(server, kind.comparesSeconds, {}, own);
          for (let rounds = 0, tries = 0; rounds < 2 && tries < 12; tries++) {
            const found = { handle, attributes: await server.attributes() };
            const mayTake = isFreeMark(found.attributes) || found.attributes.mtime === own;
            const held = mayTake ? await host.take(found, false, signal) : undefined;
            if (held === undefined) continue;
            most = Math.max(most, ++inside);
            entries++;
            await server.waitUntil();
            inside--;
            await host.release(held);
            rounds++;
          }
        };
        let isOver = false;
        const all = Promise.all(Array.from({ length: hosts }, work)).then(() => {
          isOver = true;
        });
        for (await settle(); !isOver; await settle()) {
          const { which, ns } = order.next().value;
          server.pass(ns);
          if (server.waiting > 0) server.run(which);
          // With a clock that never advances, no host would get the lock.
          if (ns === 0) server.pass(50_000);
        }
        await all;
        expect(most).toBeLessThanOrEqual(1);
      }),
      { numRuns: 150 },
    );
    expect(entries).toBeGreaterThan(150);
  }, 120_000);
});

/** Runs every call as soon as it comes, while the clock goes on. */
async function during<T>(server: Server, work: Promise<T>, ns = 1_000_000): Promise<T> {
  let isOver = false;
  const done = work.finally(() => {
    isOver = true;
  });
  for (await settle(); !isOver; await settle()) {
    server.pass(ns);
    if (server.waiting > 0) server.run(0);
  }
  return done;
}

const precise: Kind = { tick: 4_000_000, comparesSeconds: false, isAtomic: true };
const coarse: Kind = { tick: 4_000_000, comparesSeconds: true, isAtomic: false };

describe.each([
  ['a server that compares nanoseconds', precise],
  ['a server that compares seconds', coarse],
])('on %s', (_, kind) => {
  /** Every SETATTR of that host, as it was sent. */
  function recorded(server: Server): { readonly host: LockFile; readonly sent: (readonly [SetAttributes, Time])[] } {
    const sent: (readonly [SetAttributes, Time])[] = [];
    const setattr: LockIo['setattr'] = (_handle, set, guard) => {
      sent.push([set, guard]);
      return server.setattr(set, guard);
    };
    return { host: hostOn(server, kind.comparesSeconds, { setattr }), sent };
  }

  test('second copies of all calls of a host, executed while another one holds the lock, change nothing', async () => {
    const server = createServer(kind);
    const { host, sent } = recorded(server);
    const held = await during(server, host.take(server.found(), false, signal));
    if (held === undefined) throw new Error('not taken');
    expect(await during(server, host.release(held))).toBeDefined();
    const other = hostOn(server, kind.comparesSeconds);
    const theirs = await during(server, other.take(server.found(), false, signal));
    expect(theirs).toBeDefined();
    const before = server.look();
    for (const [set, guard] of sent) expect(await during(server, server.setattr(set, guard), 0)).toBe('changed');
    expect(server.look()).toEqual(before);
    expect(sent.length).toBeGreaterThanOrEqual(3);
  });

  test('a release whose answer was lost is found to be done', async () => {
    const server = createServer(kind);
    const lost: LockIo['setattr'] = async (_handle, set, guard) => {
      await server.setattr(set, guard);
      throw new Error('no answer');
    };
    const held = await during(server, hostOn(server, kind.comparesSeconds).take(server.found(), false, signal));
    if (held === undefined) throw new Error('not taken');
    const after = await during(server, hostOn(server, kind.comparesSeconds, { setattr: lost }).release(held));
    expect(after?.attributes.ctime).toBe(server.look().ctime);
    expect(isFreeMark(server.look())).toBe(true);
  });

  test('a lock whose taking was never answered is held, if our mark is on it', async () => {
    const server = createServer(kind);
    const lost: LockIo['setattr'] = async (_handle, set, guard) => {
      await server.setattr(set, guard);
      throw new Error('no answer');
    };
    const host = hostOn(server, kind.comparesSeconds, { setattr: lost });
    const held = await during(server, host.take(server.found(), false, signal));
    expect(held?.mark.seconds).toBe(server.look().mtime);
    expect(held && ctimeOf(held.attributes)).toEqual(ctimeOf(server.look()));
  });

  test('a host does not release the lock that another one took over', async () => {
    const server = createServer(kind);
    const [one, other] = [hostOn(server, kind.comparesSeconds), hostOn(server, kind.comparesSeconds)];
    const held = await during(server, one.take(server.found(), false, signal));
    if (held === undefined) throw new Error('not taken');
    const theirs = await during(server, other.take(server.found(), false, signal));
    const before = server.look();
    expect(await during(server, one.release(held))).toBeUndefined();
    expect(server.look()).toEqual(before);
    expect(theirs && (await during(server, other.release(theirs)))).toBeDefined();
  });
});
