import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { collectingLog } from '#testing/core-calls.ts';
import { createKeepers } from './keepers.ts';

test('marks of stopped keeper containers mean that the engine shuts down, if they are newer than this process', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'stowage-marks-'));
  onTestFinished(() => rm(folder, { recursive: true }));
  const markFile = (keeper: string): string => join(folder, keeper, 'ending');
  for (const keeper of ['before', 'now']) await mkdir(join(folder, keeper));
  await writeFile(markFile('before'), '');
  const noop = (): void => undefined;
  await using keepers = createKeepers({
    clock: systemClock(),
    log: collectingLog(),
    folder,
    version: '1',
    onMountsLost: noop,
    onAbandoned: noop,
  });
  expect(keepers.areEnding()).toBe(false);
  await writeFile(markFile('now'), '');
  expect(keepers.areEnding()).toBe(true);
  await rm(markFile('now'));
  expect(keepers.areEnding()).toBe(false);
  // The keeper restarted, which removed the mark, and was stopped again.
  await rm(markFile('before'));
  await writeFile(markFile('before'), '');
  expect(keepers.areEnding()).toBe(true);
});
