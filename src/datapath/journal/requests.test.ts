import { closeSync, fstatSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { keepJournal, putRequest } from '#testing/journal.ts';
import type { Message } from '#wire/fuse/message.ts';
import { cellCount, lineCount, maxMounts } from './layout.ts';
import { createJournal, openJournal } from './memory.ts';
import { createRequests, type Requests } from './requests.ts';

const handle = (text: string): Buffer => Buffer.from(text);
const longBytes = 100_000;
const unique = (message: Message): number => message.view.getUint32(8, true);

describe('requests in the journal', () => {
  test('a successor finds unanswered requests and their phase', () => {
    using journal = keepJournal(8);
    const requests = createRequests(journal.open());
    const armed = requests.arm(3) ?? expect.fail();
    const read = (number: number, length = 100): number =>
      (requests.take(3, armed, putRequest(armed, number, length)) ?? expect.fail()).place;
    read(1);
    const sent = read(2);
    requests.write(sent, { kind: 'made', seconds: 1_700_000_000, nanoseconds: 999_999_999 });
    const done = read(3);
    requests.write(done, { kind: 'gone', handle: handle('a handle') });
    requests.keepAnswer(done, Buffer.from('the answer'));
    requests.free(read(4));
    // All mounts share the slot until a long request was read into it.
    expect(requests.arm(4)).toBe(armed);
    expect(requests.arm(3)).toBe(armed);
    const behind = read(5, longBytes);
    requests.markBehind(behind);
    // Killed when the kernel had just written another request there.
    const last = requests.arm(3) ?? expect.fail();
    expect(last).not.toBe(armed);
    putRequest(last, 6, 200);

    const next = createRequests(journal.open());
    const unfinished = next.restoreUnfinished();
    expect(unfinished.map(({ mount, phase, message }) => [unique(message), mount, phase, message.end])).toEqual([
      [1, 3, 'taken', 100],
      [2, 3, 'sent', 100],
      [3, 3, 'done', 100],
      [5, 3, 'behind', longBytes],
      [6, 3, 'taken', 200],
    ]);
    expect(next.find(sent)).toEqual({ kind: 'made', seconds: 1_700_000_000, nanoseconds: 999_999_999 });
    expect(next.find(behind)).toBeUndefined();
    expect(next.find(done)).toEqual({ kind: 'gone', handle: handle('a handle') });
    expect(next.keptAnswer(done).toString()).toBe('the answer');
    expect(next.isBehind(behind)).toBe(true);
    const data = unfinished.find(({ place }) => place === behind)?.message.buffer;
    expect(data?.subarray(16, longBytes).every((byte) => byte === 5)).toBe(true);
    expect(next.held).toEqual({ lines: 5, slots: 1 });
    for (const { place } of unfinished) next.free(place);
    expect(next.held).toEqual({ lines: 0, slots: 0 });
    expect(createRequests(journal.open()).restoreUnfinished()).toEqual([]);
  });

  test('a line is freed once, and not by work for a gone mount', () => {
    using journal = keepJournal(8);
    const requests = createRequests(journal.open());
    const take = (mount: number, length: number): number => {
      const slot = requests.arm(mount) ?? expect.fail();
      return (requests.take(mount, slot, putRequest(slot, 2, length)) ?? expect.fail()).place;
    };
    for (const length of [60, 5000, longBytes]) {
      const place = take(0, length);
      requests.freeAll(0);
      expect(() => requests.free(place)).toThrow('not in use');
      expect(take(1, length)).not.toBe(take(1, length));
    }
    requests.freeAll(1);
    expect(requests.held).toEqual({ lines: 0, slots: 0 });
  });

  test('a successor knows which requests were interrupted, wherever they lie', () => {
    using journal = keepJournal(8);
    const requests = createRequests(journal.open());
    const read = (number: number, length: number): number => {
      const armed = requests.arm(3) ?? expect.fail();
      return (requests.take(3, armed, putRequest(armed, number, length)) ?? expect.fail()).place;
    };
    const places = [read(0x8000_0002, 100), read(4, 5000), read(6, longBytes), read(8, 100)];
    for (const place of places.slice(0, 3)) requests.markInterrupted(place);
    const unfinished = createRequests(journal.open()).restoreUnfinished();
    expect(unfinished.map(({ message, isInterrupted }) => [unique(message), isInterrupted])).toEqual([
      [0x8000_0002, true],
      [4, true],
      [6, true],
      [8, false],
    ]);
    // Another request in the same line was not interrupted.
    for (const place of places) requests.free(place);
    for (const number of [10, 12, 14, 16]) read(number, 100);
    for (const { isInterrupted } of createRequests(journal.open()).restoreUnfinished())
      expect(isInterrupted).toBe(false);
  });

  test('a successor knows the age of a request even if the time of day was set', () => {
    using journal = keepJournal(8);
    const clock = createFakeClock();
    // 0: not recorded.
    clock.advance(1);
    const requests = createRequests(journal.open(), clock);
    const armed = requests.arm(3) ?? expect.fail();
    requests.take(3, armed, putRequest(armed, 2, 100));
    clock.advance(1_000);
    requests.take(3, armed, putRequest(armed, 4, 100));
    clock.advance(500);
    const ages = (): readonly number[] =>
      createRequests(journal.open(), clock)
        .restoreUnfinished()
        .map(({ ageMs }) => ageMs);
    expect(ages()).toEqual([1_500, 500]);
    clock.jump(-1_000_000);
    expect(ages()).toEqual([1_500, 500]);
    clock.jump(2_000_000);
    expect(ages()).toEqual([1_500, 500]);
    // A request read by a process that did not record its time.
    createRequests(journal.open()).take(3, armed, putRequest(armed, 6, 100));
    expect(ages()).toEqual([1_500, 500, 0]);
  });

  test('medium requests are moved to cells while there is room', () => {
    using journal = keepJournal(8);
    const requests = createRequests(journal.open());
    const armed = requests.arm(0) ?? expect.fail();
    const sizes = [700, 4096 + 80, 8192, 8193, 65_536 + 80];
    for (const [i, size] of sizes.entries()) {
      requests.take(0, armed, putRequest(armed, i + 1, size));
      expect(requests.arm(0)).toBe(armed);
    }
    const next = createRequests(journal.open());
    const unfinished = next.restoreUnfinished();
    expect(unfinished.map(({ message }) => [unique(message), message.end])).toEqual(
      sizes.map((size, i) => [i + 1, size]),
    );
    for (const { message, place } of unfinished) {
      expect(message.buffer.subarray(16, message.end).every((byte) => byte === unique(message))).toBe(true);
      next.free(place);
    }
    // All cells of both size classes, then the slots.
    const mounts = [1, 2];
    for (const mount of mounts) {
      for (let i = 0; i < cellCount / 2 + (mount === 2 ? 2 : 0); i++) {
        const slot = next.arm(mount) ?? expect.fail();
        expect(next.take(mount, slot, putRequest(slot, 1000 + i, 5000))).toBeDefined();
      }
    }
    expect(next.held).toEqual({ lines: cellCount + 2, slots: 2 });
    for (const mount of mounts) next.freeAll(mount);
    expect(next.held).toEqual({ lines: 0, slots: 0 });
  });

  test('a request stored in two places because of a kill counts once', () => {
    using journal = keepJournal();
    const requests = createRequests(journal.open());
    const armed = requests.arm(0) ?? expect.fail();
    requests.take(0, armed, putRequest(armed, 9, 50));
    putRequest(armed, 9, 50);
    const next = createRequests(journal.open());
    expect(next.restoreUnfinished()).toHaveLength(1);
    expect(next.held).toEqual({ lines: 1, slots: 0 });
  });

  test('a reused line has no data of its former request', () => {
    using journal = keepJournal(1);
    const requests = createRequests(journal.open());
    const armed = requests.arm(7) ?? expect.fail();
    const first = requests.take(7, armed, putRequest(armed, 1, longBytes)) ?? expect.fail();
    expect(requests.arm(7)).toBeUndefined();
    requests.write(first.place, { kind: 'moved', handle: handle('x') });
    requests.free(first.place);
    const reusedSlot = requests.arm(8) ?? expect.fail();
    expect(reusedSlot.view.getUint32(0, true)).toBe(0);
    const second = requests.take(8, reusedSlot, putRequest(reusedSlot, 2, 60)) ?? expect.fail();
    expect(second.place).toBe(first.place);
    expect(requests.find(second.place)).toBeUndefined();
    expect(createRequests(journal.open()).restoreUnfinished()).toMatchObject([{ mount: 8, phase: 'taken' }]);
  });

  test('an answer is stored only for a call that was sent', () => {
    using journal = keepJournal();
    const requests = createRequests(journal.open());
    const armed = requests.arm(0) ?? expect.fail();
    const { place } = requests.take(0, armed, putRequest(armed, 1, 60)) ?? expect.fail();
    requests.keepAnswer(place, Buffer.from('cheap to do again'));
    expect(createRequests(journal.open()).restoreUnfinished()).toMatchObject([{ phase: 'taken' }]);
  });

  test('all lines and slots of a removed mount are freed', () => {
    using journal = keepJournal();
    const requests = createRequests(journal.open());
    for (const mount of [1, 2, 1]) {
      const armed = requests.arm(mount) ?? expect.fail();
      requests.take(mount, armed, putRequest(armed, mount, longBytes));
    }
    requests.arm(1);
    requests.freeAll(1);
    expect(requests.held).toEqual({ lines: 1, slots: 1 });
    expect(requests.restoreUnfinished()).toMatchObject([{ mount: 2 }]);
  });

  test('a request that finds no room stays in its slot', () => {
    using journal = keepJournal();
    const requests = createRequests(journal.open());
    const armed = requests.arm(0) ?? expect.fail();
    for (let i = 1; i <= lineCount / 2; i++) expect(requests.take(0, armed, putRequest(armed, i, 60))).toBeDefined();
    expect(requests.take(0, armed, putRequest(armed, lineCount + 1, 60))).toBeUndefined();
    expect(armed.view.getUint32(0, true)).toBe(60);
    requests.free(5);
    expect(requests.take(0, armed, 60)).toMatchObject({ place: 5 });
  });

  test('a mount can always take another request, however many other mounts have taken, also in a successor', () => {
    using journal = keepJournal(16);
    let requests = createRequests(journal.open());
    for (let mount = 0; mount < 5; mount++) {
      if (mount === 3) requests = createRequests(journal.open());
      if (mount === 3) requests.restoreUnfinished();
      const armed = requests.arm(mount) ?? expect.fail();
      let [taken, unique] = [0, 0];
      while (requests.take(mount, armed, putRequest(armed, ++unique, 60)) !== undefined) taken++;
      expect(taken).toBeGreaterThan(lineCount / 100);
      // With a larger share, the mount can take one more request.
      expect(requests.take(mount, armed, 60, 3)).toBeDefined();
    }
  });

  test('long requests of one mount leave slots for reading those of others', () => {
    using journal = keepJournal(16);
    const requests = createRequests(journal.open());
    let [taken, armed] = [0, requests.arm(0) ?? expect.fail()];
    while (requests.take(0, armed, putRequest(armed, 1 + taken, longBytes)) !== undefined) {
      taken++;
      armed = requests.arm(0) ?? expect.fail();
    }
    expect(taken).toBe(8);
    for (let mount = 1; mount <= 5; mount++) {
      const other = requests.arm(mount) ?? expect.fail();
      expect(requests.take(mount, other, putRequest(other, 1, longBytes))).toBeDefined();
    }
  });

  describe('data paths that died during requests', () => {
    /** Runs `action` in a process that then dies. Returns how often each request was blamed before. */
    function crashCountsAfter(
      journal: ReturnType<typeof keepJournal>,
      action: (requests: Requests) => void,
    ): readonly number[] {
      const requests = createRequests(journal.open());
      const unfinished = requests.restoreUnfinished();
      action(requests);
      return unfinished.map(({ crashCount }) => crashCount);
    }
    const readTwoRequests = (requests: Requests): void => {
      const armed = requests.arm(0) ?? expect.fail();
      for (const unique of [1, 2]) requests.take(0, armed, putRequest(armed, unique, 60));
    };
    const doNothing = (): void => undefined;

    test('are not counted if they were told to stop', () => {
      using journal = keepJournal();
      crashCountsAfter(journal, readTwoRequests);
      crashCountsAfter(journal, (requests) => requests.markStopping());
      expect(crashCountsAfter(journal, doNothing)).toEqual([1, 1]);
      expect(crashCountsAfter(journal, doNothing)).toEqual([2, 2]);
    });

    test('are counted for all requests three times, then only for the suspect', () => {
      using journal = keepJournal();
      crashCountsAfter(journal, readTwoRequests);
      for (let i = 1; i <= 3; i++) expect(crashCountsAfter(journal, doNothing)).toEqual([i, i]);
      expect(crashCountsAfter(journal, (requests) => requests.setSuspect(1))).toEqual([3, 3]);
      expect(crashCountsAfter(journal, (requests) => requests.setSuspect(1))).toEqual([3, 4]);
      expect(crashCountsAfter(journal, doNothing)).toEqual([3, 5]);
      expect(crashCountsAfter(journal, doNothing)).toEqual([3, 5]);
    });
  });

  test('a request that found no room is found by a successor', () => {
    using journal = keepJournal();
    const requests = createRequests(journal.open());
    const slot = requests.arm(0) ?? expect.fail();
    for (let i = 1; i <= lineCount / 2; i++) requests.take(0, slot, putRequest(slot, i, 60));
    requests.take(0, slot, putRequest(slot, lineCount + 1, 60));
    // Another mount had memory for only one.
    requests.arm(1);
    const next = createRequests(journal.open());
    expect(next.restoreUnfinished()).toHaveLength(lineCount / 2);
    expect(next.findUnplaced(0)).toMatchObject({ slot: { index: slot.index }, length: 60 });
    expect(next.findUnplaced(1)).toBeUndefined();
    expect(next.held.slots).toBe(1);
    next.free(5);
    expect(next.take(0, (next.findUnplaced(0) ?? expect.fail()).slot, 60)).toMatchObject({ place: 5 });
    expect(next.findUnplaced(0)).toBeUndefined();
    expect(next.held.slots).toBe(0);
  });

  test('the maximum number of mounts can each hold a long request and one without a line, and still be read from', () => {
    const fd = createJournal();
    using memory = openJournal(fd);
    // Untouched pages need no memory here.
    const requests = createRequests({ ...memory, populate: () => undefined });
    const canTake = (mount: number, unique: number): boolean => {
      const slot = requests.arm(mount) ?? expect.fail();
      slot.view.setUint32(0, longBytes, true);
      slot.view.setUint32(8, unique, true);
      return requests.take(mount, slot, longBytes) !== undefined;
    };
    let [takenCount, unique] = [0, 0];
    while (canTake(0, ++unique)) takenCount++;
    expect(takenCount).toBeGreaterThan(100);
    for (let mount = 1; mount < maxMounts; mount++) {
      expect(canTake(mount, ++unique)).toBe(true);
      while (canTake(mount, ++unique)) expect(requests.held.slots).toBeLessThan(2 * maxMounts + 256);
    }
    expect(requests.arm(0)).toBeDefined();
    closeSync(fd);
  });

  describe('memory of long requests', () => {
    const mebibyte = 1024 * 1024;
    /** Some at once, then none. */
    function readAndFree(requests: Requests, count: number): void {
      const places = Array.from({ length: count }, (_, i) => {
        const armed = requests.arm(i) ?? expect.fail();
        return (requests.take(i, armed, putRequest(armed, i + 1, mebibyte)) ?? expect.fail()).place;
      });
      for (const place of places) requests.free(place);
    }

    test('is returned after some seconds without use, except for a few slots', () => {
      using journal = keepJournal(64);
      const clock = createFakeClock();
      const requests = createRequests(journal.open(), clock);
      const usedMib = (): number => (fstatSync(journal.fd).blocks * 512) / mebibyte;
      const before = usedMib();
      readAndFree(requests, 50);
      expect(usedMib() - before).toBeGreaterThan(45);
      // Memory in use stays.
      for (let i = 0; i < 10; i++) {
        clock.advance(4_000);
        readAndFree(requests, 50);
        expect(usedMib() - before).toBeGreaterThan(45);
      }
      clock.advance(5_000);
      clock.advance(5_000);
      expect(usedMib() - before).toBeLessThan(6);
      readAndFree(requests, 50);
      expect(requests.held).toEqual({ lines: 0, slots: 0 });
    });

    test('is returned if a predecessor had used it', () => {
      using journal = keepJournal(64);
      readAndFree(createRequests(journal.open()), 50);
      const armed = createRequests(journal.open()).arm(0) ?? expect.fail();
      const last = putRequest(armed, 7, longBytes);
      const clock = createFakeClock();
      const requests = createRequests(journal.open(), clock);
      const unfinished = requests.restoreUnfinished();
      clock.advance(5_000);
      expect((fstatSync(journal.fd).blocks * 512) / mebibyte).toBeLessThan(15);
      expect(unfinished[0]?.message.buffer.subarray(16, last).every((byte) => byte === 7)).toBe(true);
    });

    test('is not returned by a stopped process: its successor owns it', () => {
      using journal = keepJournal(64);
      const clock = createFakeClock();
      const requests = createRequests(journal.open(), clock);
      readAndFree(requests, 50);
      requests.markStopping();
      clock.advance(20_000);
      expect((fstatSync(journal.fd).blocks * 512) / mebibyte).toBeGreaterThan(45);
    });
  });
});
