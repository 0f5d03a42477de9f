import { readFileSync } from 'node:fs';
import { expect, onTestFinished, test, vi } from 'vitest';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { collectGarbage } from '#testing/memory.ts';
import { releaseMemoryWhenIdle, thisProcess } from './memory-release.ts';

function aProcess() {
  const clock = createFakeClock();
  const it = { cpu: 0, collected: 0 };
  const own = {
    cpuMs: () => it.cpu,
    releaseMemory: () => {
      it.collected++;
      it.cpu += 100;
    },
  };
  /** Advances by ten seconds with this much CPU time. */
  const pass = (workedMs: number): number => {
    it.cpu += workedMs;
    clock.advance(10_000);
    return it.collected;
  };
  return { clock, own, pass };
}

test('returns memory once after a burst of work', () => {
  const { clock, own, pass } = aProcess();
  using _ = releaseMemoryWhenIdle(clock, own);
  expect([pass(9_000), pass(700), pass(50), pass(50), pass(50)]).toEqual([0, 0, 1, 1, 1]);
  expect([pass(2_000), pass(10)]).toEqual([1, 2]);
});

test('does not collect garbage often in a process with little steady work', () => {
  const { clock, own, pass } = aProcess();
  using _ = releaseMemoryWhenIdle(clock, own);
  expect(Array.from({ length: 24 }, () => pass(40))).toEqual(Array(24).fill(1));
});

test('returns the memory of the start', () => {
  const { clock, own, pass } = aProcess();
  using _ = releaseMemoryWhenIdle(clock, own);
  expect([pass(700), pass(100), pass(100)]).toEqual([0, 1, 1]);
});

test('does nothing after disposal', () => {
  const { clock, own, pass } = aProcess();
  releaseMemoryWhenIdle(clock, own)[Symbol.dispose]();
  expect([pass(9_000), pass(0)]).toEqual([0, 0]);
});

test('returns freed memory between blocks that are still in use', () => {
  // Each block is too small for pages of its own, and together they are much larger than anything else in this process.
  const pieces = Array.from({ length: 2_000 }, () => Buffer.allocUnsafeSlow(32 * 1024).fill(1));
  const kept = pieces.filter((_, i) => i % 100 === 99);
  pieces.length = 0;
  // Started as by bin/stowage. releaseMemory itself must collect the garbage: after another collection (gc() alone)
  // V8 frees it later, on another thread.
  vi.stubGlobal('gc', collectGarbage);
  onTestFinished(() => void vi.unstubAllGlobals());
  const before = anonymousMegabytes();
  thisProcess().releaseMemory();
  expect(before - anonymousMegabytes()).toBeGreaterThan(30);
  expect(kept).toHaveLength(20);
});

function anonymousMegabytes(): number {
  const status = readFileSync('/proc/self/status', 'utf8');
  return Number(/^RssAnon:\s+(\d+) kB$/m.exec(status)?.[1]) / 1024;
}
