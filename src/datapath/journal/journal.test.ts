import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, fstatSync } from 'node:fs';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { createFakeClock } from '#testing/fakes/clock.ts';
import type { Slot } from '#wire/fuse/device.ts';
import type { Message } from '#wire/fuse/message.ts';
import { createHandleIndex, hashOf } from './handle-index.ts';
import { cellCount, chunkSize, head, lines, mostMounts, record } from './layout.ts';
import { createJournal, type JournalMemory, openJournal } from './memory.ts';
import { createMountRows } from './mounts.ts';
import { createNodeTable } from './nodes.ts';
import { createRequests, type Requests } from './requests.ts';

/** A journal and what a successor finds in it: the same memory, opened anew. */
function journal(slots = 4): Disposable & { readonly fd: number; open(): JournalMemory } {
  const fd = createJournal(slots);
  const opened: JournalMemory[] = [];
  return {
    fd,
    open: () => {
      const memory = openJournal(fd);
      opened.push(memory);
      return memory;
    },
    [Symbol.dispose]: () => {
      for (const one of opened) one[Symbol.dispose]();
      closeSync(fd);
    },
  };
}

const handle = (text: string): Buffer => Buffer.from(text);
const root = handle('root');

/** What the kernel does: a whole request, its length and number first. */
function put({ view, buffer }: Slot, unique: number, length: number): number {
  buffer.fill(unique & 0xff, 16, length);
  view.setUint32(8, unique, true);
  view.setUint32(12, 0, true);
  view.setUint32(0, length, true);
  return length;
}

const long = 100_000;
const unique = (message: Message): number => message.view.getUint32(8, true);

