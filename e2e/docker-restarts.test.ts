import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { beforeAll, describe, expect, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { suiteResources } from './docker-fixture.ts';
import { type Host, type RemoteNfsServer, startHost, startRemoteNfsServer, stopAtOnceOptions } from './docker-hosts.ts';
import { dataPath, killKeepers, pollOptions, runCli, waitUntilServing } from './nfs-mount-fixture.ts';

/** Appends a line to each volume until a file `stop` exists. Fails at the first error. */
const appendScript = `
  next() {
    line="line $(($(wc -l <$1/log) + 1))"
    echo "$line" >>$1/log || exit 3
    [ "$(tail -n 1 $1/log)" = "$line" ] || exit 4
  }
  touch /a/log /b/log || exit 5
  until [ -e /a/stop ]; do next /a; next /b; done`;
/** Docker retries calls to a plugin that is down for 15 s, and for longer when a container ends. */
const maxPluginRetryMs = 15_000;

describe.skipIf(lacks('docker', 'busybox', 'mount', 'fuse', 'ganesha', 'netns'))('containers that use volumes', () => {
  let server: RemoteNfsServer;
  const { all, signal } = suiteResources();

  beforeAll(async () => {
    server = all.use(await startRemoteNfsServer([{ tag: 'silver' }], signal));
  });

  async function createHost(name: string, args: readonly string[] = []): Promise<Host> {
    const host = all.use(await startHost(name, server, signal, { args }));
    await runCli(host.stowage, 'store', 'add', 'silver', server.uri('silver'));
    return host;
  }

  /** A container that writes to a volume on the server and to a volume of this machine. */
  async function startWorker(host: Host, name: string, ...more: readonly string[]) {
    const volumes = { far: `${name}-far`, near: `${name}-near` };
    await host.docker('volume', 'create', '-d', 'stowage', volumes.far);
    await host.docker('volume', 'create', '-d', 'stowage-local', volumes.near);
    const volumeOptions = ['-v', `${volumes.far}:/a`, '-v', `${volumes.near}:/b`];
    await host.docker(
      'run',
      '-d',
      ...stopAtOnceOptions,
      ...more,
      '--name',
      name,
      ...volumeOptions,
      host.image,
      'sh',
      '-c',
      appendScript,
    );
    const folders = [join(server.folder('silver'), volumes.far), join(host.top, 's', 'stores', 'local', volumes.near)];
    const logs = folders.map((folder) => join(folder, 'log'));
    const linesIn = (log: string): readonly string[] =>
      existsSync(log) ? readFileSync(log, 'utf8').split('\n').slice(0, -1) : [];
    const keepsWriting = async (): Promise<void> => {
      for (const log of logs) {
        const before = linesIn(log).length;
        await expect.poll(() => linesIn(log).length, pollOptions).toBeGreaterThan(before);
      }
    };
    await keepsWriting();
    const ids = await Promise.all(
      Object.values(volumes).map((volume) => host.docker('volume', 'inspect', '-f', '{{.Status.id}}', volume)),
    );
    expect(await mountsOf(host, ids)).toHaveLength(4);
    return {
      keepsWriting,
      /**
       * Ends the container, and checks that all written lines are in the volumes and that nothing else is left. After a
       * crash of the engine, a volume may stay mounted for a while, because Stowage can't know the engine's mount
       * count. Such a mount doesn't count as use.
       */
      end: async (after: 'order' | 'crash' = 'order'): Promise<void> => {
        // The container may see the file and end before `touch` has returned.
        await host.docker('exec', name, 'touch', '/a/stop').catch(() => undefined);
        expect(await host.docker('wait', name)).toBe('0');
        for (const log of logs) expect(linesIn(log)).toEqual(linesIn(log).map((_, i) => `line ${i + 1}`));
        if (after === 'order') await expect.poll(() => mountsOf(host, ids), pollOptions).toEqual([]);
        for (const volume of Object.values(volumes))
          expect(await host.errorOf('volume', 'rm', volume)).toMatch(/in use/);
        await host.docker('rm', name);
        for (const volume of Object.values(volumes)) await host.docker('volume', 'rm', volume);
        expect(await mountsOf(host, ids)).toEqual([]);
      },
    };
  }

  const mountsOf = async (host: Host, ids: readonly string[]): Promise<readonly string[]> =>
    (await host.mounts()).filter((path) => ids.some((id) => path.endsWith(id)));
  const stateOf = (host: Host, container: string): Promise<string> =>
    host.docker('inspect', '-f', '{{.State.Status}}', container);

  describe('on one host', () => {
    let host: Host;
    beforeAll(async () => {
      host = await createHost('one');
    }, 60_000);

    test.each(['stop', 'kill'] as const)('start again with their data after a %s of their engine', async (action) => {
      const one = await startWorker(host, `engine-${action}`);
      await host.engine[action]();
      await host.engine.start();
      expect(await stateOf(host, `engine-${action}`)).toBe('exited');
      expect(await host.errorOf('volume', 'rm', `engine-${action}-far`)).toMatch(/in use/);
      await host.docker('start', `engine-${action}`);
      await one.keepsWriting();
      await one.end(action === 'kill' ? 'crash' : 'order');
    });

    test('keep working and can be restarted while Stowage restarts', async () => {
      const [one, two] = [await startWorker(host, 'through'), await startWorker(host, 'restarted')];
      await host.stowage.stop();
      await one.keepsWriting();
      await two.keepsWriting();
      const since = performance.now();
      const restarting = host.docker('restart', 'restarted');
      await host.start();
      await restarting;
      expect(performance.now() - since).toBeLessThan(maxPluginRetryMs);
      await one.keepsWriting();
      await two.keepsWriting();
      await one.end();
      await two.end();
    });

    test('can be started and stopped while Stowage restarts', { timeout: 120_000 }, async () => {
      await host.docker('volume', 'create', '-d', 'stowage', 'always-there');
      const id = await host.docker('volume', 'inspect', '-f', '{{.Status.id}}', 'always-there');
      const use = (...words: readonly string[]): Promise<string> =>
        host.docker('run', '--rm', ...stopAtOnceOptions, '-v', 'always-there:/data', host.image, ...words);
      await use('sh', '-c', 'echo text >/data/file');
      let isOver = false;
      const containerLoops = Array.from({ length: 4 }, async () => {
        while (!isOver) expect(await use('cat', '/data/file')).toBe('text');
      });
      const restarting = async (): Promise<void> => {
        try {
          for (let i = 0; i < 4; i += 1) {
            await host.start();
            // Each restart then interrupts another moment of the commands.
            await use('true');
          }
        } finally {
          isOver = true;
        }
      };
      const ended = await Promise.allSettled([restarting(), ...containerLoops]);
      expect(ended.filter(({ status }) => status === 'rejected')).toEqual([]);
      await host.docker('volume', 'rm', 'always-there');
      expect(await mountsOf(host, [id])).toEqual([]);
    });

    test('keep working when the data path is killed', async () => {
      const one = await startWorker(host, 'served');
      const { pid } = await waitUntilServing(host.stowage);
      process.kill(pid, 'SIGKILL');
      await one.keepsWriting();
      await expect.poll(() => dataPath(host.stowage), pollOptions).not.toMatchObject({ pid });
      await one.keepsWriting();
      await one.end();
    });

    test('start again after the keeper and its mounts were killed with the data path', async () => {
      const one = await startWorker(host, 'held');
      await waitUntilServing(host.stowage);
      killKeepers(host.top);
      // Open files are lost, and reads and writes on them fail.
      expect(await host.docker('wait', 'held')).not.toBe('0');
      await host.docker('start', 'held');
      await one.keepsWriting();
      await one.end();
    });

    test('come back after a reboot of the machine', async () => {
      const [one, two] = [await startWorker(host, 'manual'), await startWorker(host, 'always', '--restart', 'always')];
      const pids = await Promise.all(
        ['manual', 'always'].map((name) => host.docker('inspect', '-f', '{{.State.Pid}}', name)),
      );
      await host.engine.kill();
      host.stowage.signal('SIGKILL');
      await host.stowage.ended();
      await host.inside('kill', '-9', ...pids);
      await host.dropMounts();
      expect(await host.mounts()).toEqual([]);
      await Promise.all([host.engine.start(), host.start()]);
      await two.keepsWriting();
      expect(await stateOf(host, 'manual')).toBe('exited');
      await host.docker('start', 'manual');
      await one.keepsWriting();
      await one.end('crash');
      await host.docker('update', '--restart', 'no', 'always');
      await two.end('crash');
    });
  });

  describe('of an engine with live-restore', () => {
    let host: Host;
    beforeAll(async () => {
      host = await createHost('live', ['--live-restore']);
    }, 60_000);

    test.each(['stop', 'kill'] as const)(
      'keep working through a %s and restart of the engine, and leave nothing behind',
      async (action) => {
        const one = await startWorker(host, `live-${action}`);
        await host.engine[action]();
        await one.keepsWriting();
        await host.engine.start();
        await one.keepsWriting();
        expect(await stateOf(host, `live-${action}`)).toBe('running');
        await one.end();
      },
    );
  });
});
