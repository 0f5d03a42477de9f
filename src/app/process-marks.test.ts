import { cpSync, mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import type { Records } from '#core/ports.ts';
import { openRecords } from '#records/sqlite.ts';
import { takeProcessMarks } from './process-marks.ts';
import { stateFolderId } from './state-folder.ts';

function newRecords(): Records {
  const folder = mkdtempSync(join(tmpdir(), 'stowage-marks-'));
  const records = openRecords(join(folder, 'state.db'));
  onTestFinished(() => {
    records.close();
    rmSync(folder, { recursive: true, force: true });
  });
  return records;
}

test('each process has a mark of its own, and knows earlier processes of its state folder to be dead', () => {
  const records = newRecords();
  const first = takeProcessMarks(records, 'folder-1');
  const second = takeProcessMarks(records, 'folder-1');
  const third = takeProcessMarks(records, 'folder-1');
  expect(first.dead).toEqual([]);
  expect(second.dead).toEqual([first.own]);
  expect(third.dead).toEqual([second.own, first.own]);
  expect(new Set([first.own, second.own, third.own]).size).toBe(3);
});

test('ignores marks recorded in another folder, which may belong to a live process', () => {
  const records = newRecords();
  takeProcessMarks(records, 'folder-1');
  expect(takeProcessMarks(records, 'folder-2').dead).toEqual([]);
  expect(takeProcessMarks(records, undefined).dead).toEqual([]);
});

test('a copy of a state folder has another id; the same folder keeps its id', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'stowage-marks-'));
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
  const [one, copy] = [join(folder, 'one'), join(folder, 'copy')];
  mkdirSync(one);
  cpSync(one, copy, { recursive: true });
  expect(await stateFolderId(one)).toMatch(/^\S+ \d+:\d+$/);
  expect(await stateFolderId(one)).toBe(await stateFolderId(one));
  expect(await stateFolderId(copy)).not.toBe(await stateFolderId(one));
  expect(await stateFolderId(join(folder, 'missing'))).toBeUndefined();
});

test('ignores marks that it cannot read', () => {
  const records = newRecords();
  for (const text of ['', 'no', '[]', '{"folder":"folder-1"}', '{"folder":"folder-1","marks":["x",1,-5,1e12]}']) {
    records.settings.set('process marks', text);
    expect(takeProcessMarks(records, 'folder-1').dead).toEqual([]);
  }
});
