import { cpSync, existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { beforeEach, expect, onTestFinished, test } from 'vitest';
import { localFiles } from '#stores/local/files.ts';
import { createFakeClock, type FakeClock } from '#testing/fakes/clock.ts';
import { createObservedTime, type ObservedTime } from './observed-time.ts';
import type { StoreRoot } from './store-root.ts';

const minute = 60_000;

let folder: string;
let clock: FakeClock;
let scratchCount = 0;

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'stowage-observed-'));
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
  clock = createFakeClock();
});

/** The observed time as a new process sees it, with the clock of its machine. */
function openObservedTime(
  processClock: FakeClock = clock,
  more: Partial<StoreRoot> = {},
  instance = 'instance-1',
): ObservedTime {
  const storeRoot = {
    files: localFiles,
    context: { instance } as StoreRoot['context'],
    ownPath: (...parts: readonly string[]) => join(folder, ...parts),
    scratchPath: () => join(folder, `scratch-${++scratchCount}`),
    ...more,
  };
  return createObservedTime(storeRoot as StoreRoot, processClock);
}

/** Maintenance observes every 30 s. At most five minutes between two observations count. */
async function passWithObservations(time: ObservedTime, ms: number): Promise<number> {
  for (let remainingMs = ms; remainingMs > 0; remainingMs -= 5 * minute) {
    clock.advance(Math.min(remainingMs, 5 * minute));
    await time.save();
  }
  return await time.now();
}

const observedFile = (): string => join(folder, 'observed', readdirSync(join(folder, 'observed'))[0] ?? '');

test('counts the time between observations, and continues in the next process', async () => {
  const first = openObservedTime();
  expect(await first.save()).toBe(0);
  clock.advance(5 * minute);
  expect(await first.save()).toBe(5 * minute);
  clock.advance(90 * minute);
  const second = openObservedTime();
  expect(await second.save()).toBe(5 * minute);
  clock.advance(minute);
  expect(await second.now()).toBe(6 * minute);
});

test('counts at most five minutes between two observations, however long this process was suspended', async () => {
  const time = openObservedTime();
  await time.save();
  clock.advance(30 * 24 * 60 * minute);
  expect(await time.save()).toBe(5 * minute);
  clock.advance(minute);
  expect(await time.save()).toBe(6 * minute);
  expect(await openObservedTime().now()).toBe(6 * minute);
});

test('does not count the time before an observation of a store that was rolled back to the same file', async () => {
  const time = openObservedTime();
  await time.save();
  await passWithObservations(time, 10 * minute);
  const saved = readFileSync(observedFile());
  // The trash is empty, so no process observes the store. Then the server is rolled back to a snapshot with something in the trash.
  clock.advance(30 * 24 * 60 * minute);
  writeFileSync(observedFile(), saved);
  expect(await time.save()).toBe(15 * minute);
});

test('counts in processes that live for little more than a minute', async () => {
  for (let round = 0; round < 20; round++) {
    const time = openObservedTime();
    await time.save();
    clock.advance(minute);
    await time.save();
  }
  expect(await openObservedTime().now()).toBe(20 * minute);
});

test('does not depend on the time of day', async () => {
  const time = openObservedTime();
  await time.save();
  clock.jump(365 * 24 * 60 * minute);
  expect(await time.save()).toBe(0);
  clock.jump(-1000 * 24 * 60 * minute);
  expect(await time.save()).toBe(0);
});

test('is saved at most once a minute', async () => {
  const time = openObservedTime();
  await time.save();
  clock.advance(minute - 1);
  const before = readFileSync(observedFile(), 'utf8');
  await time.save();
  await time.now();
  expect(readFileSync(observedFile(), 'utf8')).toBe(before);
  clock.advance(1);
  await time.now();
  expect(readFileSync(observedFile(), 'utf8')).toBe(before);
  await time.save();
  expect(readFileSync(observedFile(), 'utf8')).not.toBe(before);
});

test('two processes of one instance together count no faster than one', async () => {
  const machines = [createFakeClock(), createFakeClock()] as const;
  machines[1].advance(1e9);
  const both = machines.map((machine) => openObservedTime(machine));
  let passed = 0;
  for (let round = 0; round < 200; round++) {
    const ms = ((round * 7919) % 5) * 30_000;
    for (const machine of machines) machine.advance(ms);
    passed += ms;
    const values = await Promise.all(both.map((time, i) => ((round + i) % 3 === 0 ? time.now() : time.save())));
    for (const value of values) expect(value).toBeLessThanOrEqual(passed);
  }
  expect(await openObservedTime().now()).toBeGreaterThan(passed / 4);
});

test('goes back if the store is restored from a backup', async () => {
  const time = openObservedTime();
  await time.save();
  await passWithObservations(time, 10 * minute);
  const backup = mkdtempSync(join(tmpdir(), 'stowage-backup-'));
  onTestFinished(() => rmSync(backup, { recursive: true, force: true }));
  cpSync(folder, backup, { recursive: true });
  expect(await passWithObservations(time, 1000 * minute)).toBe(1010 * minute);
  rmSync(join(folder, 'observed'), { recursive: true });
  cpSync(backup, folder, { recursive: true });
  expect(await time.save()).toBe(10 * minute);
  clock.advance(minute);
  expect(await time.save()).toBe(11 * minute);
});

test.each(['', '{"version":1,"elap', 'null', '{"version":2,"elapsed":5,"mark":"x"}', '{"version":1,"elapsed":-5}'])(
  'a file that cannot be read counts from 0: %j',
  async (text) => {
    await openObservedTime().save();
    const file = observedFile();
    writeFileSync(file, text);
    const time = openObservedTime();
    expect(await time.save()).toBe(0);
    clock.advance(minute);
    expect(await time.save()).toBe(minute);
    expect(await openObservedTime().now()).toBe(minute);
  },
);

test('keeps counting in memory while the store is full', async () => {
  const full = (): Promise<never> => Promise.reject(Object.assign(new Error('no room'), { code: 'ENOSPC' }));
  const files = { ...localFiles, writeNew: full };
  const time = openObservedTime(clock, { files });
  await time.save();
  clock.advance(5 * minute);
  expect(await time.save()).toBe(5 * minute);
  expect(existsSync(join(folder, 'observed')) ? readdirSync(join(folder, 'observed')) : []).toEqual([]);
  files.writeNew = localFiles.writeNew as typeof full;
  await time.save();
  expect(await openObservedTime().now()).toBe(5 * minute);
});

test('a failure to save is thrown by save() only, unless the store is full', async () => {
  const files = {
    ...localFiles,
    writeNew: () => Promise.reject(Object.assign(new Error('denied'), { code: 'EACCES' })),
  };
  const time = openObservedTime(clock, { files });
  await expect(time.save()).rejects.toThrow('denied');
  expect(await time.now()).toBe(0);
});

test('each instance has its own count', async () => {
  const one = openObservedTime();
  await one.save();
  clock.advance(minute);
  await one.save();
  expect(await openObservedTime(clock, {}, 'instance-2').save()).toBe(0);
  expect(readdirSync(join(folder, 'observed'))).toHaveLength(2);
});
