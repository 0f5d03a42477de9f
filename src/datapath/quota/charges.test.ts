import { beforeEach, describe, expect, test } from 'vitest';
import { Errno } from '#wire/fuse/errno.ts';
import type { Request } from '#wire/fuse/operations.ts';
import { type Attributes, fileType } from '#wire/nfs3/structures.ts';
import { type Charges, createCharges, type SpaceToFree } from './charges.ts';

const block = 4096;
const tebi = 2 ** 40;

/** The cached attributes, the server's attributes, and the age of the cache. */
let files: Map<number, Attributes>;
let onServer: Map<number, Attributes>;
let ageMs: number;
let contentEpoch: number;
let epoch: number;
let admitted: number[];
/** The charged bytes, and the unsettled part. */
let balance: number;
let unsettled: number;
let isFull: boolean;
/** quota.admit() waits for this promise. */
let admission: Promise<void> | undefined;
let isCounting: boolean;
let charges: Charges;
let lastPlace: number;

const file = (size: number, used = size, links = 1): Attributes =>
  ({ type: fileType.regular, size, used, links }) as Attributes;
const { signal } = new AbortController();
const request = (slot = ++lastPlace): Request => ({ slot, signal }) as Request;
const spaceToFree = (attributes: Attributes): SpaceToFree => ({ attributes, epoch });

const write = (id: number, offset: number, length: number): Promise<void> | undefined =>
  charges.write(id, offset, length, request());

/** Everything is on the server's disk and settled. */
function settleAll(id: number, attributes: Attributes): void {
  files.set(id, attributes);
  for (let place = 1; place <= lastPlace; place++) charges.settle(place);
}

async function remove(id: number): Promise<void> {
  charges.recordRemoval(id, await charges.spaceToFree(id, request()));
}

beforeEach(() => {
  [files, onServer, admitted, balance, unsettled] = [new Map(), new Map(), [], 0, 0];
  [isFull, isCounting, lastPlace, ageMs, contentEpoch, epoch, admission] = [false, false, 0, 0, 1, 1, undefined];
  charges = createCharges({
    quota: {
      admit: async (bytes) => {
        await admission;
        if (isFull) throw new Errno('EDQUOT');
        admitted.push(bytes);
        balance += bytes;
        unsettled += bytes;
      },
      adopt: (bytes) => {
        unsettled += bytes;
      },
      recordUsage: (delta, unsettledBefore = 0) => {
        balance += delta - unsettledBefore;
        unsettled -= unsettledBefore;
      },
      epoch: () => epoch,
      epochBeforeFree: async () => (isCounting ? undefined : epoch),
    },
    attributes: { lastSeen: (id) => files.get(id), epoch: () => contentEpoch, ageMs: () => ageMs },
    getattr: async (id) => {
      const found = onServer.get(id);
      if (found === undefined) throw new Errno('ESTALE');
      files.set(id, found);
      return found;
    },
    waitFor: (waitingRequest, work) => work(waitingRequest.signal),
  });
});

test('a write abandoned while waiting for space is still charged, and its place can be reused', async () => {
  files.set(1, file(0));
  files.set(2, file(0));
  const { promise: spaceAvailable, resolve: answer } = Promise.withResolvers<void>();
  admission = spaceAvailable;
  const [first, next] = [request(7), request(7)];
  const waiting = charges.write(1, 0, block, first);
  charges.abandon(first);
  admission = undefined;
  await charges.write(2, 0, block, next);
  expect([balance, unsettled]).toEqual([block, block]);
  answer();
  await waiting;
  expect([balance, unsettled]).toEqual([2 * block, block]);
  charges.settle(7);
  expect([balance, unsettled]).toEqual([2 * block, 0]);
});

describe('a write', () => {
  test('beyond the end costs whole blocks, each once', async () => {
    files.set(1, file(0));
    await write(1, 0, 10);
    expect(write(1, 10, 100)).toBeUndefined();
    await write(1, block - 1, 2);
    expect(admitted).toEqual([block, block]);
    expect(balance).toBe(2 * block);
  });

  test('over existing data costs nothing', () => {
    files.set(1, file(10 * block));
    expect(write(1, 0, 10 * block)).toBeUndefined();
  });

  test('far beyond the end costs the data, not the hole', async () => {
    files.set(1, file(block));
    await write(1, 1_000 * block, block);
    expect(admitted).toEqual([block]);
  });

  test('into a hole that the server does not know yet costs the data', async () => {
    files.set(1, file(0));
    await write(1, 1_000 * block, block);
    await write(1, 0, 500 * block);
    await write(1, 500 * block, 500 * block);
    expect(write(1, 0, 1_001 * block)).toBeUndefined();
    expect(admitted).toEqual([block, 500 * block, 500 * block]);
  });

  test('into holes costs the data, but no more than the holes', async () => {
    files.set(1, file(4 * block, block));
    await write(1, 0, 2 * block);
    await write(1, 2 * block, 2 * block);
    expect(write(1, 0, 4 * block)).toBeUndefined();
    expect(admitted).toEqual([2 * block, block]);
  });

  test('that is refused costs nothing and is charged on retry', async () => {
    files.set(1, file(0));
    isFull = true;
    await expect(write(1, 0, block)).rejects.toMatchObject({ code: 'EDQUOT' });
    expect(balance).toBe(0);
    isFull = false;
    await write(1, 0, block);
    expect(admitted).toEqual([block]);
  });

  test('to a file without known attributes costs what the server does not have yet', async () => {
    onServer.set(1, file(10 * block));
    await write(1, 8 * block, 3 * block);
    expect(admitted).toEqual([block]);
    isFull = true;
    files.clear();
    await write(1, 0, 10 * block);
  });

  test("is unsettled until it is on the server's disk, each write by itself", async () => {
    files.set(1, file(0));
    await write(1, 0, block);
    await write(1, block, 2 * block);
    expect(unsettled).toBe(3 * block);
    charges.settle(1);
    expect([balance, unsettled]).toEqual([3 * block, 2 * block]);
    charges.settle(1);
    charges.settle(2);
    expect([balance, unsettled]).toEqual([3 * block, 0]);
  });

  test('that a predecessor charged is unsettled and is not charged again', () => {
    charges.restore(7, block);
    expect([balance, unsettled]).toEqual([0, block]);
    charges.settle(7);
    expect([balance, unsettled]).toEqual([0, 0]);
  });

  test('is charged what the server uses if that is more, and removal frees all of it', async () => {
    files.set(1, file(0));
    await write(1, 0, 10);
    settleAll(1, file(10, 32 * block));
    expect(balance).toBe(32 * block);
    await remove(1);
    expect(balance).toBe(0);
  });
});

