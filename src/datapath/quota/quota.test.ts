import { describe, expect, test } from 'vitest';
import { createSharedFolder, type SharedFolder } from '#testing/fakes/shared-folder.ts';
import {
  type FileSizes,
  limit,
  neverAborts,
  type QuotaNode,
  sizeOf,
  startQuotaNode,
  storedGrowth,
} from '#testing/quota-nodes.ts';
import { Errno } from '#wire/fuse/errno.ts';
import { createLedger, grantChunkBytes, grantName } from './ledger.ts';
import { createQuota } from './quota.ts';
import { createRecount } from './recount.ts';

const chunk = grantChunkBytes(limit);

/** Like the file system: admit, write, settle. False: EDQUOT. */
async function write(
  folder: SharedFolder,
  tree: FileSizes,
  { quota }: QuotaNode,
  name: string,
  end: number,
): Promise<boolean> {
  const maxGrowth = Math.max(0, end - (tree.get(name) ?? 0));
  try {
    await quota.admit(maxGrowth);
  } catch (cause) {
    if (cause instanceof Errno && cause.code === 'EDQUOT') return false;
    throw cause;
  }
  await folder.turn();
  const before = tree.get(name) ?? 0;
  tree.set(name, Math.max(before, end));
  await folder.turn();
  quota.recordUsage(Math.max(0, end - before), maxGrowth);
  return true;
}

async function remove(folder: SharedFolder, tree: FileSizes, { quota }: QuotaNode, name: string): Promise<void> {
  await folder.turn();
  const before = tree.get(name) ?? 0;
  tree.delete(name);
  await folder.turn();
  quota.recordUsage(-before);
}

describe.each(Array.from({ length: 16 }, (_, i) => i + 1))('nodes that share a volume, with seed %d', (seed) => {
  test('at most one of two nodes that want the last bytes at once gets them, and nothing is lost', async () => {
    const folder = createSharedFolder(seed * 104_729);
    const tree: FileSizes = new Map([['old', limit - 1000]]);
    const [a, b] = [startQuotaNode(folder, tree, 'a'), startQuotaNode(folder, tree, 'b')];
    const expectWithinLimit = (): void => expect(sizeOf(tree)).toBeLessThanOrEqual(limit);
    // Both have read the ledger, so they ask at the same time.
    for (const one of [a, b]) {
      await folder.run(one.quota.admit(1), expectWithinLimit);
      one.quota.recordUsage(0, 1);
      await folder.run(waitForMaintenance(folder, one), expectWithinLimit);
      await folder.run(one.quota.close(), expectWithinLimit);
    }
    const bothWrites = Promise.all([write(folder, tree, a, 'new-a', 900), write(folder, tree, b, 'new-b', 900)]);
    await folder.run(bothWrites, expectWithinLimit);
    const answers = await bothWrites;
    expect(answers.filter((isDone) => isDone).length).toBeLessThanOrEqual(1);
    const winner = answers[1] ? b : a;
    const name = answers[1] ? 'new-b' : 'new-a';
    await folder.run(waitForMaintenance(folder, winner), expectWithinLimit);
    const last = write(folder, tree, winner, name, 1000);
    await folder.run(last, expectWithinLimit);
    expect(await last).toBe(true);
  });
});

const waitForMaintenance = async (folder: SharedFolder, { quota }: QuotaNode): Promise<void> => {
  quota.statfs();
  await folder.clock.sleep(1_000, neverAborts);
};

