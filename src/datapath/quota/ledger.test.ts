import { execFileSync } from 'node:child_process';
import {
  chownSync,
  linkSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { lacks } from '#testbed/lacks.ts';
import { createSharedFolder } from '#testing/fakes/shared-folder.ts';
import { ganeshaFolders } from '#testing/ganesha-folders.ts';
import { type OpenExport, openExport } from '#testing/nfs-export.ts';
import { countTree } from './count-tree.ts';
import { createLedger, grantChunkBytes, grantName, temporaryName, writeBase } from './ledger.ts';
import { createLedgerFiles, type LedgerFiles } from './ledger-files.ts';
import { createMountQuota } from './mount-quota.ts';
import { createQuota, type Quota } from './quota.ts';
import { createRecount } from './recount.ts';

const neverAborts = new AbortController().signal;
const MiB = 1024 * 1024;
const diskUsage = (folder: string): number =>
  Number(execFileSync('du', ['-s', '-B1', folder], { encoding: 'utf8' }).split('\t')[0]);

test.each([
  [1, 0],
  [6400, 100],
  [1024 * MiB, 16 * MiB],
  [1024 ** 3 * MiB, 16 * MiB],
])('the chunk of a limit of %d bytes is %d bytes', (limit, chunk) => {
  expect(grantChunkBytes(limit)).toBe(chunk);
});

test('a grant that exceeds the limit is reverted', async () => {
  const folder = createSharedFolder(1);
  const files = folder.files();
  const { clock, texts } = folder;
  texts.set('base', JSON.stringify({ version: 1, epoch: 1, used: 0, counting: false, countedAt: 0 }));
  // Another member takes the rest between our look and our write.
  const overtakenFiles: LedgerFiles = {
    ...files,
    write: async (name, text) => {
      await files.write(name, text);
      texts.set(grantName(1, 'other'), '{"granted":600}');
    },
  };
  const ledger = createLedger({ files: overtakenFiles, clock, signal: neverAborts, member: 'a', limit: 1000 });
  const raiseResult = ledger.raiseGrant(1, 500, 7);
  await folder.run(raiseResult, () => undefined);
  expect(await raiseResult).toBe('full');
  expect(texts.get(grantName(1, 'a'))).toBe('{"version":1,"granted":7}\n');
});

describe.skipIf(lacks('ganesha'))('the ledger on nfs-ganesha', () => {
  const ganesha = ganeshaFolders('quota');

  const connect = (path: string): Promise<OpenExport> => openExport(ganesha.server, path);
  const filesOf = ({ nfs, root }: OpenExport, member: string): LedgerFiles =>
    createLedgerFiles({ nfs, folder: root, options: { deadlineMs: 10_000 }, temporaryName: temporaryName(member) });

  test('writes files atomically, creates them exclusively, and lets one of several renew them', async () => {
    const { folder } = ganesha.fresh();
    using a = await connect(folder);
    using b = await connect(folder);
    const [one, other] = [filesOf(a, 'a'), filesOf(b, 'b')];
    expect(await one.read('x')).toBeUndefined();
    await one.write('x', 'a longer text');
    await other.write('x', 'short');
    expect(await one.read('x')).toBe('short');
    expect(await Promise.all([one.tryCreate('turn', 'a'), other.tryCreate('turn', 'b')])).toContain(false);
    const fingerprint = (await one.fingerprint('turn')) ?? '';
    const touchResults = await Promise.all([one.touch('turn', fingerprint), other.touch('turn', fingerprint)]);
    expect(touchResults.filter((isDone) => isDone)).toHaveLength(1);
    expect(await one.fingerprint('turn')).not.toBe(fingerprint);
    expect(await one.touch('turn', fingerprint)).toBe(false);
    for (const name of ['x', 'x', 'turn']) await one.remove(name);
    expect(await other.names()).toEqual([]);
    expect(await one.touch('turn')).toBe(false);
    writeFileSync(join(folder, 'large'), 'x'.repeat(5000));
    mkdirSync(join(folder, 'folder'));
    expect([await one.read('large'), await one.read('folder')]).toEqual(['', '']);
  });

  test('counts a tree as du does', async () => {
    const { folder } = ganesha.fresh();
    mkdirSync(join(folder, 'a', 'b'), { recursive: true });
    for (let i = 0; i < 300; i++) writeFileSync(join(folder, 'a', `${i}`), Buffer.alloc(i * 100, 1));
    writeFileSync(join(folder, 'a', 'b', 'large'), Buffer.alloc(3 * MiB, 1));
    linkSync(join(folder, 'a', 'b', 'large'), join(folder, 'again'));
    symlinkSync('/', join(folder, 'everything'));
    using client = await connect(folder);
    const du = diskUsage(folder);
    expect(await countTree(client.nfs, client.root, {})).toEqual({ bytes: du, complete: true });
    const abort = new AbortController();
    abort.abort(new Error('enough'));
    await expect(countTree(client.nfs, client.root, { signal: abort.signal })).rejects.toThrow();
  });

  test('grants more than half of the rest to at most one of two concurrent members', async () => {
    const { folder } = ganesha.fresh();
    using a = await connect(folder);
    using b = await connect(folder);
    await writeBase(filesOf(a, 'a'), { epoch: 1, used: 0, counting: false, countedAt: 0 });
    const clock = systemClock();
    const nodes = [a, b].map((client, i) => {
      const member = `host-${i}`;
      return createLedger({ files: filesOf(client, member), clock, signal: neverAborts, member, limit: 1000 });
    });
    for (let round = 0; round < 20; round++) {
      for (const ledger of nodes) await ledger.setGrant(1, 0);
      for (const ledger of nodes) await ledger.refresh();
      const answers = await Promise.all(nodes.map((ledger) => ledger.raiseGrant(1, 600, 0)));
      expect(answers).toContain('full');
    }
  });

  test('keeps two concurrent writers within the size, and lets them use nearly all of it', async () => {
    const { folder } = ganesha.fresh();
    const [data, ledgerFolder] = [join(folder, 'data'), join(folder, 'ledger')];
    mkdirSync(data);
    mkdirSync(ledgerFolder);
    const limit = 64 * MiB;
    const step = 128 * 1024;
    const clock = systemClock();
    using volume = await connect(data);
    const clients = [await connect(ledgerFolder), await connect(ledgerFolder)];
    const failures: unknown[] = [];
    const quotas = clients.map((client, i): Quota => {
      const member = `host-${i}`;
      const stored = { epoch: 0, growth: 0 };
      return createQuota({
        ledger: createLedger({ files: filesOf(client, member), clock, signal: neverAborts, member, limit }),
        recount: createRecount({
          files: filesOf(client, `${member}.count`),
          clock,
          count: (signal) => countTree(volume.nfs, volume.root, { signal }),
        }),
        storedGrowth: { read: () => stored, write: (epoch, growth) => void Object.assign(stored, { epoch, growth }) },
        clock,
        limit,
        signal: neverAborts,
        failed: (cause) => void failures.push(cause),
      });
    });
    // Both have read the ledger, so they ask at the same time.
    for (const quota of quotas) await quota.admit(0);
    const admitted = await Promise.all(
      quotas.map(async (quota) => {
        for (let bytes = 0; ; bytes += step) {
          const answer = await quota.admit(step).catch((cause: { code?: unknown }) => cause.code);
          if (answer === 'EDQUOT') return bytes;
          quota.recordUsage(step, step);
        }
      }),
    );
    const used = diskUsage(data);
    const sum = admitted.reduce((all, bytes) => all + bytes, used);
    expect(sum).toBeLessThanOrEqual(limit);
    expect(sum).toBeGreaterThan(limit - 4 * grantChunkBytes(limit));
    await Promise.all(quotas.map((quota) => quota.close()));
    const grants = readdirSync(ledgerFolder).filter((name) => name.startsWith('grant.'));
    const texts = grants.map((name) => readFileSync(join(ledgerFolder, name), 'utf8'));
    const granted = texts.map((text) => (JSON.parse(text) as { granted: number }).granted);
    expect(granted.reduce((all, bytes) => all + bytes, used)).toBe(sum);
    expect(Math.min(...admitted)).toBeGreaterThan(0);
    expect(failures).toEqual([]);
    for (const client of clients) client[Symbol.dispose]();
  });

  test('gives a mount its own part, written as the store, and shows it the usage', async () => {
    const { folder } = ganesha.fresh();
    const [data, ledgerFolder] = [join(folder, 'data'), join(folder, 'ledger')];
    mkdirSync(data);
    mkdirSync(ledgerFolder, { mode: 0o700 });
    chownSync(ledgerFolder, 4711, 4711);
    writeFileSync(join(data, 'file'), Buffer.alloc(MiB, 1));
    using volume = await connect(data);
    using ledgerExport = await connect(ledgerFolder);
    const stored = { epoch: 0, growth: 0 };
    const unmount = new AbortController();
    const [root, ledger] = [volume.root, ledgerExport.root].map((handle) => Buffer.from(handle).toString('base64'));
    const quota = createMountQuota({
      nfs: volume.nfs,
      quota: { bytes: 64 * MiB, ledger: ledger ?? '', host: 'node-1' },
      mount: 'stowage:sv1-x.ab',
      spec: { root: root ?? '', squash: 'all', uid: 4711, gid: 4711, softMs: 10_000 },
      storedGrowth: { read: () => stored, write: (epoch, growth) => void Object.assign(stored, { epoch, growth }) },
      signal: unmount.signal,
      failed: (cause) => expect.fail(String(cause)),
    });
    await quota.admit(2 * MiB);
    const { bytes, used } = quota.statfs();
    expect(bytes).toBe(64 * MiB);
    expect(used).toBe(diskUsage(data) + 2 * MiB);
    unmount.abort();
    await quota.close();
    const files = readdirSync(ledgerFolder).toSorted();
    expect(files).toEqual(['base', expect.stringMatching(/^grant\.1\.node-1\.[0-9a-f]{12}$/)]);
    for (const file of files) expect(statSync(join(ledgerFolder, file)).uid).toBe(4711);
    expect(stored).toEqual({ epoch: 1, growth: 2 * MiB });
  });

  test('returns to another node the base that was written', async () => {
    const { folder } = ganesha.fresh();
    using a = await connect(folder);
    using b = await connect(folder);
    await writeBase(filesOf(a, 'a'), { epoch: 7, used: 2 ** 50, counting: true, countedAt: 5 });
    const clock = systemClock();
    const other = createLedger({ files: filesOf(b, 'b'), clock, signal: neverAborts, member: 'b', limit: 2 ** 51 });
    expect(await other.refresh()).toMatchObject({
      epoch: 7,
      used: 2 ** 50,
      counting: true,
      countedAt: 5,
      limit: 2 ** 51,
      otherGrants: 0,
    });
  });
});
