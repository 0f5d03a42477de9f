import { constants } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { needs } from '#testbed/needs.ts';
import { exportedByGanesha } from '#testing/exported-folder.ts';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { createMemoryNodes, createMemoryProofs } from '#testing/fakes/memory-nodes.ts';
import { asCaller } from '#testing/nfs-mount.ts';
import type { Attr, Operations, Request } from '#wire/fuse/operations.ts';
import type { Attributes, Time } from '#wire/nfs3/structures.ts';
import { type CreationMark, createCreationMarks, isMarked } from './creation-marks.ts';
import { createFileSystem } from './file-system.ts';

const told = (times: Partial<Attributes>): Attributes =>
  ({ atime: 5, atimeNs: 0, mtime: 5, mtimeNs: 0, ctime: 5, ctimeNs: 0, ...times }) as Attributes;
const msOf = ({ seconds, nanoseconds }: Time): number => seconds * 1000 + nanoseconds / 1e6;

describe('creation marks', () => {
  test("marks lie in the last second, by our clock at first, then by the server's", async () => {
    const clock = createFakeClock();
    const marks = createCreationMarks(clock);
    const expectSoon = (ms: number): void => {
      const all = Array.from({ length: 200 }, () => msOf(marks.next()));
      expect(Math.max(...all)).toBeLessThanOrEqual(ms - 10);
      expect(Math.min(...all)).toBeGreaterThanOrEqual(ms - 1001);
      expect(new Set(all).size).toBeGreaterThan(190);
    };
    expectSoon(clock.now());
    marks.sawChange(told({ ctime: 1_000, ctimeNs: 250_000_000 }));
    expectSoon(1_000_250);
    await clock.advance(3_100);
    expectSoon(1_003_350);
  });

  test('marks are access times, or modification times if the server does not keep access times', () => {
    const marks = createCreationMarks(createFakeClock());
    const keeping = ({ set }: CreationMark, kept: 'atime' | 'mtime' | 'none'): Attributes => {
      const time = kept === 'none' ? undefined : (set[kept] as Time | undefined);
      return told(time === undefined ? {} : { [kept]: time.seconds, [`${kept}Ns`]: time.nanoseconds });
    };
    const make = (): CreationMark => marks.at(marks.next());
    const [first, second] = [make(), make()];
    expect(first.set).toEqual({ atime: first.time });
    marks.made(first, keeping(first, 'mtime'));
    expect(marks.areKept).toBeUndefined();
    // It was in flight.
    marks.made(second, keeping(second, 'mtime'));
    expect(marks.areKept).toBeUndefined();
    const next = make();
    expect(next.set).toEqual({ mtime: next.time });
    marks.made(next, keeping(next, 'mtime'));
    expect(marks.areKept).toBe(true);
    expect(isMarked(keeping(next, 'mtime'), next.time)).toBe(true);
    marks.made(make(), keeping(next, 'none'));
    expect(marks.areKept).toBe(false);
  });

  test('marks stay access times if one of many is not kept', () => {
    const marks = createCreationMarks(createFakeClock());
    const mark = marks.at(marks.next());
    marks.made(mark, told({ atime: mark.time.seconds, atimeNs: mark.time.nanoseconds }));
    expect(marks.areKept).toBe(true);
    marks.made(marks.at(marks.next()), told({}));
    expect(marks.areKept).toBe(false);
    expect(marks.at(mark.time).set).toEqual({ atime: mark.time });
  });
});

describe.skipIf(needs('ganesha'))('times of created files', () => {
  const it = exportedByGanesha();

  test('times are in the order of creation and change, and not in the future', async () => {
    const on = createFileSystem({
      nfs: it.nfs,
      nodes: createMemoryNodes(it.directory),
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
    const note = ({ mtime, mtimeNs, atime, atimeNs, ctime, ctimeNs }: Attr): void => {
      const ns = (seconds: number, rest: number): bigint => BigInt(seconds) * 1_000_000_000n + BigInt(rest);
      times.push(ns(mtime, mtimeNs));
      // Setting a time to now makes it equal to ctime.
      expect(ns(mtime, mtimeNs)).toBeLessThanOrEqual(ns(ctime, ctimeNs));
      expect(ns(atime, atimeNs)).toBeLessThanOrEqual(ns(ctime, ctimeNs));
    };
    for (let i = 0; i < 20; i++) {
      const name = (what: string): Buffer => Buffer.from(`${what}-${i}`);
      const at = request(i + 1);
      const { entry } = await on.create(1, name('file'), { flags: i % 2 ? flags.w : flags.wx, mode: 0o644 }, at);
      note(entry.attr as Attr);
      note((await on.mkdir(1, name('directory'), 0o755, request(100 + i))).attr as Attr);
      note((await on.setattr(entry.node, { mtime: 'now' }, request(200 + i))).attr);
    }
    expect(times).toEqual(times.toSorted((a, b) => Number(a - b)));
  });
});
