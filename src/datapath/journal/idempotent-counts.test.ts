import { closeSync } from 'node:fs';
import { describe, expect, onTestFinished, test } from 'vitest';
import { createIdempotentCounts } from './idempotent-counts.ts';
import { line, lineWord, maxListed, record } from './layout.ts';
import { createJournal, type JournalMemory, openJournal } from './memory.ts';
import { createNodeTable, type NodeTable } from './nodes.ts';
import { createRequests, type Requests } from './requests.ts';

const handle = (text: string): Buffer => Buffer.from(text);
const root = handle('root');

interface Process {
  readonly requests: Requests;
  readonly table: NodeTable;
  readonly nodes: ReturnType<NodeTable['openMount']>;
  /** Reads a request. */
  readRequest(): number;
}

/** Memory that outlives processes, and processes that use it. */
function createSharedJournal(): { startProcess(): Process; open(): ReturnType<typeof openJournal> } {
  const fd = createJournal(4);
  const memories: Disposable[] = [];
  onTestFinished(() => {
    for (const one of memories) one[Symbol.dispose]();
    closeSync(fd);
  });
  const open = (): ReturnType<typeof openJournal> => {
    const memory = openJournal(fd);
    memories.push(memory);
    return memory;
  };
  let unique = 0;
  return {
    open,
    startProcess: () => {
      const memory = open();
      const [requests, table] = [createRequests(memory), createNodeTable(memory)];
      requests.restoreUnfinished();
      const armed = requests.arm(0) ?? expect.fail();
      const readRequest = (): number => {
        armed.view.setUint32(0, 80, true);
        armed.view.setUint32(8, ++unique, true);
        return (requests.take(0, armed, 80) ?? expect.fail()).place;
      };
      return { requests, table, nodes: table.openMount(0, root), readRequest };
    },
  };
}

/** As if killed before recording the count. */
function markUnfinished({ words }: JournalMemory, step: number, node: number): void {
  expect(words[step]).toBe(node | 0x2000_0000);
  words[step] = node | 0x4000_0000;
}

