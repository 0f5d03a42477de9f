import { expect, test } from 'vitest';
import { unlessAborted } from '#keeper/unless-aborted.ts';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { createAnswers } from './answers.ts';

/** A keeper that is asked, and answers or not. */
function keeper() {
  const clock = createFakeClock();
  const said = { answers: true, asked: 0, hung: 0 };
  const answers = createAnswers({
    clock,
    status: async (signal) => {
      said.asked++;
      if (!said.answers) await unlessAborted(new Promise(() => undefined), signal);
    },
    hangs: () => void said.hung++,
  });
  const passes = async (ms: number): Promise<void> => {
    clock.advance(ms);
    await new Promise((resolve) => setImmediate(resolve));
  };
  return { said, answers, passes };
}

test('who answers is asked now and then, and left alone', async () => {
  const { said, answers, passes } = keeper();
  for (let round = 1; round <= 5; round++) {
    await passes(10_000);
    expect(said.asked).toBe(round);
  }
  expect([said.hung, answers.isSilent]).toEqual([0, false]);
  answers[Symbol.dispose]();
  await passes(60_000);
  expect(said.asked).toBe(5);
});

test('two in a row without an answer are the end, and not sooner', async () => {
  const { said, answers, passes } = keeper();
  said.answers = false;
  answers.ask();
  await passes(4_999);
  expect([answers.isSilent, said.hung]).toEqual([false, 0]);
  await passes(1);
  expect([answers.isSilent, said.hung]).toEqual([true, 0]);
  await passes(4_999);
  expect(said.hung).toBe(0);
  await passes(1);
  expect(said.hung).toBe(1);
  // Whoever could not end it is not told again and again.
  await passes(20_000);
  await passes(5_000);
  expect(said.hung).toBe(1);
});

test('one that was slow once is not counted when it is slow again later', async () => {
  const { said, answers, passes } = keeper();
  for (let round = 1; round <= 3; round++) {
    said.answers = false;
    await passes(10_000);
    said.answers = true;
    await passes(5_000);
    expect([answers.isSilent, said.hung]).toEqual([false, 0]);
  }
});
