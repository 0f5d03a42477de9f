import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { repository } from '#testbed/component.ts';
import { startDockerd } from '#testbed/dockerd.ts';
import { lastStage } from '#testbed/dockerfile.ts';
import { needs } from '#testbed/needs.ts';
import { rootfs } from '#testbed/rootfs.ts';
import { runner } from '#testbed/run.ts';
import { exportedByGanesha } from '#testing/exported-folder.ts';
import { eventually } from '#testing/keeper/keeper-process.ts';
import { keepMounts, sourceOf } from '#testing/kept-mount.ts';
import { run } from '#testing/workloads.ts';

/** Adds lines, reads each back, and ends with another status as soon as anything fails. */
const work = `
  i=0
  until [ -e /data/stop ]; do
    i=$((i + 1))
    echo "line $i" >>/data/log || exit 3
    [ "$(tail -n 1 /data/log)" = "line $i" ] || exit 4
  done`;

describe.skipIf(needs('root', 'docker', 'fuse', 'ganesha'))('a container that binds a mount itself', () => {
  const end = new AbortController();
  const it = exportedByGanesha();
  let root: string;

  beforeAll(async () => {
    const { packages } = lastStage(readFileSync(join(repository, 'deploy', 'Dockerfile'), 'utf8'));
    ({ tar: root } = await rootfs(packages, runner(end.signal)));
  }, 300_000);
  afterAll(() => end.abort());

  const lines = (): readonly string[] =>
    existsSync(it.on('log')) ? readFileSync(it.on('log'), 'utf8').split('\n').slice(0, -1) : [];

  /** As the container sees it, work goes on after each. */
  async function goesOn(disturb: () => Promise<void>): Promise<void> {
    const before = lines().length;
    await disturb();
    await eventually(
      () => lines().length,
      (count) => count > before,
    );
  }

  test('works through kills, upgrades and another keeper', { timeout: 90_000 }, async () => {
    await using mounts = await keepMounts();
    const mount = await mounts.mount(await sourceOf(it.server, it.folder));
    // Where mounts are not shared, the engine sees only those that were there before it.
    await using engine = await startDockerd(end.signal);
    await engine.docker('import', root, 'plain');
    const bind = ['--network', 'none', '-v', `${mount.at}:/data`];
    const id = await engine.docker('run', '-d', ...bind, 'plain', 'sh', '-c', work);
    await goesOn(() => Promise.resolve());
    for (let i = 0; i < 2; i++) {
      await goesOn(() => mounts.killDataPath());
      await goesOn(() => mounts.upgrade());
    }
    await goesOn(() => mounts.replaceKeeper());
    await goesOn(() => mounts.killDataPath());
    await run('touch', [mount.on('stop')]);
    expect(await engine.docker('wait', id)).toBe('0');
    expect(lines()).toEqual(lines().map((_, i) => `line ${i + 1}`));
  });
});
