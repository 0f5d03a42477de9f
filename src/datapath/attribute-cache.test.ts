import { setImmediate as nextTurn } from 'node:timers/promises';
import { describe, expect, test } from 'vitest';
import { createFakeClock } from '#testing/fakes/clock.ts';
import type { Attributes, Wcc } from '#wire/nfs3/structures.ts';
import { createAttributeCache } from './attribute-cache.ts';
import { createCacheLimit } from './cache-limit.ts';
import { type CachedName, createNameCache, type NameCache } from './name-cache.ts';

const file: Attributes = {
  type: 1,
  mode: 0o644,
  links: 1,
  uid: 0,
  gid: 0,
  used: 4096,
  major: 0,
  minor: 0,
  fsid: 1n,
  fileId: 5n,
  size: 10,
  atime: 1,
  atimeNs: 0,
  mtime: 1,
  mtimeNs: 0,
  ctime: 1,
  ctimeNs: 0,
};
/** Attributes after this many changes. */
const attributesAfter = (change: number): Attributes => ({
  ...file,
  size: 10 + change,
  mtime: 1 + change,
  ctime: 1 + change,
});
const wccOf = (before: number, after: number): Wcc => ({
  before: attributesAfter(before),
  after: attributesAfter(after),
});
const id = 2;

function createTestCache(ttlMs = 1_000, end?: () => number | undefined) {
  const clock = createFakeClock();
  const attributes = createAttributeCache({
    clock,
    ttlMs,
    isHidden: () => false,
    limit: createCacheLimit(1_000),
    ...(end === undefined ? {} : { unansweredEnd: end }),
  });
  const receive = (reply: Attributes, eventNumber = attributes.eventNumber()) =>
    attributes.update(id, reply, eventNumber);
  /** Number of changes by other clients. */
  const seenEpochs: number[] = [];
  const changesByOthers = (): number => {
    const current = attributes.epoch(id);
    if (seenEpochs.at(-1) !== current) seenEpochs.push(current);
    return seenEpochs.length - 1;
  };
  changesByOthers();
  return { clock, attributes, saw: receive, epoch: changesByOthers, size: () => attributes.lastSeen(id)?.size };
}

