import { fstatSync, readFileSync, readSync, writeSync } from 'node:fs';
import { expect, test } from 'vitest';
import { heartbeatOffset } from '#keeper/heartbeat.ts';
import { keepJournal, putRequest } from '#testing/journal.ts';
import { head, hiddenNameOwner, line, lossReportedFlag, reservedSlots, slotInUse } from './layout.ts';
import { createMountRows } from './mounts.ts';
import { createNodeTable } from './nodes.ts';
import { createRequests } from './requests.ts';

/**
 * A journal that 0.1 wrote: the offset and the bytes of each row that is not zero. The successor in an upgrade reads it
 * while volumes are mounted, so the file never changes. A new layout needs a new version, and must read this one, too.
 */
const storedRows = readFileSync(new URL('fixtures/version-1.txt', import.meta.url), 'utf8')
  .split('\n')
  .slice(0, -1);

const slots = 3;
const rowBytes = 16;
const readBytes = 1024 * 1024;
const handle = (text: string): Buffer => Buffer.from(text);
const root = handle('the root');

/** The rows that are not zero. */
function* rowsOf(fd: number): Generator<string> {
  const [bytes, zeros] = [Buffer.alloc(readBytes), Buffer.alloc(readBytes)];
  for (let from = 0; from < fstatSync(fd).size; from += readBytes) {
    const length = readSync(fd, bytes, 0, readBytes, from);
    if (bytes.subarray(0, length).equals(zeros.subarray(0, length))) continue;
    for (let offset = 0; offset < length; offset += rowBytes) {
      const row = bytes.subarray(offset, offset + rowBytes);
      if (!row.equals(zeros.subarray(0, rowBytes))) yield `${from + offset} ${row.toString('hex')}`;
    }
  }
}

/** One of each kind. */
function writeOneOfEach(journal: ReturnType<typeof keepJournal>): void {
  const memory = journal.open();
  const rows = createMountRows(memory);
  const [one, other] = [rows.getOrCreate('sv1-one').index, rows.getOrCreate('sv1-other').index];
  rows.setRoot(other, root);
  rows.setInitResult(other, { minor: 45, flags: ['asyncRead', 'initExt', 'hasResend'] });
  rows.storedGrowth(other).write(3, -5 * 2 ** 40);

  const requests = createRequests(memory);
  const read = (number: number, length = 100): number => {
    const slot = requests.arm(one) ?? expect.fail();
    return (requests.take(one, slot, putRequest(slot, number, length)) ?? expect.fail()).place;
  };
  read(1);
  requests.write(read(2), { kind: 'made', seconds: 1_700_000_000, nanoseconds: 999_999_999 });
  const done = read(3);
  requests.write(done, { kind: 'gone', handle: handle('a handle') });
  requests.keepAnswer(done, Buffer.from('the answer'));
  requests.write(read(4), { kind: 'moved', handle: handle('another handle') });
  requests.markInterrupted(read(5));
  // Stored in a cell, answered, and not yet on the server's disk.
  requests.markBehind(read(6, 500));
  // Killed after the kernel wrote the request and before it had a line.
  putRequest(requests.arm(one) ?? expect.fail(), 7, 200);

  const nodes = createNodeTable(memory).openMount(other, root);
  const [file, directory] = [nodes.addLookup(handle('a file')).id, nodes.addLookup(handle('a directory')).id];
  nodes.addLookup(handle('a file'));
  nodes.addOpen(file);
  nodes.setHiddenName(file, { directory: handle('a directory'), name: '.nfs-0001' });
  nodes.setDataLoss(file, 'EDQUOT');
  nodes.setLossReported(file);
  nodes.changeHandle(directory, handle('the same directory'));
}

test('the journal is byte for byte that of 0.1', () => {
  using journal = keepJournal(slots);
  writeOneOfEach(journal);
  expect([`size ${fstatSync(journal.fd).size}`, ...rowsOf(journal.fd)]).toEqual(storedRows);
});

