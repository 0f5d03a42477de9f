import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { Errno } from '#wire/fuse/errno.ts';
import { type Budget, createBudget } from './budget.ts';
import type { Piece } from './pieces.ts';
import { createWriteBehind } from './write-behind.ts';

const neverAborts = new AbortController().signal;

/** A server with a disk, memory that a restart clears, and a queue of calls that the test answers in any order. */
function createServer() {
  let verifier = 1n;
  const disk = Buffer.alloc(4096);
  let memory: { offset: number; data: Buffer }[] = [];
  const calls: { readonly what: string; answer(): void; refuse(cause: Error): void }[] = [];
  const log: string[] = [];
  const put = (to: Buffer, { offset, data }: { offset: number; data: Uint8Array }): void => to.set(data, offset);
  const fixture = { answersStable: false };
  const queue = <T>(what: string, execute: () => T): Promise<T> => {
    const { promise, resolve, reject } = Promise.withResolvers<T>();
    log.push(what);
    calls.push({ what, answer: () => resolve(execute()), refuse: reject });
    return promise;
  };
  return Object.assign(fixture, {
    calls,
    log,
    disk,
    restart: () => {
      verifier++;
      memory = [];
    },
    send: (_file: string, piece: Piece<string>, { stable }: { readonly stable: boolean }) =>
      queue(`write ${piece.offset}+${piece.data.length}${stable ? ' stable' : ''}`, () => {
        const isStable = stable || fixture.answersStable;
        if (isStable) put(disk, piece);
        // Stable data, too: they overwrite data that are already in memory.
        memory.push({ offset: piece.offset, data: Buffer.from(piece.data) });
        return { isStable, verifier };
      }),
    commit: () =>
      queue('commit', () => {
        for (const one of memory) put(disk, one);
        memory = [];
        return { verifier };
      }),
    /** Answers all calls until none is left. */
    serve: async (): Promise<void> => {
      for (let idle = 0; idle < 5; idle++) {
        for (const call of calls.splice(0)) {
          call.answer();
          idle = 0;
        }
        await Promise.resolve();
        await new Promise(setImmediate);
      }
    },
  });
}

function createTestWriteBehind(maxBytes = 1024 * 1024) {
  const server = createServer();
  const clock = createFakeClock();
  const keptPlaces = new Set<number>();
  const losses: string[] = [];
  const budget = createBudget(maxBytes);
  const writeBehind = createWriteBehind<string, string>({
    clock,
    budgets: [budget],
    send: server.send,
    commit: server.commit,
    keep: (place) => void keptPlaces.add(place),
    free: (place) => void keptPlaces.delete(place),
    onLost: (file, { code }) => void losses.push(`${file} ${code}`),
    keyOf: (file) => file.charCodeAt(0),
  });
  let lastPlace = 0;
  const piece = (offset: number, text: string): Piece<string> => ({
    place: ++lastPlace,
    offset,
    data: Buffer.from(text),
    writer: 'somebody',
  });
  return { server, clock, keptPlaces, losses, budget, behind: writeBehind, piece };
}

const large = 'x'.repeat(70_000);

/** The possible actions of applications, the server and time. */
const step = fc.oneof(
  {
    weight: 5,
    arbitrary: fc.record({
      do: fc.constant('write' as const),
      at: fc.nat(40),
      size: fc.integer({ min: 1, max: 12 }),
    }),
  },
  { weight: 3, arbitrary: fc.record({ do: fc.constant('answer' as const), which: fc.nat(7) }) },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('restart' as const) }) },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('flush' as const) }) },
  { weight: 1, arbitrary: fc.record({ do: fc.constantFrom('wait', 'commitSoon', 'revalidate', 'stable') }) },
);
type CountStep = typeof step extends fc.Arbitrary<infer One> ? One : never;

function disturb(one: CountStep, { server, behind, clock }: ReturnType<typeof createTestWriteBehind>): void {
  if (one.do === 'answer') server.calls.splice(one.which % Math.max(1, server.calls.length), 1)[0]?.answer();
  else if (one.do === 'restart') server.restart();
  else if (one.do === 'commitSoon') behind.commitSoon();
  else if (one.do === 'revalidate') behind.revalidate();
  else if (one.do === 'stable') server.answersStable = !server.answersStable;
  else clock.advance(30);
}

