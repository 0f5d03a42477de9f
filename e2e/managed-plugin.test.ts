import { execFile } from 'node:child_process';
import { existsSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { loadBusybox } from '#testbed/busybox.ts';
import { repository } from '#testbed/component.ts';
import { type Engine, startDockerd } from '#testbed/dockerd.ts';
import { buildImage, imageName } from '#testbed/image.ts';
import { lacks } from '#testbed/lacks.ts';
import { runInside } from '#testbed/machine.ts';
import { eventually } from '#testing/keeper/keeper-process.ts';
import { ganeshaIn, type InnerNfsServer, volumesBelow } from './stowage-container.ts';

const required = ['root', 'docker', 'busybox', 'mount', 'fuse', 'ganesha'] as const;

describe.skipIf(lacks(...required))('Stowage as a managed plugin', () => {
  const end = new AbortController();
  const resources = new AsyncDisposableStack();
  let engine: Engine;
  let nfs: InnerNfsServer;
  let busybox: string;
  const docker = (...words: readonly string[]): Promise<string> => engine.docker(...words);

  beforeAll(async () => {
    const tar = await buildImage(end.signal);
    engine = resources.use(await startDockerd(end.signal, { bridges: true }));
    nfs = resources.use(await ganeshaIn(engine, [{ tag: 'silver' }], end.signal));
    await docker('load', '--quiet', '--input', tar);
    busybox = await loadBusybox(engine, end.signal);
    const clientFolder = await mkdtemp(join(tmpdir(), 'stowage-client-'));
    resources.defer(() => rm(clientFolder, { recursive: true, force: true }));
    await promisify(execFile)(join(repository, 'deploy', 'plugin', 'create.sh'), ['stowage', imageName], {
      // Hides the user's own Docker contexts and credentials.
      env: { PATH: process.env['PATH'], DOCKER_HOST: `unix://${engine.socket}`, DOCKER_CONFIG: clientFolder },
      signal: end.signal,
    });
    const yaml = `stores:\n  silver: ${nfs.uri('silver')}\n`;
    await runInside(
      engine,
      'sh',
      '-c',
      'mkdir -p /etc/stowage && printf %s "$1" >/etc/stowage/stowage.yaml',
      'sh',
      yaml,
    );
    await docker('plugin', 'set', 'stowage', `engine.source=${engine.socket}`);
    await docker('plugin', 'enable', 'stowage');
  }, 300_000);
  afterAll(async () => {
    await resources.disposeAsync();
    end.abort();
  }, 60_000);

  test('serves volumes, can’t be removed while they are in use, and comes back with its engine', {
    timeout: 120_000,
  }, async () => {
    await docker('volume', 'create', '-d', 'stowage', '-o', 'store=silver', 'photos');
    const runOptions = ['--network', 'none', '--stop-signal', 'KILL', '-v', 'photos:/data', busybox];
    await docker('run', '-d', '--name', 'app', '--restart', 'always', ...runOptions, 'sleep', '1000');
    await docker('exec', 'app', 'touch', '/data/before');
    expect(existsSync(join(nfs.folder('silver'), 'photos', 'before'))).toBe(true);
    await expect(docker('plugin', 'disable', 'stowage')).rejects.toThrow('in use');
    await expect(docker('volume', 'rm', 'photos')).rejects.toThrow('in use');

    await engine.stop();
    await engine.start();
    await eventually(
      () => docker('inspect', '--format', '{{.State.Running}}', 'app'),
      (running) => running === 'true',
    );
    await docker('exec', 'app', 'touch', '/data/after');
    expect(await docker('run', '--rm', ...runOptions, 'ls', '/data')).toBe('after\nbefore');

    expect(await volumesBelow(engine, dirname(engine.socket))).not.toEqual([]);
    await docker('rm', '-f', 'app');
    await docker('volume', 'rm', 'photos');
    expect(existsSync(join(nfs.folder('silver'), 'photos'))).toBe(false);
    await docker('plugin', 'disable', 'stowage');
    await docker('plugin', 'rm', 'stowage');
    expect(await volumesBelow(engine, dirname(engine.socket))).toEqual([]);
  });
});
