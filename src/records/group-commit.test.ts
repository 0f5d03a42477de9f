import { existsSync, mkdtempSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, onTestFinished, test } from 'vitest';
import { createGroupCommit } from './group-commit.ts';
import { openRecords } from './sqlite.ts';

const answer = { fingerprint: '', status: 200, body: 'x'.repeat(100), at: 0 };

function opened() {
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
    const { records } = opened();
    await records.groupCommit(() => records.idempotentResponses.put('a', answer));
    expect(records.idempotentResponses.get('a')).toMatchObject({ status: 200 });
  });

  test('is a single commit for all writes of one turn of the event loop', async () => {
    const { records, logBytes } = opened();
    const before = logBytes();
    await Promise.all(
      Array.from({ length: 50 }, (_, i) => records.groupCommit(() => records.idempotentResponses.put(`a${i}`, answer))),
    );
    const together = logBytes() - before;
    for (let i = 0; i < 50; i++) records.idempotentResponses.put(`b${i}`, answer);
    expect(together).toBeLessThan((logBytes() - before - together) / 4);
    expect(records.idempotentResponses.get('a49')).toBeDefined();
  });

  test('lets each write succeed or fail by itself', async () => {
    const { records } = opened();
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
    const { records } = opened();
    const seen: number[] = [];
    const later = Promise.withResolvers<void>();
    const first = records.groupCommit(() => {
      seen.push(1);
      void records.groupCommit(() => seen.push(3)).then(later.resolve);
    });
    await Promise.all([first, records.groupCommit(() => seen.push(2))]);
    await later.promise;
    expect(seen).toEqual([1, 2, 3]);
  });

  test('fails all writes if it was rolled back in the middle', async () => {
    const full = new Error('disk full');
    let isOpen = false;
    const done: string[] = [];
    const transaction = <T>(work: () => T): T => {
      const isOuter = !isOpen;
      isOpen = true;
      const result = work();
      if (isOuter) isOpen = false;
      return result;
    };
    const together = createGroupCommit(transaction, () => isOpen);
    const all = await Promise.allSettled([
      together(() => done.push('first')),
      together(() => {
        isOpen = false;
        throw full;
      }),
      together(() => done.push('third')),
    ]);
    expect(all).toEqual(Array.from({ length: 3 }, () => ({ status: 'rejected', reason: full })));
    expect(done).toEqual(['first']);
  });
});