describe('write-behind', () => {
  test('a small file takes one call, made on close', async () => {
    const { server, behind, piece, keptPlaces } = createTestWriteBehind();
    expect(behind.write('f', piece(0, 'small'), neverAborts)).toBe(5);
    expect(server.log).toEqual([]);
    expect(keptPlaces.size).toBe(1);
    const releases = behind.flush('f');
    await server.serve();
    await releases;
    expect(server.log).toEqual(['write 0+5 stable']);
    expect(keptPlaces.size).toBe(0);
    expect(behind.files).toBe(0);
  });

  describe('after a file that was closed with one small write', () => {
    async function afterOne() {
      const setup = createTestWriteBehind();
      const { server, behind, piece } = setup;
      void behind.write('a', piece(0, 'one'), neverAborts);
      const releases = behind.flush('a');
      await server.serve();
      await releases;
      server.log.length = 0;
      return setup;
    }

    test('the next file is sent before its writer closes it', async () => {
      const { server, behind, piece, keptPlaces } = await afterOne();
      for (const file of ['b', 'c']) {
        void behind.write(file, piece(0, 'small'), neverAborts);
        expect(server.log.splice(0)).toEqual(['write 0+5 stable']);
        const releases = behind.flush(file);
        await server.serve();
        await releases;
        expect(server.log).toEqual([]);
      }
      expect([keptPlaces.size, behind.files]).toEqual([0, 0]);
    });

    test('the speculation ends if no close came before the server was done', async () => {
      const { server, behind, piece } = await afterOne();
      void behind.write('b', piece(0, 'small'), neverAborts);
      await server.serve();
      server.log.length = 0;
      void behind.write('b', piece(5, 'more'), neverAborts);
      void behind.write('c', piece(0, 'small'), neverAborts);
      expect(server.log).toEqual([]);
    });

    test('the speculation ends if more was written first', async () => {
      const { server, behind, piece } = await afterOne();
      void behind.write('b', piece(0, 'small'), neverAborts);
      void behind.write('b', piece(5, 'more'), neverAborts);
      expect(server.log.splice(0)).toEqual(['write 0+5 stable', 'write 5+4']);
      void behind.write('c', piece(0, 'small'), neverAborts);
      expect(server.log).toEqual([]);
    });
  });

  test('a small write is delayed only briefly, and not if more follows', async () => {
    const { server, behind, piece, clock } = createTestWriteBehind();
    void behind.write('f', piece(0, 'a'), neverAborts);
    clock.advance(30);
    expect(server.log).toEqual(['write 0+1']);
    void behind.write('g', piece(0, 'a'), neverAborts);
    void behind.write('g', piece(1, 'b'), neverAborts);
    expect(server.log).toEqual(['write 0+1', 'write 0+1', 'write 1+1']);
    const all = Promise.all([behind.flush('f'), behind.flush('g')]);
    await server.serve();
    await all;
    expect(behind.files).toBe(0);
  });

  test('data lost by a server restart are resent', async () => {
    const { server, behind, piece, keptPlaces } = createTestWriteBehind();
    void behind.write('f', piece(0, 'one'), neverAborts);
    void behind.write('f', piece(10, 'two'), neverAborts);
    await server.serve();
    server.restart();
    const releases = behind.flush('f');
    await server.serve();
    await releases;
    expect(server.disk.toString('latin1', 0, 3)).toBe('one');
    expect(server.disk.toString('latin1', 10, 13)).toBe('two');
    expect(server.log.filter((what) => what === 'write 0+3')).toHaveLength(2);
    expect(keptPlaces.size).toBe(0);
  });

  test('overlapping writes are sent one after the other, others do not wait', async () => {
    const { server, behind, piece } = createTestWriteBehind();
    void behind.write('f', piece(0, 'aaaa'), neverAborts);
    void behind.write('f', piece(2, 'bbbb'), neverAborts);
    void behind.write('f', piece(100, 'cccc'), neverAborts);
    void behind.write('f', piece(4, 'dd'), neverAborts);
    expect(server.log).toEqual(['write 0+4', 'write 100+4']);
    server.calls.shift()?.answer();
    await new Promise(setImmediate);
    expect(server.log).toEqual(['write 0+4', 'write 100+4', 'write 2+4']);
    const releases = behind.flush('f');
    await server.serve();
    await releases;
    expect(server.disk.toString('latin1', 0, 6)).toBe('aabbdd');
  });

  test('reads and getattr wait for writes in flight', async () => {
    const { server, behind, piece } = createTestWriteBehind();
    expect(behind.waitUntilAnswered('f')).toBeUndefined();
    void behind.write('f', piece(0, 'abc'), neverAborts);
    expect(behind.waitUntilAnswered('f', { offset: 3, length: 10 })).toBeUndefined();
    let isSettled = false;
    const settling = behind.waitUntilAnswered('f', { offset: 2, length: 1 })?.then(() => {
      isSettled = true;
    });
    expect(server.log).toEqual(['write 0+3']);
    await new Promise(setImmediate);
    expect(isSettled).toBe(false);
    server.calls.shift()?.answer();
    await settling;
    expect(behind.waitUntilAnswered('f')).toBeUndefined();
  });

  test('a loss is recorded before its memory is freed', async () => {
    const { server, behind, piece, keptPlaces, losses } = createTestWriteBehind();
    const keptAtLoss: number[] = [];
    losses.push = () => keptAtLoss.push(keptPlaces.size);
    void behind.write('f', piece(0, large), neverAborts);
    const flushing = behind.flush('f');
    server.calls.shift()?.refuse(new Errno('ENOSPC'));
    await flushing;
    expect([keptAtLoss, keptPlaces.size]).toEqual([[1], 0]);
  });

  test('all files are flushed at once', async () => {
    const { server, behind, piece } = createTestWriteBehind();
    for (const file of ['f', 'g']) void behind.write(file, piece(0, 'small'), neverAborts);
    const flushing = behind.flushAll();
    expect(server.log).toEqual(['write 0+5 stable', 'write 0+5 stable']);
    expect(behind.files).toBe(2);
    await server.serve();
    await flushing;
    expect(behind.files).toBe(0);
  });

  test('data whose WRITE or COMMIT the server refuses are lost', async () => {
    const { server, behind, piece, keptPlaces, losses } = createTestWriteBehind();
    void behind.write('f', piece(0, 'a'), neverAborts);
    void behind.write('f', piece(1, 'b'), neverAborts);
    server.calls.shift()?.refuse(new Errno('ENOSPC'));
    await server.serve();
    expect(losses).toEqual(['f ENOSPC']);
    expect(keptPlaces.size).toBe(1);
    const releases = behind.flush('f');
    await new Promise(setImmediate);
    server.calls.shift()?.refuse(new Error('anything'));
    await releases;
    expect(losses).toEqual(['f ENOSPC', 'f EIO']);
    expect(keptPlaces.size).toBe(0);
    expect(behind.files).toBe(0);
  });

  test('the end of the file is known before the server answers', async () => {
    const { server, behind, piece } = createTestWriteBehind();
    expect(behind.unansweredEnd('f')).toBeUndefined();
    void behind.write('f', piece(100, 'abc'), neverAborts);
    void behind.write('f', piece(0, 'abc'), neverAborts);
    expect(behind.unansweredEnd('f')).toBe(103);
    await server.serve();
    expect(behind.unansweredEnd('f')).toBeUndefined();
    expect(behind.files).toBe(1);
  });

  test('a possible server restart blocks readers until the server has everything again', async () => {
    const { server, behind, piece } = createTestWriteBehind();
    void behind.write('f', piece(0, 'one'), neverAborts);
    void behind.write('f', piece(10, 'two'), neverAborts);
    await server.serve();
    server.restart();
    behind.revalidate();
    const settling = behind.waitUntilAnswered('f', { offset: 0, length: 1 });
    expect(settling).toBeDefined();
    await server.serve();
    await settling;
    expect(server.log.slice(2)).toEqual(['commit', 'write 0+3', 'write 10+3']);
    expect(behind.waitUntilAnswered('f')).toBeUndefined();
  });

  test('a server that loses everything repeatedly gets stable writes', async () => {
    const { server, behind, piece, keptPlaces } = createTestWriteBehind();
    void behind.write('f', piece(0, 'one'), neverAborts);
    void behind.write('f', piece(10, 'two'), neverAborts);
    const releases = behind.flush('f');
    for (let round = 0; round < 3; round++) {
      for (const call of server.calls.splice(0)) call.answer();
      await new Promise(setImmediate);
      server.restart();
      expect(server.calls.map(({ what }) => what)).toEqual(['commit']);
      for (const call of server.calls.splice(0)) call.answer();
      await new Promise(setImmediate);
    }
    expect(server.calls.map(({ what }) => what)).toEqual(['write 0+3 stable', 'write 10+3 stable']);
    await server.serve();
    await releases;
    expect(keptPlaces.size).toBe(0);
  });

  test('a stable write stays until an earlier overlapping one is stable', async () => {
    const { server, behind, piece, keptPlaces } = createTestWriteBehind();
    void behind.write('f', piece(0, 'older'), neverAborts);
    void behind.write('f', piece(50, 'x'), neverAborts);
    await server.serve();
    void behind.write('f', piece(0, 'newer'), neverAborts);
    server.answersStable = true;
    await server.serve();
    expect(keptPlaces.size).toBe(3);
    server.restart();
    const releases = behind.flush('f');
    await server.serve();
    await releases;
    expect(server.disk.toString('latin1', 0, 5)).toBe('newer');
    expect(keptPlaces.size).toBe(0);
  });

  test("a mount's first write is accepted, even if the servers of other mounts are slow", async () => {
    const server = createServer();
    const writeBehindWith = (budget: Budget) =>
      createWriteBehind<string, string>({
        clock: createFakeClock(),
        budgets: [createBudget(100), budget],
        send: server.send,
        commit: server.commit,
        keep: () => undefined,
        free: () => undefined,
        onLost: () => undefined,
        keyOf: () => 1,
      });
    const sharedBudget = createBudget(50);
    const [hungMount, other] = [writeBehindWith(sharedBudget), writeBehindWith(sharedBudget)];
    const piece = (data: string): Piece<string> => ({
      place: 1,
      offset: 0,
      data: Buffer.from(data),
      writer: 'somebody',
    });
    expect(hungMount.write('f', piece('x'.repeat(60)), neverAborts)).toBe(60);
    expect(hungMount.hasRoom(10)).toBe(false);
    expect(other.write('f', piece('x'.repeat(60)), neverAborts)).toBe(60);
    expect(other.hasRoom(10)).toBe(false);
  });

  test('without room a write waits, buffered data are committed, and the wait can be interrupted', async () => {
    const { server, behind, piece, budget } = createTestWriteBehind(200_000);
    expect(behind.write('f', piece(0, large), neverAborts)).toBe(70_000);
    expect(behind.write('f', piece(70_000, large), neverAborts)).toBe(70_000);
    const waiting = behind.write('g', piece(0, large), neverAborts);
    expect(waiting).toBeInstanceOf(Promise);
    const stop = new AbortController();
    const stopped = behind.write('g', piece(0, large), stop.signal);
    stop.abort(new Errno('EINTR'));
    await expect(stopped).rejects.toMatchObject({ code: 'EINTR' });
    for (const call of server.calls) expect(call.what).toMatch(/^write/);
    for (const call of server.calls.splice(0)) call.refuse(new Errno('EIO'));
    expect(await waiting).toBe(70_000);
    expect(budget.used).toBe(70_000);
  });

  test('a waiting writer gets room when the server has answered, however late', async () => {
    const { server, behind, piece, keptPlaces } = createTestWriteBehind(20);
    void behind.write('f', piece(0, 'eight...'), neverAborts);
    void behind.write('g', piece(0, 'eight...'), neverAborts);
    const waiting = behind.write('h', piece(0, 'eight...'), neverAborts);
    expect(keptPlaces.size).toBe(2);
    await server.serve();
    expect(await waiting).toBe(8);
  });

  describe('a waiting writer gets room when the server has answered', () => {
    /** In the end the server answers everything. No close or fsync follows. */
    async function isTakenAfter(
      writes: number,
      disturb: (on: ReturnType<typeof createTestWriteBehind>) => Promise<void>,
    ) {
      const setup = createTestWriteBehind(writes * 8);
      const { behind, piece, server } = setup;
      for (let i = 0; i < writes; i++) void behind.write('f', piece(i * 8, 'eight...'), neverAborts);
      let isTaken = false;
      void Promise.resolve(behind.write('f', piece(writes * 8, 'waits...'), neverAborts)).then(() => {
        isTaken = true;
      });
      await disturb(setup);
      expect(isTaken).toBe(false);
      await server.serve();
      return isTaken;
    }

    async function answer({ calls }: ReturnType<typeof createServer>, what: string): Promise<void> {
      const [call] = calls.splice(
        calls.findIndex((one) => one.what === what),
        1,
      );
      call?.answer();
      await new Promise(setImmediate);
    }

    test('even if the server lost everything before the COMMIT', async () => {
      const isTaken = await isTakenAfter(2, async ({ server }) => {
        await answer(server, 'write 0+8');
        await answer(server, 'write 8+8');
        server.restart();
        expect(server.calls.map(({ what }) => what)).toEqual(['commit']);
      });
      expect(isTaken).toBe(true);
    });

    test('even if the server accepted another write before it lost everything', async () => {
      const isTaken = await isTakenAfter(2, async ({ server, behind }) => {
        await answer(server, 'write 0+8');
        expect(server.calls.map(({ what }) => what)).toEqual(['write 8+8', 'commit']);
        await answer(server, 'write 8+8');
        server.restart();
        behind.revalidate();
      });
      expect(isTaken).toBe(true);
    });
  });

  test('a half-used budget causes a COMMIT', async () => {
    const { server, behind, piece, budget } = createTestWriteBehind(200_000);
    void behind.write('f', piece(0, 'a'), neverAborts);
    void behind.write('f', piece(1, 'b'), neverAborts);
    await server.serve();
    expect(server.log).not.toContain('commit');
    void behind.write('g', piece(0, 'x'.repeat(100_000)), neverAborts);
    expect(server.log).toContain('commit');
    expect(budget.used).toBeGreaterThan(100_000);
  });

  test("a predecessor's writes are sent", async () => {
    const { server, behind, piece, keptPlaces } = createTestWriteBehind();
    const [one, two] = [piece(0, 'old old'), piece(4, 'new')];
    for (const { place } of [one, two]) keptPlaces.add(place);
    behind.restore('f', one);
    behind.restore('f', two);
    const releases = behind.flush('f');
    await server.serve();
    await releases;
    expect(server.disk.toString('latin1', 0, 7)).toBe('old new');
    expect(keptPlaces.size).toBe(0);
  });

  test('after a flush the disk has all written data, whatever the server does in between', async () => {
    await fc.assert(
      fc.asyncProperty(fc.array(step, { maxLength: 50 }), async (steps) => {
        const setup = createTestWriteBehind();
        const { server, behind, piece, keptPlaces } = setup;
        const expected = Buffer.alloc(4096);
        const flushes: (Promise<void> | undefined)[] = [];
        let letter = 0;
        for (const one of steps) {
          if (one.do === 'write') {
            const text = String.fromCharCode(97 + (letter++ % 26)).repeat(one.size);
            expected.set(Buffer.from(text), one.at);
            void behind.write('f', piece(one.at, text), neverAborts);
          } else if (one.do === 'flush') flushes.push(behind.flush('f'));
          else disturb(one, setup);
          await new Promise(setImmediate);
        }
        flushes.push(behind.flush('f'));
        await server.serve();
        await Promise.all(flushes);
        expect(server.disk.equals(expected)).toBe(true);
        expect(keptPlaces.size).toBe(0);
      }),
      { numRuns: 500 },
    );
  });

  test('a waiting writer gets room when everything is answered, whatever the server does in between', async () => {
    await fc.assert(
      fc.asyncProperty(fc.array(step, { maxLength: 50 }), async (steps) => {
        const setup = createTestWriteBehind(30);
        const { server, behind, piece } = setup;
        const waiting = new Set<Promise<unknown>>();
        for (const one of steps) {
          if (one.do === 'write') {
            const taking = Promise.resolve(behind.write('f', piece(one.at, 'x'.repeat(one.size)), neverAborts));
            waiting.add(taking);
            void taking.then(() => waiting.delete(taking));
          } else if (one.do !== 'flush') disturb(one, setup);
          await new Promise(setImmediate);
        }
        await server.serve();
        expect(waiting.size).toBe(0);
      }),
      { numRuns: 500 },
    );
  });
});
