import { copyFile, mkdir, mkdtempDisposable } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { repository } from '#testbed/component.ts';
import { lacks } from '#testbed/lacks.ts';
import { rootfs } from '#testbed/rootfs.ts';
import { runner } from '#testbed/run.ts';

/**
 * The names that the profile defines, according to Debian's apparmor_parser. Works without a kernel that enforces
 * profiles.
 */
async function compileProfile(profile: string, signal: AbortSignal): Promise<string> {
  const run = runner(signal);
  const { tar } = await rootfs(['apparmor'], run);
  await using work = await mkdtempDisposable(join(tmpdir(), 'stowage-apparmor-'));
  await run('tar', ['-xf', tar, '-C', work.path, '--numeric-owner']);
  await mkdir(join(work.path, 'tmp'), { recursive: true });
  await copyFile(profile, join(work.path, 'tmp', 'profile'));
  const parser = ['apparmor_parser', '--base', '/etc/apparmor.d', '--skip-kernel-load', '--skip-cache'];
  await run('chroot', [work.path, ...parser, '/tmp/profile']);
  return await run('chroot', [work.path, ...parser, '--names', '/tmp/profile']);
}

describe.skipIf(lacks('root', 'docker'))('the AppArmor profile', () => {
  test('is accepted by the AppArmor compiler', { timeout: 120_000 }, async () => {
    const profile = join(repository, 'deploy', 'apparmor', 'stowage');
    expect(await compileProfile(profile, new AbortController().signal)).toBe('stowage\n');
  });
});
