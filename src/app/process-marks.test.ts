import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import type { Records } from '#core/ports.ts';
import { openRecords } from '#records/sqlite.ts';
import { takeProcessMarks } from './process-marks.ts';

function newRecords(): Records {
  const folder = mkdtempSync(join(tmpdir(), 'stowage-marks-'));
  const records = openRecords(join(folder, 'state.db'));
  onTestFinished(() => {
    records.close();
    rmSync(folder, { recursive: true, force: true });
  });
  return records;
}

test('each process has a mark of its own, and knows those before it on this machine to be dead', () => {
  const records = newRecords();
  const first = takeProcessMarks(records, 'boot-1');
  const second = takeProcessMarks(records, 'boot-1');
  const third = takeProcessMarks(records, 'boot-1');
  expect(first.dead).toEqual([]);
  expect(second.dead).toEqual([first.own]);
  expect(third.dead).toEqual([second.own, first.own]);
  expect(new Set([first.own, second.own, third.own]).size).toBe(3);
});

test('trusts no mark from before the machine started: the state folder may be a copy of that of a machine that lives', () => {
  const records = newRecords();
  takeProcessMarks(records, 'boot-1');
  expect(takeProcessMarks(records, 'boot-2').dead).toEqual([]);
  expect(takeProcessMarks(records, undefined).dead).toEqual([]);
});

test('ignores what it cannot read', () => {
  const records = newRecords();
  for (const text of ['', 'no', '[]', '{"boot":"boot-1"}', '{"boot":"boot-1","marks":["x",1,-5,1e12]}']) {
    records.settings.set('process marks', text);
    expect(takeProcessMarks(records, 'boot-1').dead).toEqual([]);
  }
});
