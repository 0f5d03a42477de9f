import { expect, test } from 'vitest';
import { keepJournal } from '#testing/journal.ts';
import { maxMounts } from './layout.ts';
import { createMountRows } from './mounts.ts';

const handle = (text: string): Buffer => Buffer.from(text);

test('a successor knows the options negotiated with the kernel and the root', () => {
  using journal = keepJournal();
  const rows = createMountRows(journal.open());
  const one = rows.getOrCreate('sv1-one');
  const other = rows.getOrCreate('sv1-other');
  expect(rows.getOrCreate('sv1-one')).toEqual({
    index: one.index,
    id: 'sv1-one',
    root: undefined,
    initResult: undefined,
  });
  rows.setRoot(other.index, handle('the root'));
  rows.setInitResult(other.index, { minor: 45, flags: ['asyncRead', 'initExt', 'hasResend'] });
  const next = createMountRows(journal.open());
  expect(next.getOrCreate('sv1-other')).toEqual({
    index: other.index,
    id: 'sv1-other',
    root: handle('the root'),
    initResult: { minor: 45, flags: ['asyncRead', 'initExt', 'hasResend'] },
  });
  next.remove(other.index);
  expect(next.all().map(({ id }) => id)).toEqual(['sv1-one']);
  expect(next.getOrCreate('sv1-new')).toMatchObject({ index: other.index, root: undefined, initResult: undefined });
});

test('the number of mounts and the length of their ids are limited', () => {
  using journal = keepJournal();
  const rows = createMountRows(journal.open());
  expect(() => rows.getOrCreate('x'.repeat(73))).toThrow('at most 72 bytes');
  for (let i = 0; i < maxMounts; i++) rows.getOrCreate(`${i}`);
  expect(() => rows.getOrCreate('one more')).toThrow('at most 1024 mounts');
});

test("a successor reads a mount's growth of its volume; the next mount in the row starts without growth", () => {
  using journal = keepJournal();
  const rows = createMountRows(journal.open());
  const [one, other] = [rows.getOrCreate('one'), rows.getOrCreate('other')];
  expect(rows.storedGrowth(one.index).read()).toEqual({ epoch: 0, growth: 0 });
  rows.storedGrowth(one.index).write(3, -5 * 2 ** 40);
  rows.storedGrowth(other.index).write(2 ** 40, 2 ** 53 - 1);
  const next = createMountRows(journal.open());
  expect(next.storedGrowth(one.index).read()).toEqual({ epoch: 3, growth: -5 * 2 ** 40 });
  expect(next.storedGrowth(other.index).read()).toEqual({ epoch: 2 ** 40, growth: 2 ** 53 - 1 });
  expect(next.all().map(({ id }) => id)).toEqual(['one', 'other']);
  next.remove(one.index);
  expect(next.storedGrowth(next.getOrCreate('new').index).read()).toEqual({ epoch: 0, growth: 0 });
});
