import { existsSync, mkdtempSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, onTestFinished, test } from 'vitest';
import { createGroupCommit } from './group-commit.ts';
import { openRecords } from './sqlite.ts';

const answer = { fingerprint: '', status: 200, body: 'x'.repeat(100), at: 0 };

function openGroupCommit() {
  const folder = mkdtempSync(join(tmpdir(), 'stowage-together-'));
  onTestFinished(() => rmSync(folder, { recursive: true }));
  const path = join(folder, 'state.db');
  const records = openRecords(path);
  onTestFinished(() => records.close());
  const log = `${path}-wal`;
  return { records, logBytes: () => (existsSync(log) ? statSync(log).size : 0) };
}

describe('a group commit', () => {
  test('is durable when its promise resolves', async () => {
    const { records } = openGroupCommit();
    await records.groupCommit(() => records.idempotentResponses.put('a', answer));
    expect(records.idempotentResponses.get('a')).toMatchObject({ status: 200 });
  });

  test('is a single commit for all writes of one turn of the event loop', async () => {
    const { records, logBytes } = openGroupCommit();
    const logBytesBefore = logBytes();
    await Promise.all(
      Array.from({ length: 50 }, (_, i) => records.groupCommit(() => records.idempotentResponses.put(`a${i}`, answer))),
    );
    const together = logBytes() - logBytesBefore;
    for (let i = 0; i < 50; i++) records.idempotentResponses.put(`b${i}`, answer);
    expect(together).toBeLessThan((logBytes() - logBytesBefore - together) / 4);
    expect(records.idempotentResponses.get('a49')).toBeDefined();
  });

  test('lets each write succeed or fail by itself', async () => {
    const { records } = openGroupCommit();
    const why = new Error('not this one');
    const [first, second, third] = await Promise.allSettled([
      records.groupCommit(() => records.idempotentResponses.put('a', answer)),
      records.groupCommit(() => {
        records.idempotentResponses.put('b', answer);
        throw why;
      }),
      records.groupCommit(() => records.idempotentResponses.put('c', answer)),
    ]);
    expect([first?.status, second, third?.status]).toEqual([
      'fulfilled',
      { status: 'rejected', reason: why },
      'fulfilled',
    ]);
    expect(['a', 'b', 'c'].map((key) => records.idempotentResponses.get(key) !== undefined)).toEqual([
      true,
      false,
      true,
    ]);
  });

  test('keeps the order of writes, and writes later requests afterwards', async () => {
    const { records } = openGroupCommit();
    const order: number[] = [];
    const lastWrite = Promise.withResolvers<void>();
    const first = records.groupCommit(() => {
      order.push(1);
      void records.groupCommit(() => order.push(3)).then(lastWrite.resolve);
    });
    await Promise.all([first, records.groupCommit(() => order.push(2))]);
    await lastWrite.promise;
    expect(order).toEqual([1, 2, 3]);
  });

  test('fails all writes if it was rolled back in the middle', async () => {
    const full = new Error('disk full');
    let isOpen = false;
    const calls: string[] = [];
    const transaction = <T>(work: () => T): T => {
      const isOuter = !isOpen;
      isOpen = true;
      const result = work();
      if (isOuter) isOpen = false;
      return result;
    };
    const together = createGroupCommit(transaction, () => isOpen);
    const results = await Promise.allSettled([
      together(() => calls.push('first')),
      together(() => {
        isOpen = false;
        throw full;
      }),
      together(() => calls.push('third')),
    ]);
    expect(results).toEqual(Array.from({ length: 3 }, () => ({ status: 'rejected', reason: full })));
    expect(calls).toEqual(['first']);
  });
});