describe('the attribute cache', () => {
  test('attributes are fresh for the TTL, and the kernel gets the same time', () => {
    const { clock, attributes, saw } = createTestCache();
    saw(attributesAfter(0));
    clock.advance(300);
    expect(attributes.attrReply(id)).toMatchObject({ attrMs: 700, attr: { size: 10, ino: 5 } });
    clock.advance(700);
    expect(attributes.freshMs(id)).toBe(0);
    expect(attributes.lastSeen(id)?.size).toBe(10);
    saw(attributesAfter(0));
    expect(attributes.freshMs(id)).toBe(1_000);
  });

  test('an entry may be evicted, but the rights that the kernel uses are kept', async () => {
    const { attributes, saw } = createTestCache();
    const withGroup = (gid: number): Attributes => ({ ...attributesAfter(gid), mode: 0o770, gid });
    const evictAll = async (): Promise<void> => {
      for (let other = id + 1; other < id + 1_500; other++) attributes.update(other, file, attributes.eventNumber());
      await nextTurn();
      expect(attributes.lastSeen(id)).toBeUndefined();
      for (let other = id + 1; other < id + 1_500; other++) attributes.forget(other);
    };
    saw(withGroup(2000));
    attributes.attrReply(id);
    for (let round = 0; round < 2; round++) {
      await evictAll();
      expect(attributes.kernelRights(id)).toMatchObject({ gid: 2000, mode: 0o770 });
      // Another client changed it, and the kernel does not know.
      saw(withGroup(3000));
      expect([attributes.kernelRights(id)?.gid, attributes.kernelView(id).rights?.gid]).toEqual([2000, 2000]);
    }
    attributes.attrReply(id);
    expect(attributes.kernelRights(id)?.gid).toBe(3000);
    await evictAll();
    attributes.forget(id);
    expect(attributes.kernelRights(id)).toBeUndefined();
    expect(attributes.kernelView(id).rights).toBeUndefined();
  });

  test("attributes unchanged for long by the server's clock are cached for longer", () => {
    const { clock, attributes, saw } = createTestCache();
    const receiveOther = (seconds: number) =>
      attributes.update(id + 1, { ...file, ctime: seconds }, attributes.eventNumber());
    const freshMs = (reply: Attributes): number => {
      saw(reply);
      return attributes.freshMs(id);
    };
    expect(freshMs(attributesAfter(0))).toBe(1_000);
    receiveOther(101);
    expect(freshMs(attributesAfter(0))).toBe(10_000);
    expect(attributes.ttlOf(id)).toBe(10_000);
    clock.advance(5_000);
    expect(attributes.freshMs(id)).toBe(5_000);
    expect(freshMs(attributesAfter(0))).toBe(10_500);
    receiveOther(100_000);
    expect(freshMs(attributesAfter(0))).toBe(30_000);
    // Its mtime was set, or it was changed and its old mtime restored.
    expect(freshMs({ ...attributesAfter(0), mtime: 200_000 })).toBe(1_000);
    expect(freshMs({ ...attributesAfter(0), ctime: 99_999 })).toBe(1_000);
    receiveOther(200_000);
    expect(freshMs(attributesAfter(0))).toBe(30_000);
    const change = attributes.beginChange(id);
    expect(attributes.ttlOf(id)).toBe(1_000);
    change.finish({ before: attributesAfter(0), after: { ...attributesAfter(0), ctime: 200_001 } });
    expect(attributes.freshMs(id)).toBe(1_000);
    const uncached = createTestCache(0);
    uncached.attributes.update(id + 1, { ...file, ctime: 100_000 }, 0);
    uncached.saw(attributesAfter(0));
    expect(uncached.attributes.attrReply(id).attrMs).toBe(0);
  });

  test('a reply requested before an own change does not replace newer attributes', () => {
    const { attributes, saw, size, epoch } = createTestCache();
    saw(attributesAfter(0));
    const eventNumber = attributes.eventNumber();
    attributes.beginChange(id).finish(wccOf(0, 3));
    expect(saw(attributesAfter(0), eventNumber).size).toBe(13);
    expect([size(), epoch()]).toEqual([13, 0]);
    // Requested before the change, but newer: only the requester gets these attributes.
    expect(saw(attributesAfter(4), eventNumber).size).toBe(14);
    expect([size(), epoch()]).toEqual([13, 0]);
    saw(attributesAfter(4));
    expect([size(), epoch()]).toEqual([14, 1]);
  });

  test('attributes are neither replaced nor fresh while an own change is in flight', () => {
    const { attributes, saw, size, epoch } = createTestCache();
    saw(attributesAfter(0));
    const change = attributes.beginChange(id);
    saw(attributesAfter(1));
    expect([size(), attributes.freshMs(id)]).toEqual([10, 0]);
    change.finish(wccOf(0, 1));
    expect([size(), epoch(), attributes.freshMs(id)]).toEqual([11, 0, 1_000]);
  });

  test('own changes are distinguished from changes by other clients', () => {
    const { attributes, saw, epoch } = createTestCache();
    saw(attributesAfter(0));
    for (let i = 0; i < 5; i++) attributes.beginChange(id).finish(wccOf(i, i + 1));
    expect(epoch()).toBe(0);
    attributes.beginChange(id).finish(wccOf(6, 7));
    expect(epoch()).toBe(1);
    saw(attributesAfter(7));
    expect(epoch()).toBe(1);
    saw(attributesAfter(8));
    expect(epoch()).toBe(2);
    // A server without before attributes is believed.
    attributes.beginChange(id).finish({ before: undefined, after: attributesAfter(9) });
    expect(epoch()).toBe(2);
  });

  test('overlapping changes without before attributes end with the newest result, even if an older one arrives last', () => {
    const { attributes, saw, size, epoch } = createTestCache();
    saw(attributesAfter(0));
    const twoChanges = () => [attributes.beginChange(id), attributes.beginChange(id)] as const;
    const [first, second] = twoChanges();
    second.finish({ before: undefined, after: attributesAfter(5) });
    first.finish({ before: undefined, after: attributesAfter(3) });
    expect([size(), epoch(), attributes.freshMs(id)]).toEqual([15, 0, 1_000]);
    // Within one tick of the server's clock, either order is possible.
    const [third, fourth] = twoChanges();
    third.finish({ before: undefined, after: attributesAfter(6) });
    fourth.finish({ before: undefined, after: { ...attributesAfter(6), size: 3 } });
    expect([epoch(), attributes.freshMs(id)]).toEqual([0, 0]);
    // A reply without attributes.
    const [fifth, sixth] = twoChanges();
    fifth.finish(undefined);
    sixth.finish({ before: undefined, after: attributesAfter(7) });
    expect(attributes.freshMs(id)).toBe(0);
    attributes.beginChange(id).finish({ before: undefined, after: attributesAfter(8) });
    expect([size(), attributes.freshMs(id)]).toEqual([18, 1_000]);
  });

  test('the size is the largest written while some writes are unanswered', () => {
    let unansweredEnd: number | undefined = 30;
    const { attributes, saw } = createTestCache(1_000, () => unansweredEnd);
    saw(attributesAfter(0));
    const [early, late] = [attributes.beginChange(id), attributes.beginChange(id)];
    late.finish({ before: undefined, after: { ...attributesAfter(1), size: 50 } });
    expect(attributes.attrReply(id)).toMatchObject({ attrMs: 0, attr: { size: 50 } });
    early.finish({ before: attributesAfter(0), after: { ...attributesAfter(1), size: 30 } });
    unansweredEnd = undefined;
    expect(attributes.attrReply(id).attr.size).toBe(50);
  });

  test('the size is that of the last write while a COMMIT is in flight', () => {
    const { attributes, saw } = createTestCache(1_000, () => undefined);
    saw(attributesAfter(0));
    const write = attributes.beginChange(id);
    const commit = attributes.beginChange(id);
    // A server without before attributes, as nfs-ganesha for a WRITE.
    write.finish({ before: undefined, after: attributesAfter(5) });
    saw(attributesAfter(5));
    expect(attributes.attrReply(id)).toMatchObject({ attr: { size: 15 }, attrMs: 0 });
    expect([attributes.kernelView(id).size, attributes.size(id)]).toEqual([15, 15]);
    commit.finish({ before: undefined, after: attributesAfter(5) });
    expect(attributes.attrReply(id)).toMatchObject({ attr: { size: 15 } });
  });

  test('overlapping own changes are put in order', () => {
    const { attributes, saw, size, epoch } = createTestCache();
    saw(attributesAfter(0));
    const changes = [0, 1, 2, 3].map(() => attributes.beginChange(id));
    for (const [i, n] of [2, 0, 3, 1].entries()) changes[i]?.finish(wccOf(n, n + 1));
    expect([size(), epoch(), attributes.freshMs(id)]).toEqual([14, 0, 1_000]);
    const more = [0, 1].map(() => attributes.beginChange(id));
    more[0]?.finish(wccOf(6, 7));
    more[1]?.finish(wccOf(4, 5));
    // Another client's change came in between.
    expect([size(), epoch(), attributes.freshMs(id)]).toEqual([17, 1, 0]);
  });

  test("a call without attributes makes the entry stale; a change without new content does not look like another client's", () => {
    const { attributes, saw, epoch } = createTestCache();
    saw(attributesAfter(0));
    attributes.beginChange(id).finish(undefined);
    expect(attributes.freshMs(id)).toBe(0);
    saw(attributesAfter(0));
    attributes.expire(id);
    expect(attributes.freshMs(id)).toBe(0);
    saw({ ...attributesAfter(0), ctime: 50, links: 2 });
    expect([epoch(), attributes.lastSeen(id)?.links]).toEqual([0, 2]);
    saw({ ...attributesAfter(0), ctime: 60 });
    expect(epoch()).toBe(1);
  });

  test('kernelView returns the size and the rights that the kernel has seen', () => {
    const { attributes, saw } = createTestCache();
    expect(attributes.kernelView(id)).toEqual({ size: undefined, rights: undefined, isCurrent: false });
    saw(attributesAfter(0));
    attributes.attrReply(id);
    attributes.recordKernelSize(id, 500);
    expect(attributes.kernelView(id)).toEqual({ size: 500, rights: { uid: 0, gid: 0, mode: 0o644 }, isCurrent: true });
    saw({ ...attributesAfter(1), gid: 7 });
    expect(attributes.kernelView(id)).toMatchObject({ size: 500, rights: { gid: 0 }, isCurrent: false });
    expect(attributes.kernelRights(id)).toMatchObject({ gid: 0 });
    attributes.attrReply(id);
    expect(attributes.kernelRights(id)).toMatchObject({ gid: 7 });
  });

  test('kernelRights returns the rights sent to the kernel, else those last seen', () => {
    const { attributes, saw } = createTestCache();
    expect(attributes.kernelRights(id)).toBeUndefined();
    saw(attributesAfter(0));
    expect(attributes.kernelRights(id)).toMatchObject({ mode: 0o644 });
    saw({ ...attributesAfter(1), mode: 0o600 });
    expect(attributes.kernelRights(id)).toMatchObject({ mode: 0o600 });
  });

  test('new rights are learned at once, even while an own change is in flight', () => {
    const { attributes, saw, size } = createTestCache();
    saw(attributesAfter(0));
    const change = attributes.beginChange(id);
    saw({ ...attributesAfter(3), mode: 0o600, gid: 7 });
    saw({ ...attributesAfter(0), ctime: 0, mode: 0o777 });
    expect(attributes.attrReply(id).attr).toMatchObject({ mode: 0o100600, gid: 7, size: 10 });
    change.finish(wccOf(0, 4));
    expect([size(), attributes.lastSeen(id)?.mode]).toEqual([14, 0o644]);
  });

  test('the oldest of very many nodes are evicted, and their cached content is not reused', async () => {
    const { attributes } = createTestCache();
    for (let node = 1; node <= 2_000; node++) attributes.update(node, attributesAfter(node), attributes.eventNumber());
    await nextTurn();
    const before = attributes.epoch(2_000);
    expect(attributes.lastSeen(1)).toBeUndefined();
    expect(attributes.lastSeen(2_000)?.size).toBe(2_010);
    const change = attributes.beginChange(1_999);
    for (let node = 7_001; node <= 17_000; node++)
      attributes.update(node, attributesAfter(node), attributes.eventNumber());
    await nextTurn();
    expect(attributes.lastSeen(2_000)).toBeUndefined();
    expect(attributes.epoch(2_000)).not.toBe(before);
    expect(attributes.lastSeen(1_999)).toBeDefined();
    change.finish(wccOf(1_999, 2_000));
  });

  test('a listing older than an own change is not trusted, even after eviction', () => {
    const { attributes, saw } = createTestCache();
    const listedAt = attributes.eventNumber();
    saw(attributesAfter(0));
    attributes.forget(id);
    saw(attributesAfter(0), listedAt);
    expect(attributes.freshMs(id)).toBe(1_000);
    attributes.beginChange(id).finish(wccOf(0, 1));
    attributes.forget(id);
    saw(attributesAfter(0), listedAt);
    expect(attributes.freshMs(id)).toBe(0);
    saw(attributesAfter(1));
    expect(attributes.freshMs(id)).toBe(1_000);
  });

  test('a hidden name is not counted as a link', () => {
    const { attributes, saw } = createTestCache();
    saw(attributesAfter(0));
    attributes.setHidden(id, true);
    expect(attributes.attrReply(id).attr.nlink).toBe(0);
  });
});