describe('requests', () => {
  test('a successor finds what was read and not answered, with how far it came', () => {
    using kept = journal(8);
    const requests = createRequests(kept.open());
    const armed = requests.arm(3) ?? expect.fail();
    const read = (number: number, length = 100): number =>
      (requests.take(3, armed, put(armed, number, length)) ?? expect.fail()).place;
    read(1);
    const sent = read(2);
    requests.write(sent, { kind: 'made', seconds: 1_700_000_000, nanoseconds: 999_999_999 });
    const done = read(3);
    requests.write(done, { kind: 'gone', handle: handle('a handle') });
    requests.keepAnswer(done, Buffer.from('the answer'));
    requests.free(read(4));
    // One for all, until a long one was read into it.
    expect(requests.arm(4)).toBe(armed);
    expect(requests.arm(3)).toBe(armed);
    const behind = read(5, long);
    requests.behind(behind);
    // Killed when the kernel had just put another one there.
    const last = requests.arm(3) ?? expect.fail();
    expect(last).not.toBe(armed);
    put(last, 6, 200);

    const next = createRequests(kept.open());
    const left = next.left();
    expect(left.map(({ mount, phase, message }) => [unique(message), mount, phase, message.end])).toEqual([
      [1, 3, 'taken', 100],
      [2, 3, 'sent', 100],
      [3, 3, 'done', 100],
      [5, 3, 'behind', long],
      [6, 3, 'taken', 200],
    ]);
    expect(next.find(sent)).toEqual({ kind: 'made', seconds: 1_700_000_000, nanoseconds: 999_999_999 });
    expect(next.find(behind)).toBeUndefined();
    expect(next.find(done)).toEqual({ kind: 'gone', handle: handle('a handle') });
    expect(next.keptAnswer(done).toString()).toBe('the answer');
    expect(next.isBehind(behind)).toBe(true);
    const data = left.find(({ place }) => place === behind)?.message.buffer;
    expect(data?.subarray(16, long).every((byte) => byte === 5)).toBe(true);
    expect(next.held).toEqual({ lines: 5, slots: 1 });
    for (const { place } of left) next.free(place);
    expect(next.held).toEqual({ lines: 0, slots: 0 });
    expect(createRequests(kept.open()).left()).toEqual([]);
  });

  test('a successor knows who was interrupted, wherever the request lies', () => {
    using kept = journal(8);
    const requests = createRequests(kept.open());
    const read = (number: number, length: number): number => {
      const armed = requests.arm(3) ?? expect.fail();
      return (requests.take(3, armed, put(armed, number, length)) ?? expect.fail()).place;
    };
    const places = [read(0x8000_0002, 100), read(4, 5000), read(6, long), read(8, 100)];
    for (const place of places.slice(0, 3)) requests.interrupted(place);
    const left = createRequests(kept.open()).left();
    expect(left.map(({ message, isInterrupted }) => [unique(message), isInterrupted])).toEqual([
      [0x8000_0002, true],
      [4, true],
      [6, true],
      [8, false],
    ]);
    // Another request in the same line was not.
    for (const place of places) requests.free(place);
    for (const number of [10, 12, 14, 16]) read(number, 100);
    for (const { isInterrupted } of createRequests(kept.open()).left()) expect(isInterrupted).toBe(false);
  });

  test('a successor knows how long ago it was read, whoever sets the time of day', () => {
    using kept = journal(8);
    const clock = createFakeClock();
    // 0 says that it was not noted.
    clock.advance(1);
    const requests = createRequests(kept.open(), clock);
    const armed = requests.arm(3) ?? expect.fail();
    requests.take(3, armed, put(armed, 2, 100));
    clock.advance(1_000);
    requests.take(3, armed, put(armed, 4, 100));
    clock.advance(500);
    const ages = (): readonly number[] =>
      createRequests(kept.open(), clock)
        .left()
        .map(({ ageMs }) => ageMs);
    expect(ages()).toEqual([1_500, 500]);
    clock.jump(-1_000_000);
    expect(ages()).toEqual([1_500, 500]);
    clock.jump(2_000_000);
    expect(ages()).toEqual([1_500, 500]);
    // One that was read by a process that did not note it.
    createRequests(kept.open()).take(3, armed, put(armed, 6, 100));
    expect(ages()).toEqual([1_500, 500, 0]);
  });

  test('requests of middle size are moved out of the way, while there is room for them', () => {
    using kept = journal(8);
    const requests = createRequests(kept.open());
    const armed = requests.arm(0) ?? expect.fail();
    const sizes = [700, 4096 + 80, 8192, 8193, 65_536 + 80];
    for (const [i, size] of sizes.entries()) {
      requests.take(0, armed, put(armed, i + 1, size));
      expect(requests.arm(0)).toBe(armed);
    }
    const next = createRequests(kept.open());
    const left = next.left();
    expect(left.map(({ message }) => [unique(message), message.end])).toEqual(sizes.map((size, i) => [i + 1, size]));
    for (const { message, place } of left) {
      expect(message.buffer.subarray(16, message.end).every((byte) => byte === unique(message))).toBe(true);
      next.free(place);
    }
    // All cells of both classes, then the slots themselves.
    const mounts = [1, 2];
    for (const mount of mounts) {
      for (let i = 0; i < cellCount / 2 + (mount === 2 ? 2 : 0); i++) {
        const slot = next.arm(mount) ?? expect.fail();
        expect(next.take(mount, slot, put(slot, 1000 + i, 5000))).toBeDefined();
      }
    }
    expect(next.held).toEqual({ lines: cellCount + 2, slots: 2 });
    for (const mount of mounts) next.freeAll(mount);
    expect(next.held).toEqual({ lines: 0, slots: 0 });
  });

  test('one that lies in two places, because of a kill in between, is one', () => {
    using kept = journal();
    const requests = createRequests(kept.open());
    const armed = requests.arm(0) ?? expect.fail();
    requests.take(0, armed, put(armed, 9, 50));
    put(armed, 9, 50);
    const next = createRequests(kept.open());
    expect(next.left()).toHaveLength(1);
    expect(next.held).toEqual({ lines: 1, slots: 0 });
  });

  test('what is used again knows nothing of its former request', () => {
    using kept = journal(1);
    const requests = createRequests(kept.open());
    const armed = requests.arm(7) ?? expect.fail();
    const first = requests.take(7, armed, put(armed, 1, long)) ?? expect.fail();
    expect(requests.arm(7)).toBeUndefined();
    requests.write(first.place, { kind: 'moved', handle: handle('x') });
    requests.free(first.place);
    const again = requests.arm(8) ?? expect.fail();
    expect(again.view.getUint32(0, true)).toBe(0);
    const second = requests.take(8, again, put(again, 2, 60)) ?? expect.fail();
    expect(second.place).toBe(first.place);
    expect(requests.find(second.place)).toBeUndefined();
    expect(createRequests(kept.open()).left()).toMatchObject([{ mount: 8, phase: 'taken' }]);
  });

  test('an answer is kept only for a call that was sent', () => {
    using kept = journal();
    const requests = createRequests(kept.open());
    const armed = requests.arm(0) ?? expect.fail();
    const { place } = requests.take(0, armed, put(armed, 1, 60)) ?? expect.fail();
    requests.keepAnswer(place, Buffer.from('cheap to do again'));
    expect(createRequests(kept.open()).left()).toMatchObject([{ phase: 'taken' }]);
  });

  test('what a mount leaves behind goes with it', () => {
    using kept = journal();
    const requests = createRequests(kept.open());
    for (const mount of [1, 2, 1]) {
      const armed = requests.arm(mount) ?? expect.fail();
      requests.take(mount, armed, put(armed, mount, long));
    }
    requests.arm(1);
    requests.freeAll(1);
    expect(requests.held).toEqual({ lines: 1, slots: 1 });
    expect(requests.left()).toMatchObject([{ mount: 2 }]);
  });

  test('when there is no room for another it stays where it is', () => {
    using kept = journal();
    const requests = createRequests(kept.open());
    const armed = requests.arm(0) ?? expect.fail();
    for (let i = 1; i <= lines / 2; i++) expect(requests.take(0, armed, put(armed, i, 60))).toBeDefined();
    expect(requests.take(0, armed, put(armed, lines + 1, 60))).toBeUndefined();
    expect(armed.view.getUint32(0, true)).toBe(60);
    requests.free(5);
    expect(requests.take(0, armed, 60)).toMatchObject({ place: 5 });
  });

  test('however much others want, there is something for one more, also for a successor', () => {
    using kept = journal(16);
    let requests = createRequests(kept.open());
    for (let mount = 0; mount < 5; mount++) {
      if (mount === 3) requests = createRequests(kept.open());
      if (mount === 3) requests.left();
      const armed = requests.arm(mount) ?? expect.fail();
      let [taken, unique] = [0, 0];
      while (requests.take(mount, armed, put(armed, ++unique, 60)) !== undefined) taken++;
      expect(taken).toBeGreaterThan(lines / 100);
      // What is read only so that reading goes on.
      expect(requests.take(mount, armed, 60, 3)).toBeDefined();
    }
  });

  test('long requests of one mount leave memory to read those of others into', () => {
    using kept = journal(16);
    const requests = createRequests(kept.open());
    let [taken, armed] = [0, requests.arm(0) ?? expect.fail()];
    while (requests.take(0, armed, put(armed, 1 + taken, long)) !== undefined) {
      taken++;
      armed = requests.arm(0) ?? expect.fail();
    }
    expect(taken).toBe(8);
    for (let mount = 1; mount <= 5; mount++) {
      const other = requests.arm(mount) ?? expect.fail();
      expect(requests.take(mount, other, put(other, 1, long))).toBeDefined();
    }
  });

  describe('data paths that ended over requests', () => {
    /** Each process is one that ended; gives how often each request was blamed for it. */
    function ends(kept: ReturnType<typeof journal>, how: (requests: Requests) => void): readonly number[] {
      const requests = createRequests(kept.open());
      const left = requests.left();
      how(requests);
      return left.map(({ outlived }) => outlived);
    }
    const taking = (requests: Requests): void => {
      const armed = requests.arm(0) ?? expect.fail();
      for (const unique of [1, 2]) requests.take(0, armed, put(armed, unique, 60));
    };
    const nothing = (): void => undefined;

    test('are no fault of theirs if they were told to stop', () => {
      using kept = journal();
      ends(kept, taking);
      ends(kept, (requests) => requests.stopping());
      expect(ends(kept, nothing)).toEqual([1, 1]);
      expect(ends(kept, nothing)).toEqual([2, 2]);
    });

    test('are the fault of all for three times, then of the one that was just being tried', () => {
      using kept = journal();
      ends(kept, taking);
      for (let i = 1; i <= 3; i++) expect(ends(kept, nothing)).toEqual([i, i]);
      expect(ends(kept, (requests) => requests.suspect(1))).toEqual([3, 3]);
      expect(ends(kept, (requests) => requests.suspect(1))).toEqual([3, 4]);
      expect(ends(kept, nothing)).toEqual([3, 5]);
      expect(ends(kept, nothing)).toEqual([3, 5]);
    });
  });

  test('what there was no room for is there for a successor, too', () => {
    using kept = journal();
    const requests = createRequests(kept.open());
    const own = requests.arm(0) ?? expect.fail();
    for (let i = 1; i <= lines / 2; i++) requests.take(0, own, put(own, i, 60));
    requests.take(0, own, put(own, lines + 1, 60));
    // Another had only memory for one.
    requests.arm(1);
    const next = createRequests(kept.open());
    expect(next.left()).toHaveLength(lines / 2);
    expect(next.stuck(0)).toMatchObject({ slot: { place: own.place }, length: 60 });
    expect(next.stuck(1)).toBeUndefined();
    expect(next.held.slots).toBe(1);
    next.free(5);
    expect(next.take(0, (next.stuck(0) ?? expect.fail()).slot, 60)).toMatchObject({ place: 5 });
    expect(next.stuck(0)).toBeUndefined();
    expect(next.held.slots).toBe(0);
  });

  test('all mounts that there can be hold a long request, and one that has no line: each can still be read from', () => {
    const fd = createJournal();
    using memory = openJournal(fd);
    // Pages that nobody touches are not needed here.
    const requests = createRequests({ ...memory, populate: () => undefined });
    const taken = (mount: number, unique: number): boolean => {
      const slot = requests.arm(mount) ?? expect.fail();
      slot.view.setUint32(0, long, true);
      slot.view.setUint32(8, unique, true);
      return requests.take(mount, slot, long) !== undefined;
    };
    let [first, unique] = [0, 0];
    while (taken(0, ++unique)) first++;
    expect(first).toBeGreaterThan(100);
    for (let mount = 1; mount < mostMounts; mount++) {
      expect(taken(mount, ++unique)).toBe(true);
      while (taken(mount, ++unique)) expect(requests.held.slots).toBeLessThan(2 * mostMounts + 256);
    }
    expect(requests.arm(0)).toBeDefined();
    closeSync(fd);
  });

  describe('memory of long requests', () => {
    const mebibyte = 1024 * 1024;
    /** Some of them at once, then none. */
    function burst(requests: Requests, count: number): void {
      const places = Array.from({ length: count }, (_, i) => {
        const armed = requests.arm(i) ?? expect.fail();
        return (requests.take(i, armed, put(armed, i + 1, mebibyte)) ?? expect.fail()).place;
      });
      for (const place of places) requests.free(place);
    }

    test('is given back when it has not been needed for some time, but for a little', () => {
      using kept = journal(64);
      const clock = createFakeClock();
      const requests = createRequests(kept.open(), clock);
      const held = (): number => (fstatSync(kept.fd).blocks * 512) / mebibyte;
      const before = held();
      burst(requests, 50);
      expect(held() - before).toBeGreaterThan(45);
      // While it is used it stays.
      for (let i = 0; i < 10; i++) {
        clock.advance(4_000);
        burst(requests, 50);
        expect(held() - before).toBeGreaterThan(45);
      }
      clock.advance(5_000);
      clock.advance(5_000);
      expect(held() - before).toBeLessThan(6);
      burst(requests, 50);
      expect(requests.held).toEqual({ lines: 0, slots: 0 });
    });

    test('is given back if a predecessor had it', () => {
      using kept = journal(64);
      burst(createRequests(kept.open()), 50);
      const armed = createRequests(kept.open()).arm(0) ?? expect.fail();
      const last = put(armed, 7, long);
      const clock = createFakeClock();
      const requests = createRequests(kept.open(), clock);
      const left = requests.left();
      clock.advance(5_000);
      expect((fstatSync(kept.fd).blocks * 512) / mebibyte).toBeLessThan(15);
      expect(left[0]?.message.buffer.subarray(16, last).every((byte) => byte === 7)).toBe(true);
    });

    test('is not given back by one that was stopped: it is its successor’s', () => {
      using kept = journal(64);
      const clock = createFakeClock();
      const requests = createRequests(kept.open(), clock);
      burst(requests, 50);
      requests.stopping();
      clock.advance(20_000);
      expect((fstatSync(kept.fd).blocks * 512) / mebibyte).toBeGreaterThan(45);
    });
  });
});