describe('freeing space', () => {
  test('a truncated file frees its space even if the server does not report its usage yet', async () => {
    files.set(1, file(0));
    await write(1, 0, 8 * block);
    settleAll(1, file(8 * block, 0));
    charges.recordResize(1, spaceToFree(file(8 * block, 0)), file(0));
    expect(balance).toBe(0);
    files.set(1, file(0));
    await write(1, 0, block);
    expect(balance).toBe(block);
  });

  test('a truncated file keeps the space before its new end', async () => {
    files.set(1, file(0));
    await write(1, 0, 8 * block);
    settleAll(1, file(8 * block, 0));
    charges.recordResize(1, spaceToFree(file(8 * block, 0)), file(6 * block, 0));
    expect(balance).toBe(6 * block);
  });

  test('extending a file frees nothing', () => {
    charges.recordResize(1, spaceToFree(file(block)), file(9 * block, block));
    expect(balance).toBe(0);
  });

  test('removing the last name frees the space, removing another one does not', async () => {
    files.set(1, file(block, block, 2));
    await remove(1);
    expect(balance).toBe(0);
    files.set(1, file(block));
    await remove(1);
    expect(balance).toBe(-block);
    charges.recordRemoval(undefined, undefined);
    expect(balance).toBe(-block);
  });

  test('removing a symbolic link frees nothing, since links are not charged', () => {
    charges.recordRemoval(1, spaceToFree({ ...file(100, block), type: fileType.link }));
    expect(balance).toBe(0);
  });

  test.each(['removed', 'truncated'])(
    'a file with a large hole that is %s frees what was written',
    async (operation) => {
      files.set(1, file(0));
      await write(1, tebi, block);
      const now = file(tebi + block, block);
      settleAll(1, now);
      if (operation === 'truncated') charges.recordResize(1, spaceToFree(now), file(0));
      else await remove(1);
      expect(balance).toBe(0);
    },
  );

  test('a file changed by another client frees its current usage', async () => {
    files.set(1, file(0));
    await write(1, 0, 8 * block);
    settleAll(1, file(8 * block));
    [ageMs, contentEpoch] = [5_000, 2];
    onServer.set(1, file(8 * block, block));
    await remove(1);
    expect(balance).toBe(7 * block);
  });

  test('removing a file that a count has seen frees its usage, not its earlier charge', async () => {
    files.set(1, file(100 * block, block));
    for (let i = 0; i < 10; i++) await write(1, 0, block);
    settleAll(1, file(100 * block, block));
    [epoch, balance] = [2, 0];
    await remove(1);
    expect(balance).toBe(-block);
  });

  test('removing a file during a count frees nothing', async () => {
    files.set(1, file(block));
    const before = await charges.spaceToFree(1, request());
    epoch = 2;
    charges.recordRemoval(1, before);
    isCounting = true;
    await remove(1);
    expect(balance).toBe(0);
  });

  test.each(['truncated', 'removed'])(
    'a file %s during a count is charged again when it is rewritten',
    async (operation) => {
      isCounting = true;
      files.set(1, file(0));
      await write(1, 0, 8 * block);
      settleAll(1, file(8 * block));
      const before = await charges.spaceToFree(1, request());
      if (operation === 'truncated') charges.recordResize(1, before, file(0));
      else charges.recordRemoval(1, before);
      files.set(1, file(0));
      await write(1, 0, 8 * block);
      expect(admitted).toEqual([8 * block, 8 * block]);
    },
  );

  test('a file overwritten often before a count still has its holes afterwards', async () => {
    files.set(1, file(4 * block, block));
    for (let i = 0; i < 3; i++) await write(1, 0, block);
    expect(write(1, 0, 4 * block)).toBeUndefined();
    settleAll(1, file(4 * block, block));
    epoch = 2;
    await write(1, 0, 4 * block);
    expect(admitted).toEqual([block, block, block, 3 * block]);
  });

  test('old attributes are requested again; if that fails, nothing is freed', async () => {
    files.set(1, file(8 * block));
    ageMs = 5_000;
    onServer.set(1, file(8 * block, 8 * block, 2));
    await remove(1);
    expect(balance).toBe(0);
    onServer.clear();
    await remove(1);
    expect(balance).toBe(0);
  });
});
