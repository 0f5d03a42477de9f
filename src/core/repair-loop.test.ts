import { expect, test } from 'vitest';
import { scope } from '#testing/contracts/store.ts';
import { createFakeClock } from '#testing/fakes/clock.ts';
import type { VolumeId } from './model.ts';
import { createRepairLoop } from './repair-loop.ts';

function mounts() {
  const clock = createFakeClock();
  const all = { dead: true, throws: false, at: [] as number[], meanwhile: (): void => undefined };
  const repair = async (): Promise<readonly VolumeId[]> => {
    all.at.push(clock.elapsed() / 1_000);
    all.meanwhile();
    if (all.throws) throw new Error('no');
    return all.dead ? ['a' as VolumeId] : [];
  };
  const repairing = createRepairLoop({ repair }, clock, scope);
  const pass = async (seconds: number): Promise<void> => {
    for (let second = 0; second < seconds; second++) {
      clock.advance(1_000);
      await new Promise((resolve) => setImmediate(resolve));
    }
  };
  return { all, repairing, pass };
}

test('retries a failed repair with increasing pauses until it succeeds', async () => {
  const { all, repairing, pass } = mounts();
  await repairing.trigger();
  await pass(10);
  all.throws = true;
  await pass(110);
  expect(all.at).toEqual([0, 1, 3, 7, 15, 31, 61, 91]);
  all.throws = all.dead = false;
  await pass(200);
  expect(all.at.slice(8)).toEqual([121]);
});

test('a later trigger does not wait for the next retry, and disposing cancels the retry', async () => {
  const { all, repairing, pass } = mounts();
  await repairing.trigger();
  await pass(9);
  expect(all.at).toEqual([0, 1, 3, 7]);
  await repairing.trigger();
  expect(all.at).toEqual([0, 1, 3, 7, 9]);
  repairing[Symbol.dispose]();
  await pass(100);
  await repairing.trigger();
  expect(all.at).toEqual([0, 1, 3, 7, 9]);
});

test.each([
  ['and fails', true],
  ['and seems done', false],
])('pauses after a repair that itself causes a trigger, %s', async (_, dead) => {
  const { all, repairing, pass } = mounts();
  all.dead = dead;
  all.meanwhile = () => void repairing.trigger();
  await repairing.trigger();
  // Triggers again right after the repair.
  await repairing.trigger();
  await pass(100);
  expect(all.at).toEqual([0, 1, 3, 7, 15, 31, 61, 91]);
  all.dead = false;
  all.meanwhile = () => undefined;
  await pass(100);
  expect(all.at.slice(8)).toEqual([121]);
  await repairing.trigger();
  expect(all.at.slice(9)).toEqual([191 + 9]);
});