describe('nodes', () => {
  test('a handle has one node for as long as the kernel knows it, and a successor finds it', () => {
    using kept = journal();
    const nodes = createNodeTable(kept.open()).of(0, root);
    const [one, again, other] = [nodes.looked(handle('a')), nodes.looked(handle('a')), nodes.looked(handle('b'))];
    expect(again.id).toBe(one.id);
    expect(other.id).not.toBe(one.id);
    nodes.opened(one.id);
    nodes.hide(one.id, { directory: handle('dir'), name: '.nfs0123' });

    const table = createNodeTable(kept.open());
    const next = table.of(0, root);
    expect(table.size).toBe(2);
    expect(next.get(one.id)).toEqual({ id: one.id, generation: one.generation, handle: handle('a'), opens: 1 });
    expect(next.hidden(one.id)).toEqual({ directory: handle('dir'), name: '.nfs0123' });
    expect(next.find(handle('b'))?.id).toBe(other.id);
    next.forget(one.id, 1);
    expect(next.get(one.id)).toBeDefined();
    next.forget(one.id, 1);
    expect(next.get(one.id)).toBeUndefined();
    expect(next.find(handle('a'))).toBeUndefined();
    // Its number comes back with another generation.
    const later = next.looked(handle('c'));
    const reused = [later, next.looked(handle('d'))].find(({ id }) => id === one.id);
    expect(reused?.generation).toBe(one.generation + 1);
  });

  test('that data of a file got lost is known to a successor, and not of what has its number later', () => {
    using kept = journal();
    const nodes = createNodeTable(kept.open()).of(0, root);
    const [{ id }, other] = [nodes.looked(handle('a')), nodes.looked(handle('b'))];
    nodes.setLost(id, 'ENOSPC');
    const next = createNodeTable(kept.open()).of(0, root);
    expect([next.lost(id), next.lost(other.id), next.lost(1)]).toEqual(['ENOSPC', undefined, undefined]);
    // Whether anybody was told is known, too, of this loss and not of the next one.
    for (const each of [id, other.id]) next.setLossTold(each);
    const third = createNodeTable(kept.open()).of(0, root);
    expect([third.isLossTold(id), third.lost(id), third.isLossTold(other.id)]).toEqual([true, 'ENOSPC', false]);
    next.setLost(id, 'EIO');
    expect([next.isLossTold(id), next.lost(id)]).toEqual([false, 'EIO']);
    next.setLost(other.id, 'EDQUOT');
    next.setLost(other.id, undefined);
    next.forget(id, 1);
    expect(next.lost(id)).toBeUndefined();
    expect(next.looked(handle('c')).id).toBe(id);
    expect([next.lost(id), next.lost(other.id)]).toEqual([undefined, undefined]);
  });

  test('the root is always node 1', () => {
    using kept = journal();
    const table = createNodeTable(kept.open());
    const [one, other] = [table.of(0, handle('r0')), table.of(1, handle('r1'))];
    expect(one.looked(handle('r0')).id).toBe(1);
    expect(other.get(1)?.handle).toEqual(handle('r1'));
    one.forget(1, 1000);
    expect(one.get(1)).toBeDefined();
    expect(table.size).toBe(0);
  });

  test('mounts do not see each other, and one that goes takes its nodes along', () => {
    using kept = journal();
    const table = createNodeTable(kept.open());
    const [one, other] = [table.of(0, root), table.of(1, root)];
    const [mine, theirs] = [one.looked(handle('same')), other.looked(handle('same'))];
    expect(mine.id).not.toBe(theirs.id);
    expect(one.get(theirs.id)).toBeUndefined();
    one.forget(theirs.id, 5);
    table.drop(0);
    expect(table.size).toBe(1);
    expect(other.get(theirs.id)).toBeDefined();
    expect(createNodeTable(kept.open()).size).toBe(1);
  });

  test('a stale handle is exchanged', () => {
    using kept = journal();
    const nodes = createNodeTable(kept.open()).of(0, root);
    const { id } = nodes.looked(handle('old'));
    nodes.changeHandle(id, handle('new'));
    expect(nodes.find(handle('old'))).toBeUndefined();
    expect(nodes.find(handle('new'))?.id).toBe(id);
  });

  test('numbers that the kernel should not know are nothing', () => {
    using kept = journal();
    const nodes = createNodeTable(kept.open()).of(0, root);
    nodes.looked(handle('a'));
    for (const id of [0, 3, 100_000, 2 ** 40, -1, Number.NaN]) {
      expect(nodes.get(id)).toBeUndefined();
      nodes.forget(id, 1);
      nodes.hide(id, undefined);
      expect(nodes.hidden(id)).toBeUndefined();
    }
  });

  test('it grows, and a place without its file is let go at the next start', () => {
    using kept = journal();
    const memory = kept.open();
    const table = createNodeTable(memory);
    const nodes = table.of(0, root);
    const many = (chunkSize / record.size) * 2 + 10;
    for (let i = 0; i < many; i++) nodes.looked(handle(`file ${i}`));
    expect(memory.chunks).toHaveLength(3);
    const { id } = nodes.find(handle('file 5')) ?? expect.fail();
    nodes.hide(id, { directory: root, name: 'x' });
    // Killed after the node went and before its place did.
    const chunk = memory.chunks[0] ?? expect.fail();
    chunk.setUint32((id - 2) * record.size + record.owner, 0, true);
    const next = createNodeTable(kept.open());
    expect(next.size).toBe(many - 1);
    expect(
      createNodeTable(kept.open())
        .of(0, root)
        .find(handle(`file ${many - 1}`)),
    ).toBeDefined();
  });

  test('as a model says, whatever is done, with a successor in between', () => {
    const step = fc.oneof(
      fc.record({ do: fc.constant('look' as const), key: fc.nat(20) }),
      fc.record({ do: fc.constant('forget' as const), key: fc.nat(20), count: fc.integer({ min: 1, max: 3 }) }),
      fc.record({ do: fc.constant('restart' as const) }),
    );
    fc.assert(
      fc.property(fc.array(step, { maxLength: 60 }), (steps) => {
        using kept = journal();
        let nodes = createNodeTable(kept.open()).of(0, root);
        const model = new Map<number, { id: number; lookups: number }>();
        for (const one of steps) {
          if (one.do === 'restart') nodes = createNodeTable(kept.open()).of(0, root);
          else if (one.do === 'look') {
            const { id } = nodes.looked(handle(`h${one.key}`));
            const known = model.get(one.key);
            if (known !== undefined) expect(id).toBe(known.id);
            model.set(one.key, { id, lookups: (known?.lookups ?? 0) + 1 });
          } else {
            const known = model.get(one.key);
            if (known === undefined) continue;
            nodes.forget(known.id, one.count);
            if (known.lookups > one.count) model.set(one.key, { ...known, lookups: known.lookups - one.count });
            else model.delete(one.key);
          }
          for (let key = 0; key <= 20; key++) expect(nodes.find(handle(`h${key}`))?.id).toBe(model.get(key)?.id);
        }
      }),
      { numRuns: 50 },
    );
  });
});

