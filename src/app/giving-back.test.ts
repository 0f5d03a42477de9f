import { readFileSync } from 'node:fs';
import { expect, onTestFinished, test, vi } from 'vitest';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { collect } from '#testing/memory.ts';
import { giveBackWhenIdle, thisProcess } from './giving-back.ts';

function aProcess() {
  const clock = createFakeClock();
  const it = { cpu: 0, collected: 0 };
  const own = {
    cpuMs: () => it.cpu,
    giveBack: () => {
      it.collected++;
      it.cpu += 100;
    },
  };
  /** Ten seconds, in which it was worked so much. */
  const pass = (workedMs: number): number => {
    it.cpu += workedMs;
    clock.advance(10_000);
    return it.collected;
  };
  return { clock, own, pass };
}

test('memory is given back once, when a burst of work is over', () => {
  const { clock, own, pass } = aProcess();
  using _ = giveBackWhenIdle(clock, own);
  expect([pass(9_000), pass(700), pass(50), pass(50), pass(50)]).toEqual([0, 0, 1, 1, 1]);
  expect([pass(2_000), pass(10)]).toEqual([1, 2]);
});

test('a process that does little all the time is left alone for long', () => {
  const { clock, own, pass } = aProcess();
  using _ = giveBackWhenIdle(clock, own);
  expect(Array.from({ length: 24 }, () => pass(40))).toEqual(Array(24).fill(1));
});

test('what its start needed is given back too', () => {
  const { clock, own, pass } = aProcess();
  using _ = giveBackWhenIdle(clock, own);
  expect([pass(700), pass(100), pass(100)]).toEqual([0, 1, 1]);
});

test('nothing happens after its end', () => {
  const { clock, own, pass } = aProcess();
  giveBackWhenIdle(clock, own)[Symbol.dispose]();
  expect([pass(9_000), pass(0)]).toEqual([0, 0]);
});

test('what was freed between things that are still used is given back too', () => {
  // Too small to have pages of their own each, and together much more than anything else here makes or frees.
  const pieces = Array.from({ length: 2_000 }, () => Buffer.allocUnsafeSlow(32 * 1024).fill(1));
  const kept = pieces.filter((_, i) => i % 100 === 99);
  pieces.length = 0;
  // As bin/stowage starts a process. Looking for what is no longer used is a part of giving it back: whoever has looked
  // before in another way (gc() alone) frees it on another thread, at some time.
  vi.stubGlobal('gc', collect);
  onTestFinished(() => void vi.unstubAllGlobals());
  const before = anonymousMegabytes();
  thisProcess().giveBack();
  expect(before - anonymousMegabytes()).toBeGreaterThan(30);
  expect(kept).toHaveLength(20);
});

function anonymousMegabytes(): number {
  const status = readFileSync('/proc/self/status', 'utf8');
  return Number(/^RssAnon:\s+(\d+) kB$/m.exec(status)?.[1]) / 1024;
}
