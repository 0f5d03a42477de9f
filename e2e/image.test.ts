import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { repository } from '#testbed/component.ts';
import { type Engine, startDockerd } from '#testbed/dockerd.ts';
import { buildImage, imageName } from '#testbed/image.ts';
import { lacks } from '#testbed/lacks.ts';

const { version } = JSON.parse(readFileSync(join(repository, 'package.json'), 'utf8')) as { version: string };

describe.skipIf(lacks('root', 'docker'))('the container image', () => {
  const end = new AbortController();
  let engine: Engine;

  beforeAll(async () => {
    const tar = await buildImage(end.signal);
    engine = await startDockerd(end.signal);
    await engine.docker('load', '--input', tar);
  }, 300_000);

  afterAll(async () => {
    await engine?.[Symbol.asyncDispose]();
    end.abort();
  });

  const inspect = (name: string, field: string): Promise<string> =>
    engine.docker('inspect', '--format', `{{${field}}}`, name);

  /** Waits until the health check succeeds. Fails as soon as the container ends, with its output. */
  async function untilHealthy(name: string): Promise<void> {
    const signal = AbortSignal.timeout(45_000);
    while ((await inspect(name, '.State.Health.Status')) !== 'healthy') {
      if ((await inspect(name, '.State.Running')) !== 'true') throw new Error(await engine.docker('logs', name));
      await delay(200, undefined, { signal });
    }
  }

  async function start(name: string, ...flags: readonly string[]): Promise<void> {
    const volume = ['-v', `${name}:/var/lib/stowage`];
    await engine.docker(
      'run',
      '-d',
      '--name',
      name,
      '--network',
      'none',
      '--health-interval',
      '1s',
      ...volume,
      ...flags,
      imageName,
    );
  }

  test.each(['0', '7878', '65519'])('contains V8’s compile cache of the program, for user %s', async (user) => {
    const options = ['--read-only', '--user', user, '--env', 'NODE_DEBUG_NATIVE=COMPILE_CACHE', '--entrypoint', 'sh'];
    const words = ['run', '--rm', '--network', 'none', ...options, imageName, '-c', 'stowage --version 2>&1'];
    expect(await engine.docker(...words)).toMatch(/V8 code cache for ESM \S+\/stowage\.mjs was accepted/);
  });

  test('prints its version', async () => {
    const output = await engine.docker('run', '--rm', '--network', 'none', imageName, '--version');
    expect(output).toContain(version);
  });

  test('becomes healthy as an ordinary user', async () => {
    await start('plain');
    await untilHealthy('plain');
    expect(await engine.docker('exec', 'plain', 'id', '-u')).toBe('7878');
    expect(await engine.docker('logs', 'plain')).toMatch(/^stowage ready/m);
  });

  test('stops soon after SIGTERM, and keeps its volumes', async () => {
    await start('kept');
    await untilHealthy('kept');
    await engine.docker('exec', 'kept', 'stowage', 'volume', 'create', 'survivor', '--json');
    const since = performance.now();
    await engine.docker('stop', '--time', '30', 'kept');
    // After 30 s, Docker would kill the container.
    expect(performance.now() - since).toBeLessThan(25_000);
    expect(await inspect('kept', '.State.ExitCode')).toBe('0');
    await engine.docker('start', 'kept');
    await untilHealthy('kept');
    const volumes = await engine.docker('exec', 'kept', 'stowage', 'volume', 'list', '--json');
    expect(volumes).toContain('survivor');
  });

  // The flags at the top of deploy/Dockerfile, without the host folder, because the engine has its own mounts.
  const mounting = [
    '--user',
    '0',
    '--cap-add',
    'SYS_ADMIN',
    '--security-opt',
    'apparmor=unconfined',
    '-v',
    '/dev:/dev',
  ];
  const loops = ['--device-cgroup-rule', 'b 7:* rmw', '--device', '/dev/loop-control'];

  test.skipIf(lacks('loop', 'ext4'))('mounts as root with a single capability', async () => {
    await start('mounter', ...mounting, ...loops);
    await untilHealthy('mounter');
    const stowage = (...args: readonly string[]): Promise<string> =>
      engine.docker('exec', 'mounter', 'stowage', ...args);
    await engine.docker('exec', 'mounter', 'mkdir', '/var/lib/stowage/images');
    await stowage('store', 'add', 'images', 'local:///var/lib/stowage/images?layout=image');
    await stowage('volume', 'create', 'images/x', '--size', '64M');
    await stowage('mount', 'images/x', '/data');
    try {
      expect(await engine.docker('exec', 'mounter', 'stat', '-f', '-c', '%T', '/data')).toBe('ext2/ext3');
    } finally {
      await stowage('unmount', '/data');
    }
    await stowage('volume', 'delete', 'images/x');
    const attached = 'cat /sys/block/loop*/loop/backing_file 2>/dev/null || true';
    expect(await engine.docker('exec', 'mounter', 'sh', '-c', attached)).not.toContain('/var/lib/stowage');
  });
});
