import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import { parse } from 'yaml';
import { loadBusybox } from '#testbed/busybox.ts';
import { repository } from '#testbed/component.ts';
import { type Engine, startDockerd } from '#testbed/dockerd.ts';
import { buildImage, imageName } from '#testbed/image.ts';
import { lacks } from '#testbed/lacks.ts';
import { runInside } from '#testbed/machine.ts';
import { eventually } from '#testing/keeper/keeper-process.ts';
import { appendLinesScript } from './docker-fixture.ts';
import {
  documentedRunWords,
  ganeshaIn,
  type InnerNfsServer,
  startStowageIn,
  volumesBelow,
} from './stowage-container.ts';

interface Service {
  readonly [key: string]: string | boolean | readonly string[];
}

test('compose.yaml and the documented docker run command agree', () => {
  const text = readFileSync(join(repository, 'deploy', 'compose.yaml'), 'utf8');
  const defaults = text.replaceAll(/\$\{\w+:-(\w+)\}/g, '$1');
  const { services } = parse(defaults) as { readonly services: { readonly stowage: Service } };
  const flags: Readonly<Record<string, string>> = {
    container_name: '--name',
    restart: '--restart',
    user: '--user',
    network_mode: '--network',
    cap_drop: '--cap-drop',
    cap_add: '--cap-add',
    devices: '--device',
    security_opt: '--security-opt',
    volumes: '-v',
    read_only: '--read-only',
    stop_grace_period: '--stop-timeout',
    image: '',
    command: '',
  };
  const words = Object.entries(services.stowage).flatMap(([key, value]) =>
    [value].flat().map((item) => {
      const flag = flags[key] ?? expect.fail(`unknown key: ${key}`);
      const text = key === 'stop_grace_period' ? String(item).replace(/s$/, '') : String(item);
      return item === true ? flag : `${flag} ${text}`.trim();
    }),
  );
  const documented = documentedRunWords()
    .join(' ')
    .replace('run -d ', '')
    .split(/ (?=-)| (?=stowage node$)|(?<= stowage) (?=node$)/);
  expect(documented.toSorted()).toEqual(words.toSorted());
});

const nextImage = 'stowage:next';
const exports = [{ tag: 'silver' }, { tag: 'low', privilegedPort: true }, { tag: 'far' }] as const;
const required = ['root', 'docker', 'busybox', 'mount', 'fuse', 'ganesha'] as const;

