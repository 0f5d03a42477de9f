import { expect, test } from 'vitest';
import { scope } from '#testing/contracts/store.ts';
import { createFakeClock } from '#testing/fakes/clock.ts';
import type { VolumeId } from './model.ts';
import { createRepairLoop } from './repair-loop.ts';

function createFixture() {
  const clock = createFakeClock();
  const mounts = { dead: true, throws: false, repairTimes: [] as number[], onRepair: (): void => undefined };
  const repair = async (): Promise<readonly VolumeId[]> => {
    mounts.repairTimes.push(clock.elapsed() / 1_000);
    mounts.onRepair();
    if (mounts.throws) throw new Error('no');
    return mounts.dead ? ['a' as VolumeId] : [];
  };
  const loop = createRepairLoop({ repair }, clock, scope);
  const advance = async (seconds: number): Promise<void> => {
    for (let second = 0; second < seconds; second++) {
      clock.advance(1_000);
      await new Promise((resolve) => setImmediate(resolve));
    }
  };
  return { all: mounts, repairing: loop, pass: advance };
}

test('retries a failed repair with increasing pauses until it succeeds', async () => {
  const { all, repairing, pass } = createFixture();
  await repairing.trigger();
  await pass(10);
  all.throws = true;
  await pass(110);
  expect(all.repairTimes).toEqual([0, 1, 3, 7, 15, 31, 61, 91]);
  all.throws = all.dead = false;
  await pass(200);
  expect(all.repairTimes.slice(8)).toEqual([121]);
});

test('a later trigger does not wait for the next retry, and disposing cancels the retry', async () => {
  const { all, repairing, pass } = createFixture();
  await repairing.trigger();
  await pass(9);
  expect(all.repairTimes).toEqual([0, 1, 3, 7]);
  await repairing.trigger();
  expect(all.repairTimes).toEqual([0, 1, 3, 7, 9]);
  repairing[Symbol.dispose]();
  await pass(100);
  await repairing.trigger();
  expect(all.repairTimes).toEqual([0, 1, 3, 7, 9]);
});

test.each([
  ['and fails', true],
  ['and seems done', false],
])('pauses after a repair that itself causes a trigger, %s', async (_, dead) => {
  const { all, repairing, pass } = createFixture();
  all.dead = dead;
  all.onRepair = () => void repairing.trigger();
  await repairing.trigger();
  // Triggers again right after the repair.
  await repairing.trigger();
  await pass(100);
  expect(all.repairTimes).toEqual([0, 1, 3, 7, 15, 31, 61, 91]);
  all.dead = false;
  all.onRepair = () => undefined;
  await pass(100);
  expect(all.repairTimes.slice(8)).toEqual([121]);
  await repairing.trigger();
  expect(all.repairTimes.slice(9)).toEqual([191 + 9]);
});