test('the index finds what was added and not removed, among many', () => {
  const keys = Array.from({ length: 5000 }, (_, i) => Buffer.from(`key ${i * 7}`));
  const index = createHandleIndex(
    (key, value) => (keys[value - 1] as Buffer).equals(key),
    (value) => hashOf(keys[value - 1] as Buffer),
  );
  for (const [i, key] of keys.entries()) index.add(hashOf(key), i + 1);
  for (let i = 0; i < keys.length; i += 2) index.remove(hashOf(keys[i] as Buffer), i + 1);
  for (let round = 0; round < 20; round++) {
    for (let i = 0; i < keys.length; i += 2) index.add(hashOf(keys[i] as Buffer), i + 1);
    for (let i = 0; i < keys.length; i += 2) index.remove(hashOf(keys[i] as Buffer), i + 1);
  }
  expect(index.size).toBe(2500);
  for (const [i, key] of keys.entries()) expect(index.find(key, hashOf(key))).toBe(i % 2 === 0 ? undefined : i + 1);
});

describe('mounts', () => {
  test('a successor knows what was agreed upon with the kernel, and the root', () => {
    using kept = journal();
    const rows = createMountRows(kept.open());
    const one = rows.of('sv1-one');
    const other = rows.of('sv1-other');
    expect(rows.of('sv1-one')).toEqual({ index: one.index, id: 'sv1-one', root: undefined, agreement: undefined });
    rows.setRoot(other.index, handle('the root'));
    rows.setAgreement(other.index, { minor: 45, flags: ['asyncRead', 'initExt', 'hasResend'] });
    const next = createMountRows(kept.open());
    expect(next.of('sv1-other')).toEqual({
      ...{ index: other.index, id: 'sv1-other', root: handle('the root') },
      agreement: { minor: 45, flags: ['asyncRead', 'initExt', 'hasResend'] },
    });
    next.remove(other.index);
    expect(next.all().map(({ id }) => id)).toEqual(['sv1-one']);
    expect(next.of('sv1-new')).toMatchObject({ index: other.index, root: undefined, agreement: undefined });
  });

  test('there is an end to their number and length', () => {
    using kept = journal();
    const rows = createMountRows(kept.open());
    expect(() => rows.of('x'.repeat(73))).toThrow('at most 72 bytes');
    for (let i = 0; i < mostMounts; i++) rows.of(`${i}`);
    expect(() => rows.of('one more')).toThrow('1024 mounts at most');
  });
});

