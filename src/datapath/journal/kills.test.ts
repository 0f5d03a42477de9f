import { closeSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { putRequest } from '#testing/journal.ts';
import type { Message } from '#wire/fuse/message.ts';
import { createJournal, type JournalMemory, openJournal } from './memory.ts';
import { createNodeTable } from './nodes.ts';
import { createRequests, type Requests } from './requests.ts';

/*
 * A process can be killed between any two stores. This test kills it at each: the n-th store throws, nothing more is
 * done, and the next process must find everything. Stores that no process reads yet (plain ones, to an unused line) are
 * skipped.
 */

class Killed extends Error {}

/** Returns whether the work had enough stores to be killed. What the kernel writes (`putRequest`) is separate. */
function isKilled(after: number, work: () => void): boolean {
  let stores = 0;
  const stored = (): void => {
    if (stores++ === after) throw new Killed();
  };
  const { store } = Atomics;
  const { setUint32, setFloat64 } = DataView.prototype;
  Atomics.store = ((...args: Parameters<typeof store>) => {
    stored();
    return store(...args);
  }) as typeof store;
  DataView.prototype.setUint32 = function (...args) {
    stored();
    setUint32.apply(this, args);
  };
  DataView.prototype.setFloat64 = function (...args) {
    stored();
    setFloat64.apply(this, args);
  };
  try {
    work();
    return false;
  } catch (cause) {
    if (!(cause instanceof Killed)) throw cause;
    return true;
  } finally {
    Atomics.store = store;
    Object.assign(DataView.prototype, { setUint32, setFloat64 });
  }
}

/** Runs once per store of the work, and once without a kill. */
function atEachStore(most: number, once: (after: number) => boolean): void {
  let after = 0;
  while (once(after)) expect(++after).toBeLessThan(most);
  expect(after).toBeGreaterThan(0);
}

const slots = 4;
const long = 100_000;

/** Successive processes on the same memory. */
function journal(): Disposable & { next(): JournalMemory } {
  const fd = createJournal(slots);
  const opened = new DisposableStack();
  opened.defer(() => closeSync(fd));
  // Untouched pages need no memory here.
  const next = (): JournalMemory => ({ ...opened.use(openJournal(fd)), populate: () => undefined });
  return { next, [Symbol.dispose]: () => opened.dispose() };
}

describe('requests in the journal', () => {
  /** By id: requests that a successor must find, and those that it may find. */
  interface Read {
    readonly must: Map<number, { readonly mount: number; readonly length: number }>;
    readonly may: Set<number>;
  }

  const read = (requests: Requests, { must }: Read, mount: number, unique: number, length: number): number => {
    const slot = requests.arm(mount) ?? expect.fail();
    putRequest(slot, unique, length);
    must.set(unique, { mount, length });
    return (requests.take(mount, slot, length) ?? expect.fail()).place;
  };

  function work(requests: Requests, all: Read): void {
    const going = (uniques: readonly number[], go: () => void): void => {
      for (const unique of uniques) {
        all.must.delete(unique);
        all.may.add(unique);
      }
      go();
      for (const unique of uniques) all.may.delete(unique);
    };
    const first = read(requests, all, 1, 2, long);
    const [short, middle] = [read(requests, all, 2, 4, 50), read(requests, all, 1, 6, 5000)];
    requests.behind(first);
    const second = read(requests, all, 2, 8, long);
    going([2], () => requests.free(first));
    read(requests, all, 3, 10, long);
    going([4], () => requests.free(short));
    going([6], () => requests.free(middle));
    read(requests, all, 1, 12, 70_000);
    read(requests, all, 1, 14, long);
    going([12, 14], () => requests.freeAll(1));
    going([8], () => requests.free(second));
    read(requests, all, 2, 16, 50);
  }

  const unique = ({ view }: Message): number => view.getUint32(8, true);
  const isWhole = (message: Message): boolean =>
    message.buffer.subarray(16, message.end).equals(Buffer.alloc(message.end - 16, unique(message) & 0xff));

  function check(found: ReturnType<Requests['unfinished']>, { must, may }: Read): void {
    const numbers = found.map(({ message }) => unique(message));
    expect(new Set(numbers).size).toBe(numbers.length);
    expect(numbers).toEqual(expect.arrayContaining([...must.keys()]));
    for (const { mount, message } of found) {
      const known = must.get(unique(message));
      if (known === undefined) expect(may).toContain(unique(message));
      else expect({ mount, length: message.end }).toEqual(known);
      expect(isWhole(message)).toBe(true);
    }
  }

  const filler = 9;

  /** Takes all free memory. */
  function fill(requests: Requests): void {
    for (let number = 101; ; number += 2) {
      const slot = requests.arm(filler);
      if (slot === undefined) return;
      putRequest(slot, number, long);
      requests.take(filler, slot, long);
    }
  }

  test('exist exactly once wherever a process and its successor are killed', () => {
    atEachStore(500, (after) => {
      using kept = journal();
      const all: Read = { must: new Map(), may: new Set() };
      const before = createRequests(kept.next());
      const isOver = !isKilled(after, () => work(before, all));
      // All of them would take too long.
      const between = createRequests(kept.next());
      isKilled(after % 8, () => void between.unfinished());
      const requests = createRequests(kept.next());
      const left = requests.unfinished();
      check(left, all);
      fill(requests);
      // No one was given memory that holds one of them.
      check(left, all);
      const last = createRequests(kept.next());
      const found = last.unfinished().filter(({ mount }) => mount !== filler);
      check(found, all);
      for (const { place } of found) last.free(place);
      last.freeAll(filler);
      expect(last.held).toEqual({ lines: 0, slots: 0 });
      return !isOver;
    });
  }, 120_000);
});

describe('nodes in the journal', () => {
  const handle = (name: string): Buffer => Buffer.from(name);

  interface Process {
    readonly requests: Requests;
    readonly nodes: ReturnType<ReturnType<typeof createNodeTable>['of']>;
  }

  function start(memory: JournalMemory): Process & { readonly left: readonly number[] } {
    const requests = createRequests(memory);
    const left = requests.unfinished().map(({ place }) => place);
    return { requests, nodes: createNodeTable(memory).of(0, handle('root')), left };
  }

  /** Successive requests: what each does whenever it is started. */
  const steps: readonly ((process: Process, place: number) => void)[] = [
    ({ nodes }, place) => void nodes.addLookup(handle('a'), place),
    ({ nodes }, place) => nodes.opened(nodes.addLookup(handle('a'), place).id, place),
    ({ nodes }, place) => nodes.opened(nodes.find(handle('a'))?.id ?? expect.fail(), place),
    ({ nodes }, place) => nodes.removeLookup(nodes.addLookup(handle('b'), place).id, place),
    ({ nodes }, place) => nodes.closed(nodes.find(handle('a'))?.id ?? expect.fail(), place),
    ({ nodes }) => nodes.hide(nodes.find(handle('a'))?.id ?? expect.fail(), { directory: handle('d'), name: 'one' }),
    ({ nodes }) => nodes.hide(nodes.find(handle('a'))?.id ?? expect.fail(), { directory: handle('d'), name: 'two' }),
    // The second file has two names.
    ({ nodes }, place) => {
      const { id } = nodes.addListed(handle('x'), place);
      nodes.addListed(handle('y'), place);
      nodes.removeLookup(id, place);
      nodes.addListed(handle('y'), place);
    },
  ];

  test('are counted once per request, and never too low, wherever a process is killed', () => {
    atEachStore(500, (after) => {
      using kept = journal();
      const progress = { step: 0, read: -1 };
      const go = (process: Process, place?: number): void => {
        let again = place;
        for (; progress.step < steps.length; progress.step++) {
          const taken = again ?? takeOne(process, progress);
          again = undefined;
          steps[progress.step]?.(process, taken);
          process.requests.free(taken);
        }
      };
      const first = start(kept.next());
      const isOver = !isKilled(after, () => go(first));
      const next = start(kept.next());
      expect(next.left.length).toBeLessThan(2);
      const isHidden = next.nodes.hidden(next.nodes.find(handle('a'))?.id ?? 0) !== undefined;
      expect(isHidden || progress.step < 6).toBe(true);
      // Read and absent means that it was answered.
      if (!isOver && next.left.length === 0 && progress.read === progress.step) progress.step++;
      go(next, next.left[0]);

      const last = start(kept.next());
      const { id, opens } = last.nodes.find(handle('a')) ?? expect.fail();
      expect(opens).toBe(1);
      expect(last.nodes.hidden(id)).toMatchObject({ name: 'two' });
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
    using kept = journal();
    const first = start(kept.next());
    const place = takeOne(first, { step: 0, read: -1 });
    const { id } = first.nodes.addLookup(handle('a'), place);
    // Killed after the answer; the kernel forgets the node before the successor asks the server.
    const next = start(kept.next());
    expect(next.left).toEqual([place]);
    next.nodes.forget(id, 1);
    expect(next.nodes.get(id)).toBeUndefined();
    expect(next.nodes.addLookup(handle('b'), place).id).toBe(id);
    expect(next.nodes.get(id)?.handle).toEqual(handle('b'));
    expect(start(kept.next()).nodes.find(handle('b'))?.id).toBe(id);
  });

  /** As the kernel does it: the request is there however far the process gets. */
  function takeOne({ requests }: Process, progress: { readonly step: number; read: number }): number {
    const slot = requests.arm(0) ?? expect.fail();
    putRequest(slot, 2 + 2 * progress.step, 60);
    progress.read = progress.step;
    return (requests.take(0, slot, 60) ?? expect.fail()).place;
  }
});
