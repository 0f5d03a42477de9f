import { closeSync } from 'node:fs';
import { expect, test } from 'vitest';
import { createJournal, openJournal } from './memory.ts';
import { createMountRows } from './mounts.ts';

test('a successor knows what a mount has added to its volume; the next mount in the row begins with nothing', () => {
  const fd = createJournal(4);
  using memory = openJournal(fd);
  const rows = createMountRows(memory);
  const [one, other] = [rows.of('one'), rows.of('other')];
  expect(rows.growth(one.index).read()).toEqual({ epoch: 0, growth: 0 });
  rows.growth(one.index).write(3, -5 * 2 ** 40);
  rows.growth(other.index).write(2 ** 40, 2 ** 53 - 1);
  using again = openJournal(fd);
  const next = createMountRows(again);
  expect(next.growth(one.index).read()).toEqual({ epoch: 3, growth: -5 * 2 ** 40 });
  expect(next.growth(other.index).read()).toEqual({ epoch: 2 ** 40, growth: 2 ** 53 - 1 });
  expect(next.all().map(({ id }) => id)).toEqual(['one', 'other']);
  next.remove(one.index);
  expect(next.growth(next.of('new').index).read()).toEqual({ epoch: 0, growth: 0 });
  closeSync(fd);
});