describe('the name cache', () => {
  const nameOfSize = (size: number): CachedName => ({
    target: { handle: undefined, attributes: attributesAfter(size) },
    at: 0,
    eventNumber: 0,
  });

  test('names are forgotten when another client changes the directory', () => {
    let epoch = 0;
    const names = createNameCache({ epochOf: () => epoch, clock: createFakeClock(), limit: createCacheLimit(100_000) });
    names.put(1, 'a', nameOfSize(1), names.changeCount(1));
    expect(names.get(1, 'a')).toBeDefined();
    epoch++;
    expect(names.get(1, 'a')).toBeUndefined();
  });

  test('a name requested before an own change is not cached', () => {
    const names = createNameCache({ epochOf: () => 0, clock: createFakeClock(), limit: createCacheLimit(100_000) });
    const changes = names.changeCount(1);
    names.recordOwnChange(1, 'a', { target: undefined, at: 0, eventNumber: 0 });
    names.put(1, 'a', nameOfSize(1), changes);
    expect(names.get(1, 'a')?.target).toBeUndefined();
    names.drop(1, 'a');
    names.put(1, 'a', nameOfSize(1), changes);
    expect(names.get(1, 'a')).toBeUndefined();
  });

  test('a name missing from a completely known directory is absent for a while', () => {
    const clock = createFakeClock();
    let epoch = 0;
    const names = createNameCache({ epochOf: () => epoch, clock, limit: createCacheLimit(100_000) });
    const markComplete = () => names.markComplete(1, names.changeCount(1));
    expect(names.isComplete(1)).toBe(false);
    const changes = names.changeCount(1);
    names.recordOwnChange(1, 'a', nameOfSize(1));
    names.markComplete(1, changes);
    expect(names.isComplete(1)).toBe(false);
    markComplete();
    names.recordOwnChange(1, 'b', { target: undefined, at: 0, eventNumber: 0 });
    expect(names.isComplete(1)).toBe(true);
    names.drop(1, 'b');
    expect(names.isComplete(1)).toBe(false);
    markComplete();
    epoch++;
    expect(names.isComplete(1)).toBe(false);
    markComplete();
    clock.advance(5_000);
    expect(names.isComplete(1)).toBe(false);
  });

  test('all mounts share one limit of names; the least recently used names are dropped first', async () => {
    const limit = createCacheLimit(10_000);
    const createCache = () => createNameCache({ epochOf: () => 0, clock: createFakeClock(), limit });
    const [names, small] = [createCache(), createCache()];
    const fill = async (cache: NameCache, directories: number): Promise<void> => {
      for (let directory = 1; directory <= directories; directory++) {
        for (let i = 0; i < 100; i++) cache.put(directory, `${i}`, nameOfSize(i), cache.changeCount(directory));
        await nextTurn();
      }
    };
    const cachedNames = (cache: NameCache) =>
      Array.from({ length: 300 }, (_, i) => cache.get(i + 1, '99')).filter(Boolean);
    await fill(small, 5);
    await fill(names, 300);
    expect(cachedNames(names).length).toBeGreaterThan(50);
    expect(cachedNames(names).length).toBeLessThanOrEqual(95);
    expect(names.get(300, '0')).toBeDefined();
    expect(names.get(1, '0')).toBeUndefined();
    expect(cachedNames(small)).toHaveLength(5);
    names[Symbol.dispose]();
    await fill(small, 90);
    expect(cachedNames(small)).toHaveLength(90);
  });
});
