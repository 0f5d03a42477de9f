import { expect, test, vi } from 'vitest';
import { silentLog } from '#base/log.ts';
import { scope } from '#testing/contracts/store.ts';
import { collectingLog } from '#testing/core-calls.ts';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { startCore } from '#testing/start-core.ts';
import { type MaintenanceTask, startMaintenance } from './maintenance.ts';

/** Advances the clock second by second, and lets callbacks run after each second. Takes no real time. */
async function advanceBySeconds(clock: ReturnType<typeof createFakeClock>, seconds: number): Promise<void> {
  for (let second = 0; second < seconds; second++) {
    clock.advance(1_000);
    await new Promise((resolve) => setImmediate(resolve));
  }
}

function taskAt(clock: ReturnType<typeof createFakeClock>, overrides: Partial<MaintenanceTask> = {}) {
  const renewalTimes: number[] = [];
  const task: MaintenanceTask = {
    name: 'renewal',
    everyMs: 30_000,
    deadlineMs: 20_000,
    ...overrides,
    run: async (own) => {
      renewalTimes.push(clock.elapsed() / 1_000);
      await overrides.run?.(own);
    },
  };
  return { at: renewalTimes, task };
}

test('renews use records on time while a hundred dead mounts are repaired, 20 s each', async () => {
  const clock = createFakeClock();
  const repair = taskAt(clock, {
    name: 'repair',
    deadlineMs: 3_600_000,
    run: async ({ signal }) => {
      for (let mount = 0; mount < 100; mount++) await clock.sleep(20_000, signal);
    },
  });
  const renewal = taskAt(clock);
  await using _ = startMaintenance([repair.task, renewal.task], clock, scope);
  await advanceBySeconds(clock, 300);
  expect(renewal.at).toEqual([30, 60, 90, 120, 150, 180, 210, 240, 270, 300]);
  expect(repair.at).toEqual([30]);
  await advanceBySeconds(clock, 1_800);
  // The pass ended after 2,000 s, and the next one begins at its usual time.
  expect(repair.at).toEqual([30, 2_040]);
});

test('core renews use records on time while the repair of mounts does not end', async () => {
  await using server = await startCore();
  const { core } = server;
  const clock = createFakeClock();
  const renewed: number[] = [];
  Object.assign(core.mounts, {
    repair: () => new Promise(() => undefined),
    renewUses: async () => void renewed.push(clock.elapsed() / 1_000),
  });
  await using maintenance = new AsyncDisposableStack();
  maintenance.use(startMaintenance(core.maintenance, clock, scope));
  await advanceBySeconds(clock, 120);
  expect(renewed).toEqual([30, 60, 90, 120]);
  // The repair never ends, so the stop waits until its limit.
  const stopping = maintenance.disposeAsync();
  await advanceBySeconds(clock, 5);
  await stopping;
});

test('ends a pass at its deadline and logs the reason; the next pass starts on time', async () => {
  const clock = createFakeClock();
  const log = collectingLog();
  const slowTask = taskAt(clock, { run: ({ signal }) => clock.sleep(1_000_000, signal) });
  await using _ = startMaintenance([slowTask.task], clock, { ...scope, log });
  await advanceBySeconds(clock, 70);
  expect(slowTask.at).toEqual([30, 60]);
  expect(log.lines).toEqual(['warn maintenance failed {"task":"renewal","why":"no answer within 20000 ms"}']);
});

test('does not start a task again while its pass ignores the abort, and logs that once', async () => {
  const clock = createFakeClock();
  const log = collectingLog();
  const hung = Promise.withResolvers<void>();
  const deaf = taskAt(clock, { run: () => hung.promise });
  const otherTask = taskAt(clock, { name: 'other' });
  await using _ = startMaintenance([deaf.task, otherTask.task], clock, { ...scope, log });
  await advanceBySeconds(clock, 120);
  expect([deaf.at, otherTask.at]).toEqual([[30], [30, 60, 90, 120]]);
  expect(log.lines).toEqual(['info maintenance takes longer than its interval {"task":"renewal","everyMs":30000}']);
  hung.resolve();
  await advanceBySeconds(clock, 30);
  expect(deaf.at).toEqual([30, 150]);
});

test('stops at the signal, and waits a bounded time for running passes', async () => {
  const clock = createFakeClock();
  const stopController = new AbortController();
  const polite = taskAt(clock, { run: ({ signal }) => clock.sleep(1_000_000, signal) });
  const deaf = taskAt(clock, { name: 'deaf', run: () => new Promise(() => undefined) });
  const maintenance = startMaintenance([polite.task, deaf.task], clock, {
    signal: stopController.signal,
    log: silentLog(),
  });
  await advanceBySeconds(clock, 31);
  stopController.abort();
  const onStopped = vi.fn();
  const stopping = Promise.resolve(maintenance[Symbol.asyncDispose]()).then(onStopped);
  await advanceBySeconds(clock, 4);
  expect(onStopped).not.toHaveBeenCalled();
  await advanceBySeconds(clock, 1);
  await stopping;
  await advanceBySeconds(clock, 100);
  expect([polite.at, deaf.at]).toEqual([[30], [30]]);
});