describe.skipIf(lacks(...required))('Stowage as a container', () => {
  const end = new AbortController();
  const resources = new AsyncDisposableStack();
  let engine: Engine;
  let nfs: InnerNfsServer;
  let busybox: string;

  const docker = (...words: readonly string[]): Promise<string> => engine.docker(...words);
  const stowage = (...words: readonly string[]): Promise<string> => docker('exec', 'stowage', 'stowage', ...words);
  const keepers = async (name = 'host'): Promise<readonly string[]> =>
    (await docker('ps', '-q', '--no-trunc', '--filter', `label=stowage.dev/keeper=${name}`))
      .split('\n')
      .filter(Boolean);
  const keeper = async (name = 'host'): Promise<string> => (await keepers(name))[0] ?? expect.fail('no keeper');
  const inspect = async (container: string, field: string): Promise<unknown> =>
    JSON.parse(await docker('inspect', '--format', `{{json ${field}}}`, container));
  const runWithVolume = (volume: string, ...words: readonly string[]): Promise<string> =>
    docker('run', '--rm', '--network', 'none', '-v', `${volume}:/data`, busybox, ...words);
  const linesIn = (log: string): readonly string[] =>
    existsSync(log) ? readFileSync(log, 'utf8').split('\n').slice(0, -1) : [];
  const mountOf = (container: string): Promise<string> => docker('exec', container, 'grep', ' /data ', '/proc/mounts');

  beforeAll(async () => {
    const tar = await buildImage(end.signal);
    engine = resources.use(await startDockerd(end.signal, { bridges: true }));
    nfs = resources.use(await ganeshaIn(engine, exports, end.signal));
    await docker('load', '--quiet', '--input', tar);
    busybox = await loadBusybox(engine, end.signal);
    // A new version of Stowage is a new image.
    const createdContainer = await docker('create', imageName);
    await docker('commit', '--change', 'LABEL org.opencontainers.image.version=next', createdContainer, nextImage);
    await docker('rm', '-v', createdContainer);
    await runInside(engine, 'mkdir', '-p', '/var/lib/stowage/disk', '/etc/stowage');
    await startStowageIn(engine, imageName);
    await stowage('store', 'add', 'disk', 'local:///var/lib/stowage/disk');
    await stowage('store', 'add', 'silver', nfs.uri('silver'));
    await stowage('store', 'add', 'low', `${nfs.uri('low')}&sourceport=privileged`);
  }, 300_000);
  afterAll(async () => {
    await resources.disposeAsync();
    end.abort();
  }, 60_000);

  test('can be replaced, and then its data path, while containers write', { timeout: 120_000 }, async () => {
    await docker('volume', 'create', '-d', 'stowage', '-o', 'store=silver', 'photos');
    await docker('volume', 'create', '-d', 'stowage-local', '-o', 'store=disk', 'things');
    const logs = {
      photos: join(nfs.folder('silver'), 'photos', 'log'),
      things: await runInside(engine, 'readlink', '-f', '/var/lib/stowage/disk/things').then((path) =>
        join(path, 'log'),
      ),
    };
    const counts = async (): Promise<readonly number[]> => [
      linesIn(logs.photos).length,
      Number(await runInside(engine, 'sh', '-c', `cat ${logs.things} 2>/dev/null | wc -l`)),
    ];
    for (const volume of ['photos', 'things'] as const)
      await docker(
        'run',
        '-d',
        '--name',
        volume,
        '--network',
        'none',
        '-v',
        `${volume}:/data`,
        busybox,
        'sh',
        '-c',
        appendLinesScript,
      );
    /** The containers keep writing after the disturbance. */
    const keepWriting = async (disturb: () => Promise<unknown>): Promise<void> => {
      await disturb();
      const before = await counts();
      await eventually(counts, (countsNow) => countsNow.every((count, i) => count > (before[i] ?? 0)));
    };
    await keepWriting(() => Promise.resolve());
    const [first, mounted] = [await keeper(), await mountOf('photos')];
    await keepWriting(() => docker('rm', '-f', 'stowage'));
    await keepWriting(() => startStowageIn(engine, nextImage));
    expect([await keepers(), await mountOf('photos')]).toEqual([[first], mounted]);
    // The new Stowage knows which containers use the volume.
    await expect(stowage('volume', 'delete', 'silver/photos')).rejects.toThrow('container photos');
    expect(await runWithVolume('photos', 'tail', '-n', '1', '/data/log')).toMatch(/^line \d+$/);

    await keepWriting(() => stowage('client', 'upgrade'));
    const [second, ...others] = await eventually(keepers, (found) => found.length === 1 && found[0] !== first);
    expect([others, await mountOf('photos')]).toEqual([[], mounted]);
    expect(await inspect(second ?? '', '.Image')).toBe(await inspect('stowage', '.Image'));

    await keepWriting(() => docker('stop', 'stowage'));
    await keepWriting(() => docker('start', 'stowage'));
    for (const volume of ['photos', 'things']) {
      await runWithVolume(volume, 'touch', '/data/stop');
      expect(await docker('wait', volume)).toBe('0');
      const lines = (await runWithVolume(volume, 'cat', '/data/log')).split('\n');
      expect(lines).toEqual(lines.map((_, i) => `line ${i + 1}`));
      await docker('rm', volume);
      await docker('volume', 'rm', volume);
    }
  });

  test('starts the data path without capabilities and with access to its own folder only', async () => {
    await docker('volume', 'create', '-d', 'stowage', '-o', 'store=silver', 'plain');
    await docker('run', '-d', '--name', 'plain', '--network', 'none', '-v', 'plain:/data', busybox, 'sleep', '1000');
    onTestFinished(async () => {
      await docker('rm', '-f', 'plain');
      await docker('volume', 'rm', 'plain');
    });
    const container = await keeper();
    const folder = '/run/stowage/keepers/host';
    expect(await inspect(container, '.Mounts')).toEqual([
      expect.objectContaining({ Type: 'bind', Source: folder, Destination: folder }),
    ]);
    expect(await inspect(container, '.Config.User')).toMatch(/^6\d{4}:6\d{4}$/);
    expect(await inspect(container, '.HostConfig')).toMatchObject({
      Privileged: false,
      ReadonlyRootfs: true,
      AutoRemove: true,
      RestartPolicy: { Name: 'no' },
      CapDrop: ['ALL'],
      NetworkMode: 'host',
    });
    expect((await inspect(container, '.HostConfig.CapAdd')) ?? []).toEqual([]);
    for (const status of await statusesOf(container)) {
      expect(status).toMatch(/^CapEff:\t0+$/m);
      expect(status).toMatch(/^CapBnd:\t0+$/m);
      expect(status).toMatch(/^NoNewPrivs:\t1$/m);
      expect(status).toMatch(/^Uid:\t6\d{4}\b/m);
    }
  });

  /** The contents of /proc/PID/status of each process in a container. */
  async function statusesOf(container: string): Promise<readonly string[]> {
    const [, ...rows] = (await docker('top', container)).split('\n');
    const pids = rows.map((row) => row.split(/\s+/)[1] ?? '');
    expect(pids.length).toBeGreaterThanOrEqual(3);
    return await Promise.all(pids.map((pid) => runInside(engine, 'cat', `/proc/${pid}/status`)));
  }

  test('starts a data path that needs a port below 1024 with CAP_NET_BIND_SERVICE only', async () => {
    await docker('volume', 'create', '-d', 'stowage', '-o', 'store=low', 'low');
    await docker('run', '-d', '--name', 'low', '--network', 'none', '-v', 'low:/data', busybox, 'sleep', '1000');
    onTestFinished(async () => {
      await docker('rm', '-f', 'low');
      await docker('volume', 'rm', 'low');
    });
    await docker('exec', 'low', 'touch', '/data/file');
    expect(existsSync(join(nfs.folder('low'), 'low', 'file'))).toBe(true);
    for (const status of await statusesOf(await keeper('host-low'))) {
      expect(status).toMatch(/^CapEff:\t0*400$/m);
      expect(status).toMatch(/^CapBnd:\t0*400$/m);
      expect(status).toMatch(/^Uid:\t6\d{4}\b/m);
    }
  });

  test('starts the data path of a store in an engine network inside that network', { timeout: 60_000 }, async () => {
    await docker('network', 'create', 'far');
    const address = await docker('network', 'inspect', '--format', '{{(index .IPAM.Config 0).Gateway}}', 'far');
    await stowage('store', 'add', 'far', `${nfs.uri('far', address)}&network=docker:far`);
    await docker('volume', 'create', '-d', 'stowage', '-o', 'store=far', 'away');
    await docker('run', '-d', '--name', 'away', '--network', 'none', '-v', 'away:/data', busybox, 'sleep', '1000');
    onTestFinished(async () => {
      await docker('rm', '-f', 'away');
      await docker('volume', 'rm', 'away');
    });
    await docker('exec', 'away', 'touch', '/data/file');
    expect(existsSync(join(nfs.folder('far'), 'away', 'file'))).toBe(true);
    const [anchor] = (await docker('ps', '-q', '--no-trunc', '--filter', 'label=stowage.dev/anchor')).split('\n');
    const modes = await Promise.all(
      (await docker('ps', '-q', '--filter', 'label=stowage.dev/keeper'))
        .split('\n')
        .map((id) => inspect(id, '.HostConfig.NetworkMode')),
    );
    expect(modes).toContain(`container:${anchor}`);
  });

  test('replaces mounts whose data path ended', { timeout: 60_000 }, async () => {
    await docker('volume', 'create', '-d', 'stowage', '-o', 'store=silver', 'broken');
    await docker('run', '-d', '--name', 'broken', '--network', 'none', '-v', 'broken:/data', busybox, 'sleep', '1000');
    onTestFinished(async () => {
      await docker('rm', '-f', 'broken');
      await docker('volume', 'rm', 'broken');
    });
    await docker('exec', 'broken', 'touch', '/data/file');
    const before = await keeper();
    await docker('rm', '-f', before);
    await eventually(
      () => runWithVolume('broken', 'ls', '/data').catch(() => ''),
      (output) => output === 'file',
    );
    expect(await keeper()).not.toBe(before);
  });

  test('is killed by the engine when it hangs, while its data path keeps serving', { timeout: 90_000 }, async () => {
    await docker('volume', 'create', '-d', 'stowage', '-o', 'store=silver', 'hung');
    await docker('run', '-d', '--name', 'hung', '--network', 'none', '-v', 'hung:/data', busybox, 'sleep', '1000');
    onTestFinished(async () => {
      await docker('rm', '-f', 'hung');
      await docker('volume', 'rm', 'hung');
    });
    const before = await keeper();
    const rows = (await docker('top', before)).split('\n');
    const pid = rows.find((row) => row.includes('stowage keeper'))?.split(/\s+/)[1] ?? expect.fail(rows.join('\n'));
    await runInside(engine, 'kill', '-STOP', pid);
    await docker('exec', 'hung', 'touch', '/data/during');
    const countKeepers = async (): Promise<number> => (await keepers()).length;
    const until = AbortSignal.timeout(60_000);
    while ((await countKeepers()) < 2 && !until.aborted) await eventually(countKeepers, () => true);
    await docker('exec', 'hung', 'touch', '/data/after');
    await eventually(
      () => stowage('client', 'status'),
      (output) => /serving +1/.test(output),
    );
    await stowage('client', 'upgrade');
    await eventually(keepers, (found) => found.length === 1 && found[0] !== before);
    expect(await docker('exec', 'hung', 'ls', '/data')).toBe('after\nduring');
  });

  test('starts again together with its engine and the containers that use volumes', { timeout: 180_000 }, async () => {
    await docker('volume', 'create', '-d', 'stowage', '-o', 'store=silver', 'kept');
    const apps = ['one', 'two', 'three'];
    const runOptions = ['--network', 'none', '--stop-signal', 'KILL', '-v', 'kept:/data', busybox, 'sleep', '1000'];
    for (const app of apps) await docker('run', '-d', '--name', app, '--restart', 'always', ...runOptions);
    await docker('exec', 'one', 'touch', '/data/file');
    expect(await volumesBelow(engine, '/var/lib/stowage')).not.toEqual([]);
    const since = performance.now();
    await engine.stop();
    // The engine retried no start and killed no process.
    expect(performance.now() - since).toBeLessThan(9_000);
    expect(await volumesBelow(engine, '/var/lib/stowage')).toEqual([]);
    await engine.start();
    for (const app of apps) {
      await eventually(
        () => inspect(app, '.State.Running'),
        (running) => running === true,
      );
      expect(await docker('exec', app, 'ls', '/data')).toBe('file');
    }
    // Stowage started no data path while the engine was starting.
    const until = AbortSignal.timeout(60_000);
    while ((await keepers()).length === 0 && !until.aborted) await eventually(keepers, () => true);
    expect(await keepers()).toHaveLength(1);
    expect(await docker('exec', 'one', 'ls', '/data')).toBe('file');
    await docker('rm', '-f', ...apps);
    await docker('volume', 'rm', 'kept');
  });

  test('lets containers read the files of a read-only store, but not write them', async () => {
    await runInside(engine, 'mkdir', '-p', '/var/lib/stowage/library/books');
    await runInside(engine, 'sh', '-c', 'echo text >/var/lib/stowage/library/books/file');
    await stowage('store', 'add', 'library', 'local:///var/lib/stowage/library?readOnly=true');
    const name = 'library..books';
    expect(await runWithVolume(name, 'cat', '/data/file')).toBe('text');
    await expect(runWithVolume(name, 'touch', '/data/new')).rejects.toThrow('Read-only file system');
    await expect(runWithVolume(name, 'sh', '-c', 'echo more >/data/file')).rejects.toThrow('Read-only file system');
    expect(await runWithVolume(name, 'grep', ' /data ', '/proc/mounts')).toMatch(/ ro,nosuid,nodev/);
    expect(await runInside(engine, 'ls', '/var/lib/stowage/library/books')).toBe('file');
  });

  test('deletes volumes together with their files', async () => {
    await docker('volume', 'create', '-d', 'stowage-local', '-o', 'store=disk', 'sticky');
    await runWithVolume('sticky', 'sh', '-c', 'cd /data; mkdir t; touch t/f; chown 1:1 t/f; chmod 1777 t; chown 2:2 t');
    await docker('volume', 'rm', 'sticky');
    await eventually(
      () => runInside(engine, 'ls', '/var/lib/stowage/disk', '/var/lib/stowage/disk/.stowage/deleting'),
      (left) => left === '/var/lib/stowage/disk:\n\n/var/lib/stowage/disk/.stowage/deleting:',
    );
  });

  test('leaves nothing behind when it is stopped while no volume is in use', { timeout: 60_000 }, async () => {
    await docker('volume', 'create', '-d', 'stowage', '-o', 'store=silver', 'last');
    await runWithVolume('last', 'touch', '/data/file');
    await keeper();
    await docker('volume', 'rm', 'last');
    await docker('stop', 'stowage');
    await docker('rm', 'stowage');
    await eventually(
      () => docker('ps', '-aq', '--filter', 'label=stowage.dev/keeper'),
      (left) => left === '',
    );
    expect(await volumesBelow(engine, '/var/lib/stowage')).toEqual([]);
  });
});
