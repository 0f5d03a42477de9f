import { spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { mkdir, mkdtemp, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { createServer, type Server } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { silentLog } from '#base/log.ts';
import { aCall, collectingLog } from '#testing/core-calls.ts';
import { createApi, firstToken, startServer } from '#testing/server.ts';
import { parseListen } from './listen.ts';
import { type Running, startUp, type UpSettings } from './up.ts';

let folder: string;

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'stowage-up-'));
  onTestFinished(() => rm(folder, { recursive: true, force: true }));
});

const up = (more: Partial<UpSettings> & { readonly socket?: string } = {}): Promise<Running> =>
  startUp({
    folders: { state: folder, run: folder, config: folder, socket: more.socket ?? join(folder, 's') },
    config: more.config,
    listen: more.listen ?? 'none',
    log: more.log ?? silentLog(),
    signal: new AbortController().signal,
    ...(more.plugins === undefined ? {} : { plugins: more.plugins }),
    ...(more.discoverEngines === undefined ? {} : { discoverEngines: more.discoverEngines }),
    ...(more.engineSockets === undefined ? {} : { engineSockets: more.engineSockets }),
    ...(more.bare === undefined ? {} : { bare: more.bare }),
  });

async function listening(at: string | number): Promise<Server> {
  const server = createServer((socket) => socket.end());
  await new Promise<void>((resolve) =>
    typeof at === 'string' ? server.listen(at, resolve) : server.listen(at, '127.0.0.1', resolve),
  );
  onTestFinished(() => void server.close());
  return server;
}

describe('the start fails with a message, and leaves nothing behind, because of', () => {
  test('a port in use', async () => {
    const { port } = (await listening(0)).address() as { port: number };
    await expect(up({ listen: `127.0.0.1:${port}` })).rejects.toMatchObject({
      code: 'conflict',
      reason: 'port-in-use',
      message: `cannot listen on 127.0.0.1:${port}: the port is in use`,
      action: expect.stringContaining('stowage up --listen 127.0.0.1:7879, or none'),
    });
    expect(existsSync(join(folder, 's'))).toBe(false);
    // Everything was released, so it can start again.
    await (await up()).stop();
  });

  test('an address of another machine', async () => {
    await expect(up({ listen: '192.0.2.1:7878' })).rejects.toMatchObject({
      code: 'unavailable',
      reason: 'listen-failed',
      message: 'cannot listen on 192.0.2.1:7878: EADDRNOTAVAIL',
    });
  });

  test('a socket on which another program answers', async () => {
    await listening(join(folder, 's'));
    await expect(up()).rejects.toMatchObject({
      code: 'conflict',
      reason: 'socket-in-use',
      message: `another process already listens on ${join(folder, 's')}`,
    });
  });

  test('a socket path that is too long', async () => {
    const socket = join(folder, 'x'.repeat(100));
    await expect(up({ socket })).rejects.toMatchObject({
      code: 'invalid',
      reason: 'socket-path-long',
      action: 'Choose a path of at most 107 bytes: stowage up --socket PATH',
    });
  });

  test("a file at the socket's path, which stays", async () => {
    await writeFile(join(folder, 's'), 'precious');
    await expect(up()).rejects.toMatchObject({ code: 'conflict', reason: 'socket-path-taken' });
    expect(await readFile(join(folder, 's'), 'utf8')).toBe('precious');
  });

  test('another server with the same state folder', async () => {
    const first = await up();
    await expect(up({ socket: join(folder, 't') })).rejects.toMatchObject({
      code: 'conflict',
      reason: 'state-locked',
      message: expect.stringContaining(
        `the state folder ${folder} is in use by another Stowage (process ${process.pid})`,
      ),
    });
    await first.stop();
  });

  test('an invalid configuration, or a missing one that was named', async () => {
    await writeFile(join(folder, 'stowage.yaml'), 'stores: 5');
    await expect(up()).rejects.toMatchObject({
      message: `${join(folder, 'stowage.yaml')}:1:9: 'stores' is not a map`,
    });
    await expect(up({ config: join(folder, 'other.yaml') })).rejects.toMatchObject({
      reason: 'config-missing',
      message: `configuration file ${join(folder, 'other.yaml')} not found`,
    });
  });
});

test('replaces the socket of a process that was killed', async () => {
  const path = JSON.stringify(join(folder, 's'));
  const script = `require('net').createServer().listen(${path}, () => process.kill(process.pid, 'SIGKILL'))`;
  expect(spawnSync(process.execPath, ['-e', script], { timeout: 10_000 }).signal).toBe('SIGKILL');
  expect(existsSync(join(folder, 's'))).toBe(true);
  await (await up()).stop();
  expect(existsSync(join(folder, 's'))).toBe(false);
});

