import { describe, expect, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { exportedByGanesha } from '#testing/exported-folder.ts';
import {
  type KeeperMount,
  type KeeperMounts,
  runWithFaults,
  sourceOf,
  startKeeperMounts,
} from '#testing/keeper-mounts.ts';
import { run, runFioVerify, runModelWorkload } from '#testing/workloads.ts';

describe.skipIf(lacks('root', 'fuse', 'ganesha', 'fio'))('applications see correct data and no errors', () => {
  const exported = exportedByGanesha();

  async function mountExported(mounts: KeeperMounts): Promise<KeeperMount> {
    return await mounts.mount(await sourceOf(exported.server, exported.folder));
  }

  let rounds = 0;
  /** Several processes change names and contents, each in its own directory. */
  async function changeNames({ on }: KeeperMount): Promise<void> {
    const round = ++rounds;
    const folders = Array.from({ length: 4 }, (_, i) => on(`round-${round}-${i}`));
    await run('mkdir', folders);
    await Promise.all(folders.map((folder, i) => runModelWorkload(folder, round * folders.length + i, 100)));
  }

  test('while the data path is upgraded', { timeout: 120_000 }, async () => {
    await using mounts = await startKeeperMounts();
    const mount = await mountExported(mounts);
    const bothWorkloads = () => Promise.all([runFioVerify(mount.at, mounts.folder), changeNames(mount)]);
    await runWithFaults(12, () => mounts.upgrade(), bothWorkloads);
    // Each data path stopped voluntarily, between two requests.
    expect(mounts.log()).not.toContain('did not stop');
    await run('umount', [mount.at]);
  });

  test('while the data path is killed', { timeout: 120_000 }, async () => {
    await using mounts = await startKeeperMounts();
    const mount = await mountExported(mounts);
    await runWithFaults(
      12,
      () => mounts.killDataPath(),
      () => changeNames(mount),
    );
    await run('umount', [mount.at]);
  });

  test('while the data path hangs', async () => {
    await using mounts = await startKeeperMounts();
    const mount = await mountExported(mounts);
    await runWithFaults(
      1,
      () => mounts.hangDataPath(),
      () => runFioVerify(mount.at, mounts.folder),
    );
    await run('umount', [mount.at]);
  });

  test('while the keeper is replaced and killed', { timeout: 120_000 }, async () => {
    await using mounts = await startKeeperMounts();
    const mount = await mountExported(mounts);
    const bothWorkloads = () => Promise.all([runFioVerify(mount.at, mounts.folder), changeNames(mount)]);
    let count = 0;
    await runWithFaults(6, () => (++count % 3 === 0 ? mounts.killKeeper() : mounts.replaceKeeper()), bothWorkloads);
    // The last keeper can still start another data path.
    await runWithFaults(1, () => mounts.killDataPath(), bothWorkloads);
    await run('umount', [mount.at]);
  });
});
