import { constants } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { lacks } from '#testbed/lacks.ts';
import { exportedByGanesha } from '#testing/exported-folder.ts';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { createMemoryNodes, createMemoryProofs } from '#testing/fakes/memory-nodes.ts';
import { asCaller } from '#testing/nfs-mount.ts';
import type { Attr, Operations, Request } from '#wire/fuse/operations.ts';
import type { Attributes, Time } from '#wire/nfs3/structures.ts';
import { type CreationMark, createCreationMarks, isMarked } from './creation-marks.ts';
import { createFileSystem } from './file-system.ts';

const attributesWith = (times: Partial<Attributes>): Attributes =>
  ({ atime: 5, atimeNs: 0, mtime: 5, mtimeNs: 0, ctime: 5, ctimeNs: 0, ...times }) as Attributes;
const msOf = ({ seconds, nanoseconds }: Time): number => seconds * 1000 + nanoseconds / 1e6;

describe('creation marks', () => {
  test("marks lie in the last second, by our clock at first, then by the server's", async () => {
    const clock = createFakeClock();
    const marks = createCreationMarks(clock);
    const expectInLastSecondBefore = (ms: number): void => {
      const all = Array.from({ length: 200 }, () => msOf(marks.nextTime()));
      expect(Math.max(...all)).toBeLessThanOrEqual(ms - 10);
      expect(Math.min(...all)).toBeGreaterThanOrEqual(ms - 1001);
      expect(new Set(all).size).toBeGreaterThan(190);
    };
    expectInLastSecondBefore(clock.now());
    marks.recordServerTime(attributesWith({ ctime: 1_000, ctimeNs: 250_000_000 }));
    expectInLastSecondBefore(1_000_250);
    await clock.advance(3_100);
    expectInLastSecondBefore(1_003_350);
  });

  test('marks are access times, or modification times if the server does not keep access times', () => {
    const marks = createCreationMarks(createFakeClock());
    const replyKeeping = ({ set }: CreationMark, kept: 'atime' | 'mtime' | 'none'): Attributes => {
      const time = kept === 'none' ? undefined : (set[kept] as Time | undefined);
      return attributesWith(time === undefined ? {} : { [kept]: time.seconds, [`${kept}Ns`]: time.nanoseconds });
    };
    const nextMark = (): CreationMark => marks.markAt(marks.nextTime());
    const [first, second] = [nextMark(), nextMark()];
    expect(first.set).toEqual({ atime: first.time });
    marks.recordCreation(first, replyKeeping(first, 'mtime'));
    expect(marks.arePreserved).toBeUndefined();
    // It was in flight.
    marks.recordCreation(second, replyKeeping(second, 'mtime'));
    expect(marks.arePreserved).toBeUndefined();
    const next = nextMark();
    expect(next.set).toEqual({ mtime: next.time });
    marks.recordCreation(next, replyKeeping(next, 'mtime'));
    expect(marks.arePreserved).toBe(true);
    expect(isMarked(replyKeeping(next, 'mtime'), next.time)).toBe(true);
    marks.recordCreation(nextMark(), replyKeeping(next, 'none'));
    expect(marks.arePreserved).toBe(false);
  });

  test('marks stay access times if one of many is not kept', () => {
    const marks = createCreationMarks(createFakeClock());
    const mark = marks.markAt(marks.nextTime());
    marks.recordCreation(mark, attributesWith({ atime: mark.time.seconds, atimeNs: mark.time.nanoseconds }));
    expect(marks.arePreserved).toBe(true);
    marks.recordCreation(marks.markAt(marks.nextTime()), attributesWith({}));
    expect(marks.arePreserved).toBe(false);
    expect(marks.markAt(mark.time).set).toEqual({ atime: mark.time });
  });
});

describe.skipIf(lacks('ganesha'))('times of created files', () => {
  const exported = exportedByGanesha();

  test('times are in the order of creation and change, and not in the future', async () => {
    const operations = createFileSystem({
      nfs: exported.nfs,
      nodes: createMemoryNodes(exported.directory),
      proofs: createMemoryProofs(),
      clock: systemClock(),
      notify: () => undefined,
      options: { identity: asCaller },
    }) as Operations;
    const request = (place: number): Request => ({
      uid: 0,
      gid: 0,
      pid: 1,
      slot: place,
      resent: false,
      signal: new AbortController().signal,
    });
    const flags = { wx: constants.O_EXCL | constants.O_WRONLY, w: constants.O_WRONLY };
    const times: bigint[] = [];
    const recordTimes = ({ mtime, mtimeNs, atime, atimeNs, ctime, ctimeNs }: Attr): void => {
      const ns = (seconds: number, rest: number): bigint => BigInt(seconds) * 1_000_000_000n + BigInt(rest);
      times.push(ns(mtime, mtimeNs));
      // Setting a time to now makes it equal to ctime.
      expect(ns(mtime, mtimeNs)).toBeLessThanOrEqual(ns(ctime, ctimeNs));
      expect(ns(atime, atimeNs)).toBeLessThanOrEqual(ns(ctime, ctimeNs));
    };
    for (let i = 0; i < 20; i++) {
      const name = (kind: string): Buffer => Buffer.from(`${kind}-${i}`);
      const createRequest = request(i + 1);
      const { entry } = await operations.create(
        1,
        name('file'),
        { flags: i % 2 ? flags.w : flags.wx, mode: 0o644 },
        createRequest,
      );
      recordTimes(entry.attr as Attr);
      recordTimes((await operations.mkdir(1, name('directory'), 0o755, request(100 + i))).attr as Attr);
      recordTimes((await operations.setattr(entry.node, { mtime: 'now' }, request(200 + i))).attr);
    }
    expect(times).toEqual(times.toSorted((a, b) => Number(a - b)));
  });
});