test('creates a local store if there is no file', async () => {
  await using server = await startServer({ listen: 'none' });
  expect(server.running.addresses).toEqual([`unix:${join(server.folder, 's')}`]);
  expect(server.core.stores.list()).toMatchObject([{ config: { name: 'local', origin: 'builtin' }, default: true }]);
  // Without a port there is no need for a token.
  expect(existsSync(join(server.folder, 'token'))).toBe(false);
});

test('the state folder is for its owner only', async () => {
  const state = join(folder, 'fresh');
  await using server = await startServer({ folder: state });
  for (const [name, mode] of [
    ['', 0o700],
    ['token', 0o600],
    ['state.db', 0o600],
    ['s', 0o600],
  ] as const) {
    expect((await stat(join(state, name))).mode & 0o777).toBe(mode);
  }
  expect(server.port).toBeGreaterThan(0);
});

test('keeps the token unless it was revoked or its file removed', async () => {
  const tokenAfter = async (between: () => Promise<unknown>): Promise<string> => {
    await between();
    await using _ = await startServer({ folder });
    return await firstToken(folder);
  };
  const first = await tokenAfter(async () => undefined);
  expect(await tokenAfter(async () => undefined)).toBe(first);
  const second = await tokenAfter(() => rm(join(folder, 'token')));
  expect(second).not.toBe(first);
  await using server = await startServer({ folder });
  expect((await server.remote(first).get('/v1/volumes')).status).toBe(401);
  expect((await server.remote(second).get('/v1/volumes')).status).toBe(200);
});

describe('reload', () => {
  test('applies the changed file; an invalid file changes nothing', async () => {
    for (const name of ['a', 'b']) await mkdir(join(folder, name));
    const config = join(folder, 'conf.yaml');
    await writeFile(config, `stores:\n  a: local://${folder}/a\n`);
    await using server = await startServer({ folder, config, listen: 'none' });
    const names = (): string[] => server.core.stores.list().map((view) => view.config.name);
    expect(names()).toEqual(['a']);
    await server.core.volumes.create(
      { store: 'a', name: 'v', bytes: undefined, access: undefined, labels: {} },
      aCall(),
    );
    await writeFile(config, `default: b\nstores:\n  a: local://${folder}/a\n  b: local://${folder}/b\n`);
    await server.running.reload();
    expect(names()).toEqual(['a', 'b']);
    expect(server.core.stores.defaultName).toBe('b');
    await writeFile(config, 'stores: [');
    await expect(server.running.reload()).rejects.toMatchObject({ reason: 'config-invalid' });
    expect(names()).toEqual(['a', 'b']);
    await writeFile(config, `stores:\n  b: local://${folder}/b\n`);
    await server.running.reload();
    expect(names()).toEqual(['b']);
  });

  test('a store of the file hides one of the same name that was added by hand, until it is removed from the file', async () => {
    for (const name of ['hand', 'file']) await mkdir(join(folder, name));
    const config = join(folder, 'conf.yaml');
    await writeFile(config, '');
    const log = collectingLog();
    await using server = await startServer({ folder, config, listen: 'none', log });
    await server.core.stores.add('x', `local://${folder}/hand`, aCall());
    await writeFile(config, `stores:\n  x: local://${folder}/file\n`);
    await server.running.reload();
    expect(server.core.stores.view('x').config).toMatchObject({ origin: 'file', uri: `local://${folder}/file` });
    expect(log.lines.join('\n')).toContain('a store of the file hides one that was added with store add');
    await writeFile(config, '');
    await server.running.reload();
    expect(server.core.stores.view('x').config).toMatchObject({ origin: 'api', uri: `local://${folder}/hand` });
  });
});

describe('the value of --listen', () => {
  test.each([
    ['127.0.0.1:80', { host: '127.0.0.1', port: 80 }],
    [':80', { host: '127.0.0.1', port: 80 }],
    ['80', { host: '127.0.0.1', port: 80 }],
    ['localhost:0', { host: 'localhost', port: 0 }],
    ['[::1]:80', { host: '::1', port: 80 }],
    ['none', undefined],
  ])('%s', (text, expected) => {
    expect(parseListen(text)).toEqual(expected);
  });

  test.each(['', 'x', '1.2.3.4', ':', ':99999', '::1:80', 'a b:80', '80:80:80', '-1', 'http://x:80'])(
    'refuses %j',
    (text) => {
      expect(() => parseListen(text)).toThrow('is not a valid listen address');
    },
  );
});

