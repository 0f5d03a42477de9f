import { statSync, utimesSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { startOwnServer } from '#testing/own-nfs-server.ts';
import { roundNanoseconds, toUtimesSeconds } from './time-rounding.ts';

/** Converts the time like libuv. */
const storedNanoseconds = (seconds: number, nanoseconds: number): number =>
  Math.floor((toUtimesSeconds({ seconds, nanoseconds }) - seconds) * 1e9);
const reportedNanoseconds = (seconds: number, nanoseconds: number): number =>
  roundNanoseconds(seconds, storedNanoseconds(seconds, nanoseconds));

const seconds = fc.oneof(
  fc.integer({ min: 0, max: 2 ** 32 - 1 }),
  fc.integer({ min: 1_600_000_000, max: 2_000_000_000 }),
);

test('whole microseconds are read back as they were set, in every year', () => {
  const microseconds = fc.integer({ min: 0, max: 999_999 });
  fc.assert(
    fc.property(seconds, microseconds, (s, us) => reportedNanoseconds(s, us * 1000) === us * 1000),
    { numRuns: 20_000 },
  );
});

test('other times are read back at most a microsecond later, and never earlier', () => {
  fc.assert(
    fc.property(seconds, fc.integer({ min: 0, max: 999_998_999 }), (s, ns) => {
      const later = reportedNanoseconds(s, ns) - ns;
      return later >= 0 && later < 1000;
    }),
    { numRuns: 20_000 },
  );
});

test('times that the kernel set are reported exactly, except for one in a thousand', () => {
  let others = 0;
  for (let ns = 0; ns < 999_000_000; ns += 9_973) if (roundNanoseconds(1_750_000_000, ns) !== ns) others++;
  expect(others).toBeLessThan(150);
});

describe.skipIf(lacks('linux'))('the times of a file', () => {
  test.each([
    ['whole milliseconds', 1_000_000],
    ['whole microseconds', 1_000],
  ])('%s are what clients set, exactly', async (_what, unit) => {
    const own = await startOwnServer({ durable: false });
    const { nfs, root } = await own.mount();
    const { handle } = await nfs.create(root, 'file', { mode: 'guarded', set: {} });
    for (let i = 0; i < 300; i++) {
      const timeOf = (n: number): { seconds: number; nanoseconds: number } => ({
        seconds: 1_700_000_000 + n * 104_729,
        nanoseconds: ((n * 7_368_787) % (1e9 / unit)) * unit,
      });
      const [atime, mtime] = [timeOf(i), timeOf(i + 1)];
      await nfs.setattr(handle, { atime, mtime });
      expect(await nfs.getattr(handle)).toMatchObject({
        atime: atime.seconds,
        atimeNs: atime.nanoseconds,
        mtime: mtime.seconds,
        mtimeNs: mtime.nanoseconds,
      });
    }
  });

  test('that the machine of the server set are reported exactly', async () => {
    const own = await startOwnServer({ durable: false });
    const { nfs, root } = await own.mount();
    writeFileSync(join(own.directory, 'file'), 'x');
    utimesSync(join(own.directory, 'file'), 5, 1_700_000_000.5);
    const { handle, attributes } = await nfs.lookup(root, 'file');
    const { mtimeNs } = statSync(join(own.directory, 'file'), { bigint: true });
    expect(mtimeNs).toBe(1_700_000_000_500_000_000n);
    expect(attributes).toMatchObject({ atime: 5, atimeNs: 0, mtime: 1_700_000_000, mtimeNs: 500_000_000 });
    expect(await nfs.getattr(handle)).toMatchObject({ mtimeNs: 500_000_000 });
  });
});
