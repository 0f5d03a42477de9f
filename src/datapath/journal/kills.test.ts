import { closeSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { putRequest } from '#testing/journal.ts';
import type { Message } from '#wire/fuse/message.ts';
import { createJournal, type JournalMemory, openJournal } from './memory.ts';
import { createNodeTable } from './nodes.ts';
import { createRequests, type Requests } from './requests.ts';

/*
 * A process can be killed between any two stores. This test kills it at each: the n-th store throws, nothing more is
 * done, and the next process required find everything. Stores that no process reads yet (plain ones, to an unused line) are
 * skipped.
 */

class KilledError extends Error {}

/** Returns whether the work had enough stores to be killed. What the kernel writes (`putRequest`) is separate. */
function runUntilStore(storeCount: number, work: () => void): boolean {
  let stores = 0;
  const countStore = (): void => {
    if (stores++ === storeCount) throw new KilledError();
  };
  const { store } = Atomics;
  const { setUint32, setFloat64 } = DataView.prototype;
  Atomics.store = ((...args: Parameters<typeof store>) => {
    countStore();
    return store(...args);
  }) as typeof store;
  DataView.prototype.setUint32 = function (...args) {
    countStore();
    setUint32.apply(this, args);
  };
  DataView.prototype.setFloat64 = function (...args) {
    countStore();
    setFloat64.apply(this, args);
  };
  try {
    work();
    return false;
  } catch (cause) {
    if (!(cause instanceof KilledError)) throw cause;
    return true;
  } finally {
    Atomics.store = store;
    Object.assign(DataView.prototype, { setUint32, setFloat64 });
  }
}

/** Runs once per store of the work, and once without a kill. */
function killAtEachStore(maxStores: number, run: (after: number) => boolean): void {
  let storeIndex = 0;
  while (run(storeIndex)) expect(++storeIndex).toBeLessThan(maxStores);
  expect(storeIndex).toBeGreaterThan(0);
}

const slots = 4;
const longBytes = 100_000;

/** Successive processes on the same memory. */
function createSharedJournal(): Disposable & { open(): JournalMemory } {
  const fd = createJournal(slots);
  const opened = new DisposableStack();
  opened.defer(() => closeSync(fd));
  // Untouched pages need no memory here.
  const next = (): JournalMemory => ({ ...opened.use(openJournal(fd)), populate: () => undefined });
  return { open: next, [Symbol.dispose]: () => opened.dispose() };
}

describe('requests in the journal', () => {
  /** Requests that a successor must find, with their unique id as key, and requests that it may find. */
  interface ExpectedRequests {
    readonly required: Map<number, { readonly mount: number; readonly length: number }>;
    readonly allowed: Set<number>;
  }

  const readRequest = (
    requests: Requests,
    { required }: ExpectedRequests,
    mount: number,
    unique: number,
    length: number,
  ): number => {
    const slot = requests.arm(mount) ?? expect.fail();
    putRequest(slot, unique, length);
    required.set(unique, { mount, length });
    return (requests.take(mount, slot, length) ?? expect.fail()).place;
  };

  function runRequests(requests: Requests, expected: ExpectedRequests): void {
    const whileOptional = (uniques: readonly number[], action: () => void): void => {
      for (const unique of uniques) {
        expected.required.delete(unique);
        expected.allowed.add(unique);
      }
      action();
      for (const unique of uniques) expected.allowed.delete(unique);
    };
    const first = readRequest(requests, expected, 1, 2, longBytes);
    const [short, middle] = [readRequest(requests, expected, 2, 4, 50), readRequest(requests, expected, 1, 6, 5000)];
    requests.markBehind(first);
    const second = readRequest(requests, expected, 2, 8, longBytes);
    whileOptional([2], () => requests.free(first));
    readRequest(requests, expected, 3, 10, longBytes);
    whileOptional([4], () => requests.free(short));
    whileOptional([6], () => requests.free(middle));
    readRequest(requests, expected, 1, 12, 70_000);
    readRequest(requests, expected, 1, 14, longBytes);
    whileOptional([12, 14], () => requests.freeAll(1));
    whileOptional([8], () => requests.free(second));
    readRequest(requests, expected, 2, 16, 50);
  }

  const unique = ({ view }: Message): number => view.getUint32(8, true);
  const isWhole = (message: Message): boolean =>
    message.buffer.subarray(16, message.end).equals(Buffer.alloc(message.end - 16, unique(message) & 0xff));

  function checkFound(found: ReturnType<Requests['restoreUnfinished']>, { required, allowed }: ExpectedRequests): void {
    const numbers = found.map(({ message }) => unique(message));
    expect(new Set(numbers).size).toBe(numbers.length);
    expect(numbers).toEqual(expect.arrayContaining([...required.keys()]));
    for (const { mount, message } of found) {
      const known = required.get(unique(message));
      if (known === undefined) expect(allowed).toContain(unique(message));
      else expect({ mount, length: message.end }).toEqual(known);
      expect(isWhole(message)).toBe(true);
    }
  }

  const fillerMount = 9;

  /** Takes all free memory. */
  function fill(requests: Requests): void {
    for (let number = 101; ; number += 2) {
      const slot = requests.arm(fillerMount);
      if (slot === undefined) return;
      putRequest(slot, number, longBytes);
      requests.take(fillerMount, slot, longBytes);
    }
  }

  test('exist exactly once wherever a process and its successor are killed', () => {
    killAtEachStore(500, (after) => {
      using journal = createSharedJournal();
      const expected: ExpectedRequests = { required: new Map(), allowed: new Set() };
      const killedProcess = createRequests(journal.open());
      const isOver = !runUntilStore(after, () => runRequests(killedProcess, expected));
      // Not at each store of the successor: that would take too long.
      const killedSuccessor = createRequests(journal.open());
      runUntilStore(after % 8, () => void killedSuccessor.restoreUnfinished());
      const requests = createRequests(journal.open());
      const unfinished = requests.restoreUnfinished();
      checkFound(unfinished, expected);
      fill(requests);
      // No other request got memory that holds one of these.
      checkFound(unfinished, expected);
      const last = createRequests(journal.open());
      const found = last.restoreUnfinished().filter(({ mount }) => mount !== fillerMount);
      checkFound(found, expected);
      for (const { place } of found) last.free(place);
      last.freeAll(fillerMount);
      expect(last.held).toEqual({ lines: 0, slots: 0 });
      return !isOver;
    });
  }, 120_000);
});

describe('nodes in the journal', () => {
  const handle = (name: string): Buffer => Buffer.from(name);

  interface Process {
    readonly requests: Requests;
    readonly nodes: ReturnType<ReturnType<typeof createNodeTable>['openMount']>;
  }

  function start(memory: JournalMemory): Process & { readonly unfinished: readonly number[] } {
    const requests = createRequests(memory);
    const unfinished = requests.restoreUnfinished().map(({ place }) => place);
    return { requests, nodes: createNodeTable(memory).openMount(0, handle('root')), unfinished };
  }

  /** Successive requests: what each does whenever it is started. */
  const steps: readonly ((process: Process, place: number) => void)[] = [
    ({ nodes }, place) => void nodes.addLookup(handle('a'), place),
    ({ nodes }, place) => nodes.addOpen(nodes.addLookup(handle('a'), place).id, place),
    ({ nodes }, place) => nodes.addOpen(nodes.find(handle('a'))?.id ?? expect.fail(), place),
    ({ nodes }, place) => nodes.removeLookup(nodes.addLookup(handle('b'), place).id, place),
    ({ nodes }, place) => nodes.removeOpen(nodes.find(handle('a'))?.id ?? expect.fail(), place),
    ({ nodes }) =>
      nodes.setHiddenName(nodes.find(handle('a'))?.id ?? expect.fail(), { directory: handle('d'), name: 'one' }),
    ({ nodes }) =>
      nodes.setHiddenName(nodes.find(handle('a'))?.id ?? expect.fail(), { directory: handle('d'), name: 'two' }),
    // The second file has two names.
    ({ nodes }, place) => {
      const { id } = nodes.addListed(handle('x'), place);
      nodes.addListed(handle('y'), place);
      nodes.removeLookup(id, place);
      nodes.addListed(handle('y'), place);
    },
  ];

  test('are counted once per request, and never too low, wherever a process is killed', () => {
    killAtEachStore(500, (after) => {
      using journal = createSharedJournal();
      const progress = { step: 0, read: -1 };
      const runSteps = (process: Process, place?: number): void => {
        let resentPlace = place;
        for (; progress.step < steps.length; progress.step++) {
          const requestPlace = resentPlace ?? readRequest(process, progress);
          resentPlace = undefined;
          steps[progress.step]?.(process, requestPlace);
          process.requests.free(requestPlace);
        }
      };
      const first = start(journal.open());
      const isOver = !runUntilStore(after, () => runSteps(first));
      const next = start(journal.open());
      expect(next.unfinished.length).toBeLessThan(2);
      const isHidden = next.nodes.hiddenName(next.nodes.find(handle('a'))?.id ?? 0) !== undefined;
      expect(isHidden || progress.step < 6).toBe(true);
      // A request that was read and is absent was answered.
      if (!isOver && next.unfinished.length === 0 && progress.read === progress.step) progress.step++;
      runSteps(next, next.unfinished[0]);

      const last = start(journal.open());
      const { id, opens } = last.nodes.find(handle('a')) ?? expect.fail();
      expect(opens).toBe(1);
      expect(last.nodes.hiddenName(id)).toMatchObject({ name: 'two' });
      last.nodes.forget(id, 1);
      expect(last.nodes.get(id)).toBeDefined();
      last.nodes.forget(id, 1);
      expect(last.nodes.get(id)).toBeUndefined();
      const twice = last.nodes.find(handle('y')) ?? expect.fail();
      last.nodes.forget(twice.id, 1);
      expect(last.nodes.get(twice.id)).toBeDefined();
      return !isOver;
    });
  }, 120_000);

  test('are found by a resent request, even if the kernel has forgotten them in between', () => {
    using journal = createSharedJournal();
    const first = start(journal.open());
    const place = readRequest(first, { step: 0, read: -1 });
    const { id } = first.nodes.addLookup(handle('a'), place);
    // Killed after the answer; the kernel forgets the node before the successor asks the server.
    const next = start(journal.open());
    expect(next.unfinished).toEqual([place]);
    next.nodes.forget(id, 1);
    expect(next.nodes.get(id)).toBeUndefined();
    expect(next.nodes.addLookup(handle('b'), place).id).toBe(id);
    expect(next.nodes.get(id)?.handle).toEqual(handle('b'));
    expect(start(journal.open()).nodes.find(handle('b'))?.id).toBe(id);
  });

  /** As the kernel does it: the request is there however far the process gets. */
  function readRequest({ requests }: Process, progress: { readonly step: number; read: number }): number {
    const slot = requests.arm(0) ?? expect.fail();
    putRequest(slot, 2 + 2 * progress.step, 60);
    progress.read = progress.step;
    return (requests.take(0, slot, 60) ?? expect.fail()).place;
  }
});