test('fields that only requests in flight and crashes write keep their offsets', () => {
  expect([head.heartbeat, head.stopping, head.suspect]).toEqual([heartbeatOffset, 20, 24]);
  expect(heartbeatOffset).toBe(8);
  const { looked, opened, listed, crashCount, readAt, list } = line;
  expect([looked, opened, listed, crashCount, readAt, list]).toEqual([328, 336, 344, 348, 352, 488]);
  expect([slotInUse, hiddenNameOwner, lossReportedFlag, reservedSlots]).toEqual([
    0x4000_0000, 0xffff_ffff, 0x8000_0000, 2048,
  ]);
});

test('a data path continues from a journal that 0.1 left', () => {
  using journal = keepJournal(slots);
  // Gives the file the same size, including a chunk of nodes.
  writeOneOfEach(journal);
  for (const line of rowsOf(journal.fd))
    writeSync(journal.fd, Buffer.alloc(rowBytes), 0, rowBytes, Number(line.split(' ')[0]));
  for (const line of storedRows.slice(1)) {
    const [at = '', bytes = ''] = line.split(' ');
    writeSync(journal.fd, Buffer.from(bytes, 'hex'), 0, rowBytes, Number(at));
  }
  const memory = journal.open();
  const rows = createMountRows(memory);
  expect(rows.all()).toEqual([
    { index: 0, id: 'sv1-one', root: undefined, initResult: undefined },
    { index: 1, id: 'sv1-other', root, initResult: { minor: 45, flags: ['asyncRead', 'initExt', 'hasResend'] } },
  ]);
  expect(rows.storedGrowth(1).read()).toEqual({ epoch: 3, growth: -5 * 2 ** 40 });

  const requests = createRequests(memory);
  const unfinished = requests.restoreUnfinished();
  expect(
    unfinished.map(({ mount, phase, message, isInterrupted, order }) => [
      message.view.getUint32(8, true),
      message.end,
      mount,
      phase,
      isInterrupted,
      order,
    ]),
  ).toEqual([
    [1, 100, 0, 'taken', false, 0],
    [2, 100, 0, 'sent', false, 0],
    [3, 100, 0, 'done', false, 0],
    [4, 100, 0, 'sent', false, 0],
    [5, 100, 0, 'taken', true, 0],
    [6, 500, 0, 'behind', false, 1],
    [7, 200, 0, 'taken', false, 0],
  ]);
  const [, made, done, moved, , behind] = unfinished.map(({ place }) => place);
  expect(requests.find(made ?? -1)).toEqual({ kind: 'made', seconds: 1_700_000_000, nanoseconds: 999_999_999 });
  expect(requests.find(done ?? -1)).toEqual({ kind: 'gone', handle: handle('a handle') });
  expect(requests.keptAnswer(done ?? -1).toString()).toBe('the answer');
  expect(requests.find(moved ?? -1)).toEqual({ kind: 'moved', handle: handle('another handle') });
  expect(requests.isBehind(behind ?? -1)).toBe(true);
  expect(unfinished[5]?.message.buffer.subarray(16, 500).every((byte) => byte === 6)).toBe(true);

  const nodes = createNodeTable(memory).openMount(1, root);
  const file = nodes.find(handle('a file'));
  expect(file).toEqual({ id: 2, generation: 1, handle: handle('a file'), opens: 1 });
  expect(nodes.hiddenName(2)).toEqual({ directory: handle('a directory'), name: '.nfs-0001' });
  expect([nodes.dataLoss(2), nodes.isLossReported(2)]).toEqual(['EDQUOT', true]);
  expect(nodes.find(handle('the same directory'))?.id).toBe(3);
  nodes.forget(2, 1);
  expect(nodes.find(handle('a file'))?.id).toBe(2);
  nodes.forget(2, 1);
  expect(nodes.find(handle('a file'))).toBeUndefined();
});
