import { existsSync, mkdirSync, rmdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, onTestFinished, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { exportedByGanesha } from '#testing/exported-folder.ts';
import { eventually } from '#testing/keeper/keeper-process.ts';
import { sourceOf, startKeeperMounts } from '#testing/keeper-mounts.ts';
import { run } from '#testing/workloads.ts';

const mebibyte = 1024 * 1024;

/** Moves the process into a cgroup that allows only this much more memory; beyond it the kernel kills the process. */
function limitMemory(pid: number, bytes: number): void {
  const cgroupV1 = '/sys/fs/cgroup/memory';
  const isVersion1 = existsSync(join(cgroupV1, 'cgroup.procs'));
  const folder = join(isVersion1 ? cgroupV1 : '/sys/fs/cgroup', `stowage-test-${process.pid}`);
  mkdirSync(folder);
  onTestFinished(() => rmdirSync(folder));
  writeFileSync(join(folder, isVersion1 ? 'memory.limit_in_bytes' : 'memory.max'), String(bytes));
  writeFileSync(join(folder, 'cgroup.procs'), String(pid));
}

describe.skipIf(lacks('root', 'fuse', 'ganesha'))('a data path with little memory', () => {
  const exported = exportedByGanesha();

  test('is killed by the kernel, and users of its mounts notice nothing', { timeout: 60_000 }, async () => {
    await using mounts = await startKeeperMounts();
    const mount = await mounts.mount(await sourceOf(exported.server, exported.folder));
    const { active, takeovers } = await mounts.ready();
    const pid = active?.pid ?? expect.fail();
    limitMemory(pid, 2 * mebibyte);
    await run('dd', ['if=/dev/urandom', `of=${exported.on('source')}`, 'bs=1M', 'count=32', 'status=none']);
    // The kernel kills it at any point of its work.
    await run('cp', [mount.on('source'), mount.on('copy')]);
    await run('cmp', [exported.on('source'), exported.on('copy')]);
    const after = await mounts.ready();
    expect(after.takeovers).toBeGreaterThan(takeovers);
    expect(after.active?.pid).not.toBe(pid);
    await eventually(
      () => mounts.log(),
      (log) => log.includes(`"a data path is gone"`) && log.includes(`"pid":${pid}`),
    );
  });
});
