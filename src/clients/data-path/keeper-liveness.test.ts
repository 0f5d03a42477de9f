import { expect, test } from 'vitest';
import { unlessAborted } from '#base/aborted.ts';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { createKeeperLiveness } from './keeper-liveness.ts';

/** The test decides whether the keeper answers. */
function createFixture() {
  const clock = createFakeClock();
  const fakeKeeper = { answers: true, checks: 0, hung: 0 };
  const liveness = createKeeperLiveness({
    clock,
    status: async (signal) => {
      fakeKeeper.checks++;
      if (!fakeKeeper.answers) await unlessAborted(new Promise(() => undefined), signal);
    },
    onHang: () => void fakeKeeper.hung++,
  });
  const advance = async (ms: number): Promise<void> => {
    clock.advance(ms);
    await new Promise((resolve) => setImmediate(resolve));
  };
  return { said: fakeKeeper, answers: liveness, passes: advance };
}

test('a keeper that answers is checked periodically', async () => {
  const { said, answers, passes } = createFixture();
  for (let round = 1; round <= 5; round++) {
    await passes(10_000);
    expect(said.checks).toBe(round);
  }
  expect([said.hung, answers.isSilent]).toEqual([0, false]);
  answers[Symbol.dispose]();
  await passes(60_000);
  expect(said.checks).toBe(5);
});

test('a keeper hangs after two checks in a row without an answer, and not before', async () => {
  const { said, answers, passes } = createFixture();
  said.answers = false;
  answers.check();
  await passes(4_999);
  expect([answers.isSilent, said.hung]).toEqual([false, 0]);
  await passes(1);
  expect([answers.isSilent, said.hung]).toEqual([true, 0]);
  await passes(4_999);
  expect(said.hung).toBe(0);
  await passes(1);
  expect(said.hung).toBe(1);
  // The callback is not called again while the keeper stays silent.
  await passes(20_000);
  await passes(5_000);
  expect(said.hung).toBe(1);
});

test('the count of unanswered checks restarts after each answer', async () => {
  const { said, answers, passes } = createFixture();
  for (let round = 1; round <= 3; round++) {
    said.answers = false;
    await passes(10_000);
    said.answers = true;
    await passes(5_000);
    expect([answers.isSilent, said.hung]).toEqual([false, 0]);
  }
});
