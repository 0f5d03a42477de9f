import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { block, blockSize } from '#testing/block-writer.ts';
import { exportedByGanesha } from '#testing/exported-folder.ts';
import { eventually } from '#testing/keeper/keeper-process.ts';
import { sourceOf, startKeeperMounts } from '#testing/keeper-mounts.ts';
import { startLosingProxy } from '#testing/losing-proxy.ts';
import { run, runFioVerify, runModelWorkload } from '#testing/workloads.ts';

const writer = join(import.meta.dirname, '..', 'testing', 'block-writer.ts');
/** A restarted server is recognized by the second of its start. */
const verifierChangeMs = 1_100;

describe.skipIf(lacks('root', 'fuse', 'ganesha', 'fio'))('a server that is killed and restarted', () => {
  const exported = exportedByGanesha();

  /**
   * Each kill loses the server's memory while two programs write and sync: in the end every block must be present,
   * because each was written until fsync(2) confirmed it.
   */
  async function expectNoLoss(
    whileDown: (mounts: Awaited<ReturnType<typeof startKeeperMounts>>) => Promise<unknown>,
  ): Promise<void> {
    const file = exported.on('file');
    writeFileSync(file, '');
    const source = await sourceOf(exported.server, exported.folder);
    await using proxy = await startLosingProxy({ host: exported.server.host, port: exported.server.nfsPort });
    await using mounts = await startKeeperMounts();
    const { at, on } = await mounts.mount({ ...source, host: proxy.host, port: proxy.port });
    const [crashes, blocks] = [4, 320];
    const work = { isDone: false };
    const writing = Promise.all(
      [0, blocks].map((first) => run(process.execPath, [writer, on('file'), `${first}`, `${blocks}`])),
    ).finally(() => {
      work.isDone = true;
    });
    writing.catch(() => undefined);
    for (let crash = 0; crash < crashes; crash++) {
      await eventually(
        () => proxy.atRisk,
        (count) => count >= 3 + crash || work.isDone,
      );
      expect(work.isDone).toBe(false);
      await proxy.down();
      await exported.server.kill();
      proxy.lose(file);
      await Promise.all([whileDown(mounts), sleep(verifierChangeMs)]);
      await exported.server.restart();
      await proxy.up();
    }
    await writing;
    const found = readFileSync(file);
    expect(found.length).toBe(2 * blocks * blockSize);
    for (let i = 0; i < 2 * blocks; i++)
      if (!found.subarray(i * blockSize, (i + 1) * blockSize).equals(block(i))) expect.fail(`block ${i} is another`);
    await run('umount', [at]);
  }

  test('loses no synced data', { timeout: 90_000 }, () => expectNoLoss(() => Promise.resolve()));

  test('loses no synced data if the data path is killed meanwhile, too', { timeout: 90_000 }, () =>
    expectNoLoss((mounts) => mounts.killDataPath()),
  );

  test('is waited for by a data path that took over meanwhile', { timeout: 90_000 }, async () => {
    await using mounts = await startKeeperMounts();
    const { at, on } = await mounts.mount(await sourceOf(exported.server, exported.folder));
    await run('mkdir', [on('names')]);
    const work = { isDone: false };
    const working = Promise.all([runFioVerify(at, mounts.folder), runModelWorkload(on('names'), 1, 800)]).finally(
      () => {
        work.isDone = true;
      },
    );
    working.catch(() => undefined);
    await eventually(
      () => run('ls', [at]),
      ({ stdout }) => stdout.includes('x.0.0'),
    );
    await exported.server.kill();
    for (let kills = 0; kills < 2; kills++) await mounts.killDataPath();
    expect(work.isDone).toBe(false);
    await exported.server.restart();
    await working;
    await run('umount', [at]);
  });
});
