import { setImmediate } from 'node:timers/promises';
import { expect, test, vi } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { readProcess } from './read-process.ts';

test('limits the number of pending reads, and reads again when they end', async () => {
  const realClock = systemClock();
  const clock = { ...realClock, after: (_ms: number, then: () => void) => realClock.after(1, then) };
  const pendingRead = Promise.withResolvers<string>();
  let pendingReads = 0;
  for (let pid = 0; pid < 100; pid++) {
    const read = (): Promise<string> => {
      pendingReads++;
      return pendingRead.promise;
    };
    expect(await readProcess(`/proc/${pid}`, read, clock)).toBe(undefined);
  }
  expect(pendingReads).toBe(8);
  pendingRead.resolve('');
  await setImmediate();
  for (const pid of [0, 99]) expect(await readProcess(`/proc/${pid}`, async () => 'well', realClock)).toBe('well');
});

test.each([
  ['has ended', 'ESRCH', 0],
  ['may not be read', 'EACCES', 100],
])('a process that %s gives no answer and does not count as stuck', async (_what, code, times) => {
  const failRead = (): Promise<string> => Promise.reject(Object.assign(new Error(code), { code }));
  const onUnknown = vi.fn();
  for (let pid = 0; pid < 100; pid++)
    expect(await readProcess(`/proc/${pid}`, failRead, systemClock(), onUnknown)).toBe(undefined);
  expect(onUnknown).toHaveBeenCalledTimes(times);
  expect(await readProcess('/proc/1', async () => 'well', systemClock())).toBe('well');
});