describe('container engines', () => {
  const call = async (socket: string, method: string, message: object = {}): Promise<unknown> => {
    const { text } = await createApi({ socketPath: socket, agent: false }).call('POST', `/${method}`, {
      raw: JSON.stringify(message),
    });
    return JSON.parse(text);
  };

  test('are served on two sockets in the configured folder, accessible to the owner only, until the end', async () => {
    const plugins = join(folder, 'run', 'plugins');
    const running = await up({ plugins });
    const [shared = '', own = ''] = running.plugins.sockets;
    expect(running.plugins.sockets).toEqual([join(plugins, 'stowage.sock'), join(plugins, 'stowage-local.sock')]);
    for (const socket of [shared, own]) expect((await stat(socket)).mode & 0o777).toBe(0o600);
    expect(await call(shared, 'VolumeDriver.Capabilities')).toMatchObject({ Capabilities: { Scope: 'global' } });
    expect(await call(own, 'VolumeDriver.Create', { Name: 'a' })).toEqual({ Err: '' });
    expect(await call(own, 'VolumeDriver.Create', { Name: 'b', Opts: { squash: 'all' } })).toMatchObject({
      Err: expect.stringContaining('administrator'),
    });
    const status = await createApi({ socketPath: join(folder, 's'), agent: false }).get('/v1/status');
    expect(status.body).toMatchObject({ plugins: [shared, own], engines: [] });
    await running.stop();
    expect(existsSync(shared) || existsSync(own)).toBe(false);
    // And again, configured in the file.
    await writeFile(join(folder, 'stowage.yaml'), `plugins: ${plugins}`);
    const again = await up();
    expect(await call(own, 'VolumeDriver.List')).toMatchObject({ Volumes: [{ Name: 'a' }] });
    await again.stop();
  });

  test('are served by one Stowage: it refuses sockets in use, and replaces those of a dead one', async () => {
    const plugins = join(folder, 'p');
    const taken = join(plugins, 'stowage-local.sock');
    await mkdir(plugins);
    const other = await listening(taken);
    await expect(up({ plugins })).rejects.toMatchObject({
      code: 'conflict',
      reason: 'plugin-socket-in-use',
      action: expect.stringContaining('--plugins none'),
      message: `another Stowage already serves the container engines: another process already listens on ${taken}`,
    });
    expect(existsSync(join(plugins, 'stowage.sock'))).toBe(false);
    await new Promise((resolve) => other.close(resolve));
    const script = `require('net').createServer().listen(${JSON.stringify(taken)}, () => process.kill(process.pid, 'SIGKILL'))`;
    expect(spawnSync(process.execPath, ['-e', script], { timeout: 10_000 }).signal).toBe('SIGKILL');
    const running = await up({ plugins });
    expect(await call(taken, 'Plugin.Activate')).toMatchObject({ Implements: ['VolumeDriver'] });
    await running.stop();
  });

  test('reports a folder that cannot be used', async () => {
    await writeFile(join(folder, 'file'), '');
    await expect(up({ plugins: join(folder, 'file', 'x') })).rejects.toMatchObject({
      reason: 'plugin-folder-unusable',
    });
  });

  test('are not served unless configured', async () => {
    const running = await up();
    expect(running.plugins).toMatchObject({ sockets: [], why: 'not configured' });
    expect(running.engines).toEqual([]);
    await running.stop();
    const refused = await up({ discoverEngines: 'serving container engines requires root' });
    expect(refused.plugins.why).toBe('serving container engines requires root');
    await refused.stop();
    await writeFile(join(folder, 'stowage.yaml'), 'plugins: /nowhere');
    const asked = await up({ plugins: 'none', discoverEngines: true });
    expect(asked.plugins).toMatchObject({ sockets: [], why: 'as configured' });
    await asked.stop();
  });

  test('are followed at the configured sockets, with the command line before the file, and listed', async () => {
    const [docker, podman] = [join(folder, 'd'), join(folder, 'o')];
    await listening(docker);
    await writeFile(join(folder, 'stowage.yaml'), `engines: { docker: /nowhere, podman: ${podman} }`);
    const running = await up({ engineSockets: { docker } });
    const status = await createApi({ socketPath: join(folder, 's'), agent: false }).get('/v1/status');
    expect(status.body.engines).toEqual([
      { kind: 'docker', socket: docker, reachable: true },
      { kind: 'podman', socket: podman, reachable: false },
    ]);
    await running.stop();
  });

  test('bare mode has no default store and no port', async () => {
    const running = await up({ bare: true, listen: '127.0.0.1:0', plugins: join(folder, 'p') });
    expect(running.addresses).toEqual([`unix:${join(folder, 's')}`]);
    expect(running.core.stores.list()).toEqual([]);
    expect(await call(join(folder, 'p', 'stowage.sock'), 'VolumeDriver.Create', { Name: 'a' })).toMatchObject({
      Err: expect.stringMatching(/^plugin stowage has no store: .* Ask the administrator for such a store/),
    });
    await running.stop();
  });
});