describe('a resent request does not count again', () => {
  test('for a lookup', () => {
    const { startProcess: next } = createSharedJournal();
    const first = next();
    const place = first.readRequest();
    const { id } = first.nodes.addLookup(handle('a'), place);
    // Another request, already answered.
    const other = first.readRequest();
    first.nodes.addLookup(handle('a'), other);
    first.requests.free(other);

    const second = next();
    expect(second.nodes.addLookup(handle('a'), place).id).toBe(id);
    second.requests.free(place);
    // The same place, for another request.
    expect(second.readRequest()).toBe(place);
    second.nodes.addLookup(handle('a'), place);
    second.nodes.forget(id, 2);
    expect(second.nodes.get(id)).toBeDefined();
    second.nodes.forget(id, 1);
    expect(second.nodes.get(id)).toBeUndefined();
  });

  test('except for a lookup whose name now means another node: both are counted', () => {
    const { startProcess: next } = createSharedJournal();
    const first = next();
    const place = first.readRequest();
    const one = first.nodes.addLookup(handle('a'), place).id;
    const second = next();
    const other = second.nodes.addLookup(handle('b'), place).id;
    expect([second.nodes.get(one), second.nodes.get(other)]).toEqual([expect.anything(), expect.anything()]);
  });

  test('for a lookup that was undone', () => {
    const { startProcess: next } = createSharedJournal();
    const first = next();
    const place = first.readRequest();
    const { id } = first.nodes.addLookup(handle('a'), place);
    first.nodes.removeLookup(id, place);
    expect(first.nodes.get(id)).toBeUndefined();
    const newId = next().nodes.addLookup(handle('a'), place).id;
    const third = next();
    third.nodes.forget(newId, 1);
    expect(third.table.size).toBe(0);
  });

  test('for open and close', () => {
    const { startProcess: next } = createSharedJournal();
    const first = next();
    const { id } = first.nodes.addLookup(handle('a'));
    const [one, other, close] = [first.readRequest(), first.readRequest(), first.readRequest()];
    first.nodes.addOpen(id, one);
    first.nodes.addOpen(id, other);

    const second = next();
    second.nodes.addOpen(id, one);
    second.nodes.addOpen(id, other);
    expect(second.nodes.get(id)?.opens).toBe(2);
    second.nodes.removeOpen(id, close);

    const third = next();
    third.nodes.removeOpen(id, close);
    expect(third.nodes.get(id)?.opens).toBe(1);
  });

  test('for a listing that contains some nodes twice', () => {
    const { startProcess: next } = createSharedJournal();
    const first = next();
    const place = first.readRequest();
    const names = ['a', 'b', 'b', 'c'];
    const list = ({ nodes }: Process) => names.map((name) => nodes.addListed(handle(name), place).id);
    const ids = list(first);
    first.nodes.removeLookup(ids[3] ?? 0, place);
    expect(first.table.size).toBe(2);

    const second = next();
    expect(list(second).slice(0, 3)).toEqual(ids.slice(0, 3));
    second.requests.free(place);
    // Another listing, independent of the first one's counts.
    expect(second.readRequest()).toBe(place);
    const [one = 0, two = 0, , three = 0] = list(second);
    second.nodes.forget(one, 1);
    second.nodes.forget(two, 3);
    second.nodes.forget(three, 1);
    expect(second.table.size).toBe(3);
    for (const id of [one, two, three]) second.nodes.forget(id, 1);
    expect(second.table.size).toBe(0);
  });

  test('for a listing longer than its line has room for', () => {
    const { startProcess: next } = createSharedJournal();
    const first = next();
    const place = first.readRequest();
    const names = Array.from({ length: maxListed + 10 }, (_, i) => `file-${i}`);
    for (const name of names) first.nodes.addListed(handle(name), place);
    const second = next();
    for (const name of names) second.nodes.addListed(handle(name), place);
    const remaining = names.filter((name) => {
      const { id } = second.nodes.find(handle(name)) ?? expect.fail();
      second.nodes.forget(id, 1);
      return second.nodes.get(id) !== undefined;
    });
    // Too high, never too low.
    expect(remaining).toHaveLength(10);
  });

  test('when killed in the middle of a step: the step is completed', () => {
    const { startProcess: next, open } = createSharedJournal();
    const place = next().readRequest();
    const throwKilled = (): never => {
      throw new Error('killed');
    };
    const step = { place, field: 'opened', node: 7 } as const;
    expect(() => createIdempotentCounts(open()).applyOnce({ ...step, newCount: 3 }, throwKilled)).toThrow('killed');
    const counts: number[] = [];
    // Whether it was counted cannot be seen.
    createIdempotentCounts(open()).completeInterrupted(
      ({ node, field: what, newCount: becomes }) => void counts.push(node, becomes, what.length),
    );
    createIdempotentCounts(open()).applyOnce({ ...step, newCount: 4 }, (count) => void counts.push(count));
    expect(counts).toEqual([7, 3, 'opened'.length]);
  });

  test('when killed in the middle of a step: counts made before the resend are kept', () => {
    const { startProcess: next, open } = createSharedJournal();
    const first = next();
    const { id } = first.nodes.addLookup(handle('a'));
    const place = first.readRequest();
    first.nodes.addOpen(id, place);
    markUnfinished(open(), lineWord(place, line.opened), id);
    const second = next();
    second.nodes.addOpen(id, second.readRequest());
    second.nodes.addOpen(id, place);
    expect(second.nodes.get(id)?.opens).toBe(2);
  });

  test('when killed while creating a node: the node exists and counts once', () => {
    const { startProcess: next, open } = createSharedJournal();
    const first = next();
    const place = first.readRequest();
    const { id } = first.nodes.addLookup(handle('a'), place);
    // The state a moment earlier.
    const memory = open();
    memory.chunks[0]?.setUint32((id - 2) * record.size + record.owner, 0, true);
    markUnfinished(memory, lineWord(place, line.looked), id);
    const second = next();
    const other = second.nodes.addLookup(handle('b')).id;
    expect(second.nodes.addLookup(handle('a'), place).id).toBe(id);
    for (const one of [id, other]) second.nodes.forget(one, 1);
    expect(second.table.size).toBe(0);
  });
});