describe('a single node', () => {
  const setUp = (used = 0) => {
    const folder = createSharedFolder(1);
    const tree: FileSizes = new Map([['old', used]]);
    const one = startQuotaNode(folder, tree, 'a');
    const run = <T>(work: Promise<T>): Promise<T> => folder.run(work, () => undefined).then(() => work);
    const writeTo = (name: string, to: number, writer = one) => run(write(folder, tree, writer, name, to));
    return { folder, tree, one, run, put: writeTo };
  };
  const quotaExceeded = expect.objectContaining({ code: 'EDQUOT' });

  test('can use the whole size to the byte, and again what it frees', async () => {
    const { folder, tree, one, run, put } = setUp();
    for (let to = 1000; to <= limit; to += 1000) expect(await put('new', to)).toBe(true);
    expect(one.quota.statfs()).toEqual({ bytes: limit, used: limit });
    await expect(run(one.quota.admit(1))).rejects.toEqual(quotaExceeded);
    expect(await put('new', limit)).toBe(true);
    await run(remove(folder, tree, one, 'new'));
    expect(await put('other', limit)).toBe(true);
  });

  test('gets what is left, even if that is less than a chunk', async () => {
    const { put } = setUp(limit - chunk / 2);
    expect(await put('new', chunk / 2 + 1)).toBe(false);
    expect(await put('new', chunk / 2)).toBe(true);
  });

  test('does not count bytes that were admitted and not used', async () => {
    const { one, run } = setUp();
    for (let i = 0; i < 10; i++) {
      await run(one.quota.admit(limit / 2));
      one.quota.recordUsage(0, limit / 2);
    }
    expect(one.quota.statfs().used).toBe(0);
  });

  test('holds back no more than a few chunks of what it freed', async () => {
    const { folder, tree, one, run, put } = setUp();
    await put('new', limit);
    await run(remove(folder, tree, one, 'new'));
    await run(waitForMaintenance(folder, one));
    expect(await put('other', limit - 3 * chunk, startQuotaNode(folder, tree, 'b'))).toBe(true);
  });

  test('continues after a crash with exactly its earlier growth', async () => {
    const { folder, tree, one, put } = setUp();
    await put('new', limit / 2);
    const { epoch } = one.kept.value;
    const successor = startQuotaNode(folder, tree, 'a', storedGrowth({ ...one.kept.value }));
    expect(await put('more', limit / 2 + 1, successor)).toBe(false);
    expect(await put('more', limit / 2, successor)).toBe(true);
    // The same epoch: no new count was needed.
    expect(successor.kept.value).toEqual({ epoch, growth: limit });
  });

  test('moves unsettled charges into a new epoch even while the mount is idle', async () => {
    const { folder, tree, one, run, put } = setUp();
    await run(one.quota.admit(limit / 2));
    await run(startQuotaNode(folder, tree, 'b').recount(neverAborts));
    expect(one.kept.value).toEqual({ epoch: 2, growth: limit / 2 });
    expect(await put('more', limit / 2 + 1, startQuotaNode(folder, tree, 'c'))).toBe(false);
    tree.set('new', limit / 2);
    one.quota.recordUsage(limit / 2, limit / 2);
    expect(one.kept.value).toEqual({ epoch: 2, growth: limit / 2 });
  });

  describe('growth settled before the node has seen a new epoch', () => {
    const successorOf = ({ folder, tree, one }: ReturnType<typeof setUp>): QuotaNode => {
      const successor = startQuotaNode(folder, tree, 'a', storedGrowth({ ...one.kept.value }));
      successor.quota.adopt(limit / 2);
      tree.set('new', limit / 2);
      successor.quota.recordUsage(limit / 2, limit / 2);
      return successor;
    };

    test('moves into the epoch, since the count may have been earlier', async () => {
      const setup = setUp();
      await setup.run(setup.one.quota.admit(limit / 2));
      setup.one.die();
      await setup.run(startQuotaNode(setup.folder, setup.tree, 'b').recount(neverAborts));
      const successor = successorOf(setup);
      await setup.run(waitForMaintenance(setup.folder, successor));
      expect(successor.kept.value).toEqual({ epoch: 2, growth: limit / 2 });
    });

    test('counts once if there was no new epoch', async () => {
      const setup = setUp();
      await setup.run(setup.one.quota.admit(limit / 2));
      setup.one.die();
      const successor = successorOf(setup);
      await setup.run(waitForMaintenance(setup.folder, successor));
      expect(successor.kept.value).toEqual({ epoch: 1, growth: limit / 2 });
      await setup.run(startQuotaNode(setup.folder, setup.tree, 'b').recount(neverAborts));
      await setup.run(waitForMaintenance(setup.folder, successor));
      expect(successor.kept.value).toEqual({ epoch: 2, growth: 0 });
    });
  });

  test('does not use an old view of the ledger, even if its grant has room', async () => {
    const { folder, tree, one, run, put } = setUp();
    await put('new', 1);
    tree.set('foreign', limit - 1);
    await run(startQuotaNode(folder, tree, 'b').recount(neverAborts));
    expect(await put('new', 2)).toBe(false);
    expect(one.kept.value).toEqual({ epoch: 2, growth: 0 });
  });

  test('counts the grant of a dead node until the next count finds the real usage', async () => {
    const { folder, tree, one, run, put } = setUp();
    await run(one.quota.admit(limit));
    one.die();
    const other = startQuotaNode(folder, tree, 'b');
    expect(await put('new', limit, other)).toBe(false);
    await run(folder.clock.sleep(60_000, neverAborts));
    // There is still no room, and a new count is due.
    expect(await put('new', limit, other)).toBe(false);
    await run(folder.clock.sleep(10_000, neverAborts));
    expect(await put('new', limit, other)).toBe(true);
    expect([...folder.texts.keys()].filter((name) => name.startsWith('grant.'))).toEqual([grantName(2, 'b')]);
  });

  test('finds writes by other clients in the next count', async () => {
    const { folder, tree, one, run, put } = setUp();
    await put('new', 1000);
    tree.set('foreign', limit - 1000);
    await run(folder.clock.sleep(11 * 60_000, neverAborts));
    one.quota.statfs();
    await run(folder.clock.sleep(10_000, neverAborts));
    await run(waitForMaintenance(folder, one));
    expect(one.quota.statfs().used).toBe(limit);
    expect(await put('more', 1000)).toBe(false);
  });

  test('can use a grown volume at once, without a remount', async () => {
    const { folder, one, put } = setUp();
    await put('new', limit);
    expect(await put('new', limit + 1)).toBe(false);
    folder.texts.set('limit', JSON.stringify({ version: 1, bytes: 2 * limit }));
    expect(await put('new', 2 * limit)).toBe(true);
    expect(one.quota.statfs()).toEqual({ bytes: 2 * limit, used: 2 * limit });
  });

  test('ignores foreign content in the ledger directory', async () => {
    const { folder, put } = setUp();
    await put('new', 1000);
    for (const text of ['', '{', 'null', '[]', '{"granted":"much"}', '{"granted":1e300}'])
      folder.texts.set(grantName(1, text.length.toString()), text);
    folder.texts.set('limit', '{"bytes":-1}');
    folder.texts.set('grant.x.y', '{"granted":1000000}');
    expect(await put('new', limit)).toBe(true);
  });

  test('takes over the count of a dead node after two minutes', async () => {
    const { folder, tree, run, put } = setUp();
    folder.texts.set('scan', 'somebody');
    const other = startQuotaNode(folder, tree, 'b');
    const startedAt = folder.clock.elapsed();
    expect(await put('new', 1000, other)).toBe(true);
    expect(folder.clock.elapsed() - startedAt).toBeGreaterThan(100_000);
    expect(folder.texts.has('scan')).toBe(false);
    await run(other.quota.close());
  });

  test('reports a failed count to the requests that wait for it', async () => {
    const folder = createSharedFolder(1);
    const { clock } = folder;
    const ledger = createLedger({ files: folder.files(), clock, signal: neverAborts, member: 'a', limit });
    const count = (): Promise<never> => Promise.reject(new Error('no answer'));
    const recount = createRecount({ files: folder.files(), clock, count });
    const failures: unknown[] = [];
    const failed = (cause: unknown): void => void failures.push(cause);
    const quota = createQuota({
      ledger,
      recount,
      storedGrowth: storedGrowth(),
      clock,
      limit,
      signal: neverAborts,
      failed,
    });
    const admitted = quota.admit(1);
    await folder.run(
      admitted.catch(() => undefined),
      () => undefined,
    );
    await expect(admitted).rejects.toThrow('no answer');
    expect(folder.texts.has('scan')).toBe(false);
  });
});
