import { expect, test } from 'vitest';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { giveBackWhenIdle } from './giving-back.ts';

function aProcess() {
  const clock = createFakeClock();
  const it = { cpu: 0, collected: 0 };
  const own = {
    cpuMs: () => it.cpu,
    collect: () => {
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
  expect(Array.from({ length: 24 }, () => pass(40))).toEqual(Array(24).fill(0));
});

test('nothing happens after its end, nor where nobody can', () => {
  const { clock, own, pass } = aProcess();
  giveBackWhenIdle(clock, own)[Symbol.dispose]();
  using _ = giveBackWhenIdle(clock, { ...own, collect: undefined });
  expect([pass(9_000), pass(0)]).toEqual([0, 0]);
});
