import { expect, test } from 'vitest';
import { type Facts, type Log, silentLog } from '#base/log.ts';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { createDataLossLog } from './data-loss-log.ts';

test('the data loss log names each file once, a limited number per minute, and summarizes the rest in one line', () => {
  const clock = createFakeClock();
  const lines: Facts[] = [];
  const reports: string[] = [];
  const log: Log = { ...silentLog(), error: (message, facts) => void lines.push({ message, ...facts }) };
  const reportLoss = createDataLossLog({ clock, log, mount: 'm', report: (text) => void reports.push(text) });
  const loss = (id: number) => ({ id, fileId: BigInt(1000 + id), code: 'ENOSPC' as const, bytes: 10 });
  const logLine = (id: number) => ({
    message: 'acknowledged data were lost',
    mount: 'm',
    file: `${1000 + id}`,
    error: 'ENOSPC',
    bytes: 10,
  });
  for (let id = 0; id < 25; id++) for (let i = 0; i < 2; i++) reportLoss(loss(id));
  expect(lines.splice(0)).toEqual(Array.from({ length: 20 }, (_, id) => logLine(id)));
  clock.advance(60_000);
  expect(lines.splice(0)).toEqual([
    { message: 'more acknowledged data were lost', mount: 'm', writes: 30, bytes: 300 },
  ]);
  reportLoss({ ...loss(24), fileId: undefined });
  clock.advance(60_000);
  expect(lines).toEqual([{ ...logLine(24), file: undefined }]);
  expect(reports).toEqual(
    ['00:00:00', '00:01:00'].map(
      (time) => `2026-01-01T${time}.000Z: acknowledged data of m were lost (ENOSPC); the log names the files`,
    ),
  );
});