describe('the journal itself', () => {
  test('what a killed process wrote is there for the next', async () => {
    using kept = journal();
    const script = `
      import { openJournal } from ${JSON.stringify(import.meta.resolve('./memory.ts'))};
      import { createNodeTable } from ${JSON.stringify(import.meta.resolve('./nodes.ts'))};
      const nodes = createNodeTable(openJournal(3)).of(0, Buffer.from('root'));
      for (let i = 0; ; i++) {
        nodes.looked(Buffer.from('file ' + i));
        if (i === 20000) process.kill(process.pid, 'SIGKILL');
      }`;
    const child = spawn(process.execPath, ['--input-type=module', '-e', script], {
      stdio: ['ignore', 'inherit', 'inherit', kept.fd],
    });
    expect(await once(child, 'exit')).toEqual([null, 'SIGKILL']);
    const table = createNodeTable(kept.open());
    expect(table.size).toBe(20_001);
    expect(table.of(0, root).find(handle('file 20000'))?.handle).toEqual(handle('file 20000'));
  });

  test('what is no journal, or one of another version, is refused', () => {
    using kept = journal();
    const memory = kept.open();
    memory.view.setUint32(head.version, 99, true);
    expect(() => kept.open()).toThrow('the journal has version 99; this program knows version 1');
    memory.view.setUint32(head.magic, 0, true);
    expect(() => kept.open()).toThrow('not a journal');
  });

  test('memory of a slot is taken where it is touched, and given back', () => {
    using kept = journal(1);
    const memory = kept.open();
    memory.populate(0);
    const { buffer } = memory.slot(0);
    buffer.fill(1);
    memory.forget(0, 1);
    expect([buffer[0], buffer[4095], buffer[4096], buffer.at(-1)]).toEqual([0, 0, 0, 0]);
  });
});
