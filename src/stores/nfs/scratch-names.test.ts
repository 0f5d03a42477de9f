import { existsSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { createNfsStoreKind } from '#stores/nfs/kind.ts';
import { scope } from '#testing/contracts/store.ts';
import { connectToDisk } from '#testing/fakes/nfs-on-disk.ts';
import { quickFolder } from '#testing/nfs-contents.ts';
import { openNfs } from '#testing/nfs-store.ts';
import { shortWaitClock } from '#testing/nfs-tap.ts';

const hour = 3_600_000;

test('a host removes leftover files of other hosts in tmp after an hour, and no newer ones', async () => {
  const folder = quickFolder('scratches');
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
  const clock = shortWaitClock(systemClock());
  const open = (instance: string) =>
    openNfs({ uri: 'nfs://nowhere/export', instance, kind: createNfsStoreKind(clock, connectToDisk(folder)) });
  const tmp = join(folder, '.stowage', 'tmp');
  const store = await open('one');
  const oldLeftover = join(tmp, '0123456789ab-000012670badcafe-1');
  writeFileSync(oldLeftover, 'left behind');
  await store.housekeeping.sweep(scope);
  clock.pass(hour - 60_000);
  await store.housekeeping.reclaim(scope);
  expect(existsSync(oldLeftover)).toBe(true);
  const newerFile = join(tmp, '0123456789ab-000012670badcafe-2');
  writeFileSync(newerFile, 'at work');
  clock.pass(61_000);
  await store.housekeeping.reclaim(scope);
  expect(readdirSync(tmp)).toEqual(['0123456789ab-000012670badcafe-2']);
  clock.pass(hour + 1);
  await store.housekeeping.reclaim(scope);
  expect(readdirSync(tmp)).toEqual([]);
  await store.close();
});
