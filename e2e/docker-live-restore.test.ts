import { execFile } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { mkdtemp, rm, symlink } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import { loadBusybox } from '#testbed/busybox.ts';
import { repository } from '#testbed/component.ts';
import { type Engine, startDockerd } from '#testbed/dockerd.ts';
import { buildImage, imageName } from '#testbed/image.ts';
import { lacks } from '#testbed/lacks.ts';
import { runInside } from '#testbed/machine.ts';
import { eventually } from '#testing/keeper/keeper-process.ts';
import { createApi } from '#testing/server.ts';
import { appendLinesScript } from './docker-fixture.ts';
import { ganeshaIn, type InnerNfsServer, startStowageIn } from './stowage-container.ts';

const required = ['root', 'docker', 'busybox', 'mount', 'fuse', 'ganesha'] as const;
const forms = ['a container', 'a managed plugin'] as const;

describe.skipIf(lacks(...required))('an engine that restarts while its containers keep running', () => {
  describe.each(forms)('with Stowage as %s', (form) => {
    const end = new AbortController();
    const resources = new AsyncDisposableStack();
    let engine: Engine;
    let nfs: InnerNfsServer;
    let busybox: string;
    let plugin: string;
    const docker = (...words: readonly string[]): Promise<string> => engine.docker(...words);

    async function startContainer(): Promise<void> {
      await startStowageIn(engine, imageName);
      await docker('exec', 'stowage', 'stowage', 'store', 'add', 'silver', nfs.uri('silver'));
      plugin = join(engine.plugins, 'stowage.sock');
    }

    async function startPlugin(): Promise<void> {
      const clientFolder = await mkdtemp(join(tmpdir(), 'stowage-client-'));
      resources.defer(() => rm(clientFolder, { recursive: true, force: true }));
      await promisify(execFile)(join(repository, 'deploy', 'plugin', 'create.sh'), ['stowage', imageName], {
        // Hides the user's own Docker contexts and credentials.
        env: { PATH: process.env['PATH'], DOCKER_HOST: `unix://${engine.socket}`, DOCKER_CONFIG: clientFolder },
        signal: end.signal,
      });
      const yaml = `stores:\n  silver: ${nfs.uri('silver')}\n`;
      await runInside(engine, 'sh', '-c', 'printf %s "$1" >/etc/stowage/stowage.yaml', 'sh', yaml);
      await docker(
        'plugin',
        'set',
        'stowage',
        `engine.source=${engine.socket}`,
        `run.source=${dirname(engine.socket)}`,
      );
      await docker('plugin', 'enable', 'stowage');
      const id = await docker('plugin', 'inspect', '--format', '{{.Id}}', 'stowage');
      // A symlink with a short path, because the length of a socket path is limited.
      await symlink(join(engine.plugins, id), join(clientFolder, 'plugin'));
      plugin = join(clientFolder, 'plugin', 'stowage.sock');
    }

    beforeAll(async () => {
      const tar = await buildImage(end.signal);
      engine = resources.use(await startDockerd(end.signal, { bridges: true, args: ['--live-restore'] }));
      nfs = resources.use(await ganeshaIn(engine, [{ tag: 'silver' }], end.signal));
      await docker('load', '--quiet', '--input', tar);
      busybox = await loadBusybox(engine, end.signal);
      await runInside(engine, 'mkdir', '-p', '/var/lib/stowage', '/etc/stowage');
      await (form === 'a container' ? startContainer() : startPlugin());
    }, 300_000);
    afterAll(async () => {
      await resources.disposeAsync();
      end.abort();
    }, 60_000);

    const loggedLines = (): readonly string[] => {
      const log = join(nfs.folder('silver'), 'photos', 'log');
      return existsSync(log) ? readFileSync(log, 'utf8').split('\n').slice(0, -1) : [];
    };
    const expectMoreLines = async (): Promise<void> => {
      const before = loggedLines().length;
      await eventually(
        async () => loggedLines().length,
        (count) => count > before + 10,
      );
    };
    /** Calls Remove as an engine would, but without the engine's check for containers. Returns the error message. */
    const remove = async (volume: string): Promise<string> => {
      const { text } = await createApi({ socketPath: plugin }).post('/VolumeDriver.Remove', { Name: volume });
      return JSON.parse(text).Err;
    };
    const expectDeleteRefused = async (volume: string, container: string): Promise<void> => {
      const message = await eventually(
        () => remove(volume),
        (error) => !error.includes('does not answer'),
      );
      expect(message).toContain(
        `volume 'silver/${volume}' cannot be deleted: it is used by container ${container} on `,
      );
    };

    test('is followed after its restart, and volumes of its containers are not deleted', {
      timeout: 180_000,
    }, async () => {
      for (const name of ['photos', 'films'])
        await docker('volume', 'create', '-d', 'stowage', '-o', 'store=silver', name);
      await docker(
        'run',
        '-d',
        '--name',
        'writer',
        '--network',
        'none',
        '-v',
        'photos:/data',
        busybox,
        'sh',
        '-c',
        appendLinesScript,
      );
      onTestFinished(async () => void (await docker('rm', '-f', 'writer', 'stopped').catch(() => undefined)));
      await expectMoreLines();

      await engine.stop();
      await engine.start();
      await expectMoreLines();
      await docker('create', '--name', 'stopped', '--network', 'none', '-v', 'films:/data', busybox, 'true');
      await expectDeleteRefused('films', 'stopped');
      await expectDeleteRefused('photos', 'writer');
      expect(await docker('inspect', '--format', '{{.State.Running}}', 'writer')).toBe('true');

      // Not by `exec`: the kernel could kill touch(1) when the container's first process ends.
      await docker('run', '--rm', '--network', 'none', '-v', 'photos:/data', busybox, 'touch', '/data/stop');
      expect(await docker('wait', 'writer')).toBe('0');
      const lines = loggedLines();
      expect(lines).toEqual(lines.map((_, index) => `line ${index + 1}`));
      await docker('rm', 'writer', 'stopped');
      await docker('volume', 'rm', 'photos', 'films');
      if (form === 'a managed plugin') return;
      // An engine with live-restore does not remove the containers of the data path.
      expect(await docker('ps', '-aq', '--filter', 'label=stowage.dev/keeper')).not.toBe('');
      await docker('stop', 'stowage');
      expect(await docker('ps', '-aq', '--filter', 'label=stowage.dev/keeper')).toBe('');
    });
  });
});
