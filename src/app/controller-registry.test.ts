import { expect, test } from 'vitest';
import {
  type ControllerProcess,
  type ControllerRegistry,
  readRegistry,
  withDeaths,
  withProcess,
  writeRegistry,
} from './controller-registry.ts';

const nothing: ControllerRegistry = { processes: [], dead: [] };
const process = (mark: number): ControllerProcess => ({
  mark,
  kernel: { scope: 'boot-1 pid:[4026531836]', pid: 1, startTime: '4711' },
  pod: { name: `stowage-controller-${mark}`, uid: `uid-${mark}` },
});
const all = async (): Promise<boolean> => true;

test('reads back the processes that it wrote', () => {
  const registry = { processes: [process(20), { mark: 30 }], dead: [10, 11] };
  expect(readRegistry(writeRegistry(registry))).toEqual(registry);
});

test('an unreadable text counts as empty', () => {
  const large = JSON.stringify({ version: 1, processes: [], dead: [10], more: 'x'.repeat(70_000) });
  const texts = ['', 'no', '7', 'null', '[]', '{}', '{"dead":[10]}', '{"version":2,"dead":[10]}', large];
  for (const text of [undefined, ...texts]) expect(readRegistry(text)).toEqual(nothing);
  expect(readRegistry('{"version":1,"processes":7,"dead":{"0":10}}')).toEqual(nothing);
});

test('ignores invalid parts of an entry', () => {
  const kernel = { scope: 'boot-1', pid: 7, startTime: '1' };
  const read = (entry: object): readonly ControllerProcess[] =>
    readRegistry(JSON.stringify({ version: 1, processes: [entry], dead: [1, -5, '20', 1e12, null] })).processes;
  for (const pid of [0, -1, 1.5, '7', null])
    expect(read({ mark: 20, kernel: { ...kernel, pid } })).toEqual([{ mark: 20 }]);
  for (const scope of ['', 7, 'x'.repeat(300)])
    expect(read({ mark: 20, kernel: { ...kernel, scope } })).toEqual([{ mark: 20 }]);
  expect(read({ mark: 20, kernel: 'x', pod: { name: 'a' } })).toEqual([{ mark: 20 }]);
  expect(read({ mark: 20, pod: { name: 'a', uid: '' } })).toEqual([{ mark: 20 }]);
  for (const mark of [1, '20', undefined]) expect(read({ mark, kernel })).toEqual([]);
});

test('adding a process twice adds it once', () => {
  const once = withProcess(nothing, process(20));
  expect(withProcess(once, process(20))).toEqual(once);
  expect(withProcess(once, process(30)).processes.map(({ mark }) => mark)).toEqual([30, 20]);
});

test('dead processes stay dead, and the others stay', async () => {
  const before = { processes: [process(30), process(20)], dead: [10] };
  const after = await withDeaths(before, async ({ mark }) => mark === 20);
  expect(after).toEqual({ processes: [process(30)], dead: [20, 10] });
  expect(await withDeaths(after, async () => false)).toEqual(after);
});

test('drops the oldest entries, so that the Lease stays small', async () => {
  let registry = nothing;
  for (let mark = 100; mark < 300; mark++) {
    registry = readRegistry(writeRegistry(withProcess(registry, process(mark))));
    // The death of every second process is never proven.
    registry = await withDeaths(registry, async (it) => it.mark % 2 === 0);
    expect(writeRegistry(registry).length).toBeLessThan(4_096);
  }
  const { processes, dead } = readRegistry(writeRegistry(registry));
  expect(processes.map(({ mark }) => mark)).toEqual(Array.from({ length: 16 }, (_, at) => 299 - 2 * at));
  expect(dead).toEqual(Array.from({ length: 64 }, (_, at) => 298 - 2 * at));
});

test('many dead processes do not push out one that may live', async () => {
  let registry = withProcess(nothing, process(20));
  for (let mark = 100; mark < 300; mark++) {
    const added = withProcess(registry, process(mark));
    registry = readRegistry(writeRegistry(await withDeaths(added, async (it) => it.mark !== 20)));
  }
  expect(registry.processes).toEqual([process(20)]);
  expect((await withDeaths(registry, all)).dead[0]).toBe(20);
});
