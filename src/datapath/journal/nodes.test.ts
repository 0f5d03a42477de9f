import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { keepJournal, putRequest } from '#testing/journal.ts';
import { chunkSize, record } from './layout.ts';
import { firstId } from './node-records.ts';
import { createNodeTable } from './nodes.ts';
import { createRequests } from './requests.ts';

const handle = (text: string): Buffer => Buffer.from(text);
const root = handle('root');

describe('the node table', () => {
  test('keeps one node per handle while the kernel knows it, also for a successor', () => {
    using journal = keepJournal();
    const nodes = createNodeTable(journal.open()).openMount(0, root);
    const [one, sameNode, other] = [
      nodes.addLookup(handle('a')),
      nodes.addLookup(handle('a')),
      nodes.addLookup(handle('b')),
    ];
    expect(sameNode.id).toBe(one.id);
    expect(other.id).not.toBe(one.id);
    nodes.addOpen(one.id);
    nodes.setHiddenName(one.id, { directory: handle('dir'), name: '.nfs0123' });

    const table = createNodeTable(journal.open());
    const next = table.openMount(0, root);
    expect(table.size).toBe(2);
    expect(next.get(one.id)).toEqual({ id: one.id, generation: one.generation, handle: handle('a'), opens: 1 });
    expect(next.hiddenName(one.id)).toEqual({ directory: handle('dir'), name: '.nfs0123' });
    expect(next.find(handle('b'))?.id).toBe(other.id);
    next.forget(one.id, 1);
    expect(next.get(one.id)).toBeDefined();
    next.forget(one.id, 1);
    expect(next.get(one.id)).toBeUndefined();
    expect(next.find(handle('a'))).toBeUndefined();
    // The id is reused with another generation.
    const nextNode = next.addLookup(handle('c'));
    const reused = [nextNode, next.addLookup(handle('d'))].find(({ id }) => id === one.id);
    expect(reused?.generation).toBe(one.generation + 1);
  });

  test('reports lost data of a file to a successor, but not after the id is reused', () => {
    using journal = keepJournal();
    const nodes = createNodeTable(journal.open()).openMount(0, root);
    const [{ id }, other] = [nodes.addLookup(handle('a')), nodes.addLookup(handle('b'))];
    nodes.setDataLoss(id, 'ENOSPC');
    const next = createNodeTable(journal.open()).openMount(0, root);
    expect([next.dataLoss(id), next.dataLoss(other.id), next.dataLoss(1)]).toEqual(['ENOSPC', undefined, undefined]);
    // It is also known whether this loss was reported, and not the next one.
    for (const each of [id, other.id]) next.setLossReported(each);
    const third = createNodeTable(journal.open()).openMount(0, root);
    expect([third.isLossReported(id), third.dataLoss(id), third.isLossReported(other.id)]).toEqual([
      true,
      'ENOSPC',
      false,
    ]);
    next.setDataLoss(id, 'EIO');
    expect([next.isLossReported(id), next.dataLoss(id)]).toEqual([false, 'EIO']);
    next.setDataLoss(other.id, 'EDQUOT');
    next.setDataLoss(other.id, undefined);
    next.forget(id, 1);
    expect(next.dataLoss(id)).toBeUndefined();
    expect(next.addLookup(handle('c')).id).toBe(id);
    expect([next.dataLoss(id), next.dataLoss(other.id)]).toEqual([undefined, undefined]);
  });

  test('always has the root as node 1', () => {
    using journal = keepJournal();
    const table = createNodeTable(journal.open());
    const [one, other] = [table.openMount(0, handle('r0')), table.openMount(1, handle('r1'))];
    expect(one.addLookup(handle('r0')).id).toBe(1);
    expect(other.get(1)?.handle).toEqual(handle('r1'));
    one.forget(1, 1000);
    expect(one.get(1)).toBeDefined();
    expect(table.size).toBe(0);
  });

  test('finds nodes by handle if an older program without hashes created them', () => {
    using journal = keepJournal();
    const memory = journal.open();
    const nodes = createNodeTable(memory).openMount(0, root);
    const { id } = nodes.addLookup(handle('a'));
    const [chunk] = memory.chunks;
    const field = (offset: number): number => (id - firstId) * record.size + offset;
    // What such a program leaves in a record of a hidden name.
    chunk?.setUint32(field(record.name), 28, true);
    Buffer.from('.nfs0123456789abcdef01234567').forEach((byte, i) => {
      chunk?.setUint8(field(record.name) + 4 + i, byte);
    });
    const next = createNodeTable(journal.open()).openMount(0, root);
    expect(next.find(handle('a'))?.id).toBe(id);
    expect(next.addLookup(handle('a')).id).toBe(id);
    next.forget(id, 2);
    expect(next.find(handle('a'))).toBeUndefined();
  });

  test('finds nodes by handle if an older program reused a record with a hash', () => {
    using journal = keepJournal();
    const memory = journal.open();
    const { id } = createNodeTable(memory).openMount(0, root).addLookup(handle('a'));
    const [chunk] = memory.chunks;
    const field = (offset: number): number => (id - firstId) * record.size + offset;
    chunk?.setUint32(field(record.generation), 2, true);
    chunk?.setUint8(field(record.handle), handle('b')[0] ?? 0);
    const next = createNodeTable(journal.open()).openMount(0, root);
    expect([next.find(handle('a')), next.find(handle('b'))?.id]).toEqual([undefined, id]);
  });

  test('ignores work for a gone mount after its index was reused', () => {
    using journal = keepJournal();
    const memory = journal.open();
    const [requests, table] = [createRequests(memory), createNodeTable(memory)];
    const nodesOfGoneMount = table.openMount(0, root);
    const slot = requests.arm(0) ?? expect.fail();
    const { place } = requests.take(0, slot, putRequest(slot, 2, 60)) ?? expect.fail();
    nodesOfGoneMount.addLookup(handle('a'), place);
    requests.freeAll(0);
    table.drop(0);

    const next = table.openMount(0, root);
    const reusedSlot = requests.arm(0) ?? expect.fail();
    expect(requests.take(0, reusedSlot, putRequest(reusedSlot, 4, 60))?.place).toBe(place);
    const { id } = next.addLookup(handle('b'), place);
    for (const lateLookup of [
      () => nodesOfGoneMount.addLookup(handle('c'), place),
      () => nodesOfGoneMount.addListed(handle('b'), place),
    ])
      expect(lateLookup).toThrow('ESTALE');
    nodesOfGoneMount.addOpen(id, place);
    nodesOfGoneMount.removeOpen(id, place);
    nodesOfGoneMount.removeLookup(id, place);
    nodesOfGoneMount.forget(id, 1);
    nodesOfGoneMount.setHiddenName(id, { directory: handle('dir'), name: '.nfs0123' });
    nodesOfGoneMount.setDataLoss(id, 'EIO');
    expect(nodesOfGoneMount.get(id)).toBeUndefined();
    expect([next.hiddenName(id), next.dataLoss(id), table.size]).toEqual([undefined, undefined, 1]);
    // A resent request does not count again.
    next.addLookup(handle('b'), place);
    next.forget(id, 1);
    expect(next.get(id)).toBeUndefined();
  });

  test('separates mounts and removes all nodes of a removed one', () => {
    using journal = keepJournal();
    const table = createNodeTable(journal.open());
    const [one, other] = [table.openMount(0, root), table.openMount(1, root)];
    const [firstNode, secondNode] = [one.addLookup(handle('same')), other.addLookup(handle('same'))];
    expect(firstNode.id).not.toBe(secondNode.id);
    expect(one.get(secondNode.id)).toBeUndefined();
    one.forget(secondNode.id, 5);
    table.drop(0);
    expect(table.size).toBe(1);
    expect(other.get(secondNode.id)).toBeDefined();
    expect(createNodeTable(journal.open()).size).toBe(1);
  });

  test('replaces a stale handle', () => {
    using journal = keepJournal();
    const nodes = createNodeTable(journal.open()).openMount(0, root);
    const { id } = nodes.addLookup(handle('old'));
    nodes.changeHandle(id, handle('new'));
    expect(nodes.find(handle('old'))).toBeUndefined();
    expect(nodes.find(handle('new'))?.id).toBe(id);
  });

  test('returns nothing for ids unknown to the kernel', () => {
    using journal = keepJournal();
    const nodes = createNodeTable(journal.open()).openMount(0, root);
    nodes.addLookup(handle('a'));
    for (const id of [0, 3, 100_000, 2 ** 40, -1, Number.NaN]) {
      expect(nodes.get(id)).toBeUndefined();
      nodes.forget(id, 1);
      nodes.setHiddenName(id, undefined);
      expect(nodes.hiddenName(id)).toBeUndefined();
    }
  });

  test('grows, and frees a hidden name without a file at the next start', () => {
    using journal = keepJournal();
    const memory = journal.open();
    const table = createNodeTable(memory);
    const nodes = table.openMount(0, root);
    const fileCount = (chunkSize / record.size) * 2 + 10;
    for (let i = 0; i < fileCount; i++) nodes.addLookup(handle(`file ${i}`));
    expect(memory.chunks).toHaveLength(3);
    const { id } = nodes.find(handle('file 5')) ?? expect.fail();
    nodes.setHiddenName(id, { directory: root, name: 'x' });
    // Killed after the node was removed and before its hidden name was.
    const chunk = memory.chunks[0] ?? expect.fail();
    chunk.setUint32((id - 2) * record.size + record.owner, 0, true);
    const next = createNodeTable(journal.open());
    expect(next.size).toBe(fileCount - 1);
    expect(
      createNodeTable(journal.open())
        .openMount(0, root)
        .find(handle(`file ${fileCount - 1}`)),
    ).toBeDefined();
  });

  test('behaves like a model under random operations and restarts', () => {
    const step = fc.oneof(
      fc.record({ do: fc.constant('lookup' as const), key: fc.nat(20) }),
      fc.record({ do: fc.constant('forget' as const), key: fc.nat(20), count: fc.integer({ min: 1, max: 3 }) }),
      fc.record({ do: fc.constant('restart' as const) }),
    );
    fc.assert(
      fc.property(fc.array(step, { maxLength: 60 }), (steps) => {
        using journal = keepJournal();
        let nodes = createNodeTable(journal.open()).openMount(0, root);
        const model = new Map<number, { id: number; lookups: number }>();
        for (const one of steps) {
          if (one.do === 'restart') nodes = createNodeTable(journal.open()).openMount(0, root);
          else if (one.do === 'lookup') {
            const { id } = nodes.addLookup(handle(`h${one.key}`));
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
