import { execFile, spawn } from 'node:child_process';
import { mkdir, mkdtemp, readdir, realpath, rename, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { run, type Stowage, startStowage } from './stowage.ts';

const exec = promisify(execFile);
let testFolder: string;
const running: Stowage[] = [];

beforeEach(async () => {
  testFolder = await realpath(await mkdtemp(join(tmpdir(), 'stowage-faults-')));
});

afterEach(async () => {
  for (const server of running.splice(0)) await server.stop();
  await rm(testFolder, { recursive: true, force: true });
});

async function start(options: Partial<Parameters<typeof startStowage>[0]> = {}): Promise<Stowage> {
  const server = await startStowage({ state: join(testFolder, 'state'), ...options });
  running.push(server);
  return server;
}

describe.skipIf(lacks('linux'))('a second Stowage server', () => {
  test('on the same state folder is refused, with the reason', async () => {
    const first = await start();
    const second = await run('bin/stowage', [
      'up',
      '--state',
      join(testFolder, 'state'),
      '--config',
      'none',
      '--listen',
      'none',
    ]);
    expect(second.status).toBe(5);
    expect(second.stderr).toContain(join(testFolder, 'state'));
    expect(second.stderr).toContain(String(first.pid));
    expect(second.stderr).toMatch(/^action: /m);
    expect((await first.api('GET', '/v1/status')).status).toBe(200);
  });

  test('on the same port is refused, with the reason', async () => {
    const first = await start({ listen: '127.0.0.1:0' });
    const port = /http:\/\/127\.0\.0\.1:(\d+)/.exec(first.output())?.[1];
    const second = await run('bin/stowage', [
      'up',
      '--state',
      join(testFolder, 'other'),
      '--config',
      'none',
      '--listen',
      `127.0.0.1:${port}`,
    ]);
    expect(second.status).toBe(5);
    expect(second.stderr).toContain(`error: cannot listen on 127.0.0.1:${port}: the port is in use`);
    expect(second.stderr).toMatch(/^action: .*--listen/m);
  });

  test('on the same local store starts, and reports which server has the store open', async () => {
    const root = join(testFolder, 'data');
    await mkdir(root);
    const config = join(testFolder, 'stowage.yaml');
    await writeFile(config, `stores:\n  data: local://${root}\n`);
    const first = await start({ config });
    await first.api('POST', '/v1/volumes', { name: 'mine' });
    const second = await start({ state: join(testFolder, 'other'), config });
    const answer = await second.api('POST', '/v1/volumes', { name: 'yours' });
    expect(answer.status).toBe(503);
    expect(answer.body).toMatchObject({ code: 'unavailable', reason: 'store-locked' });
    expect(answer.body['detail']).toContain(String(first.pid));
    // While a store is not open, Stowage does not report its volumes as missing.
    expect((await second.api('GET', '/v1/volumes/data..mine')).status).toBe(503);
    expect((await readdir(root)).sort()).toEqual(['.stowage', 'mine', 'mine.meta']);
    await running.shift()?.stop();
    expect((await second.api('POST', '/v1/stores/data/check')).body['ok']).toBe(true);
    expect((await second.api('POST', '/v1/volumes', { name: 'yours' })).status).toBe(201);
  });
});

describe.skipIf(lacks('linux'))('a store whose directory disappears', () => {
  test('returns clear errors, loses no record, and works again when the directory is back', async () => {
    const root = join(testFolder, 'data');
    await mkdir(root);
    const server = await start();
    expect((await server.api('POST', '/v1/stores', { name: 'data', uri: `local://${root}` })).status).toBe(201);
    expect((await server.api('POST', '/v1/volumes', { store: 'data', name: 'a' })).status).toBe(201);
    await rename(root, `${root}.away`);
    const create = await server.api('POST', '/v1/volumes', { store: 'data', name: 'b' });
    expect(create.status).toBe(503);
    expect(create.body).toMatchObject({ code: 'unavailable' });
    expect(String(create.body['action'])).not.toBe('');
    const removal = await server.api('DELETE', '/v1/volumes/data..a');
    expect(removal.status).toBe(503);
    expect((await server.api('POST', '/v1/stores/data/check')).body['ok']).toBe(false);
    // Stowage does not accept an empty folder as the store.
    await mkdir(root);
    expect((await server.api('POST', '/v1/volumes', { store: 'data', name: 'b' })).status).toBe(503);
    expect(await readdir(root)).toEqual([]);
    await rm(root, { recursive: true });
    await rename(`${root}.away`, root);
    expect((await server.api('POST', '/v1/volumes', { store: 'data', name: 'b' })).status).toBe(201);
    expect((await readdir(root)).sort()).toEqual(['.stowage', 'a', 'a.meta', 'b', 'b.meta']);
  });
});

describe.skipIf(lacks('linux', 'root', 'mount'))('a full disk', () => {
  test('is reported, and the volume that did not fit leaves no files', async () => {
    const root = join(testFolder, 'data');
    await mkdir(root);
    await exec('mount', ['-t', 'tmpfs', '-o', 'size=512k,nr_inodes=64', 'stowage-test', root]);
    try {
      const server = await start();
      expect((await server.api('POST', '/v1/stores', { name: 'data', uri: `local://${root}` })).status).toBe(201);
      const createdNames: string[] = [];
      let refused: Awaited<ReturnType<Stowage['api']>> | undefined;
      for (let index = 0; index < 100 && refused === undefined; index++) {
        const answer = await server.api('POST', '/v1/volumes', { store: 'data', name: `v${index}` });
        if (answer.status === 201) createdNames.push(`v${index}`);
        else refused = answer;
      }
      expect(refused?.status).toBe(507);
      expect(refused?.body).toMatchObject({ code: 'exhausted' });
      const entries = createdNames.flatMap((name) => [name, `${name}.meta`]);
      expect((await readdir(root)).sort()).toEqual(['.stowage', ...entries].sort());
      expect(await readdir(join(root, '.stowage', 'tmp'))).toEqual([]);
      expect((await server.api('DELETE', '/v1/volumes/data..v0')).status).toBe(200);
      expect((await server.api('POST', '/v1/volumes', { store: 'data', name: 'fits' })).status).toBe(201);
      await running.pop()?.stop();
    } finally {
      await exec('umount', [root]);
    }
  });
});

describe.skipIf(lacks('linux', 'root', 'mount'))('a busy mount', () => {
  test('prevents the deletion, renaming and unmounting of its volume, and the error names the process that uses it', async () => {
    const server = await start();
    const target = join(testFolder, 'target');
    await server.api('POST', '/v1/volumes', { name: 'data' });
    expect((await server.api('POST', '/v1/volumes/data/mount', { target })).status).toBe(200);
    const user = spawn('sleep', ['1000'], { cwd: target, stdio: 'ignore' });
    try {
      const removal = await server.api('DELETE', '/v1/volumes/data');
      expect(removal.body).toMatchObject({ status: 409, code: 'in-use', reason: 'volume-in-use' });
      expect(removal.body['detail']).toContain(target);
      expect((await server.api('POST', '/v1/volumes/data/rename', { name: 'other' })).body).toMatchObject({
        code: 'in-use',
      });
      const unmount = await server.api('POST', '/v1/volumes/data/unmount', { target });
      expect(unmount.body).toMatchObject({ status: 409, code: 'in-use' });
      expect(unmount.body['detail']).toContain(String(user.pid));
      // A stop leaves the mount, and reports that.
      await server.stop();
      expect(server.output()).toContain(`still in use, left mounted: ${target}`);
      await writeFile(join(target, 'still'), 'writable');
    } finally {
      user.kill('SIGKILL');
    }
    running.pop();
    const next = await start();
    expect((await next.api('GET', '/v1/mounts')).body['items']).toMatchObject([{ target, mounted: true }]);
    expect((await next.api('DELETE', '/v1/volumes/data')).status).toBe(409);
    expect((await next.api('POST', '/v1/volumes/data/unmount', { target })).status).toBe(204);
    expect((await next.api('DELETE', '/v1/volumes/data')).status).toBe(200);
  });

  test('is unmounted by a stop once no process uses it', async () => {
    const server = await start();
    await server.api('POST', '/v1/volumes', { name: 'data' });
    await server.api('POST', '/v1/volumes/data/mount', { target: join(testFolder, 'target') });
    await server.stop();
    running.pop();
    expect(server.output()).toContain('stowage stopped\n');
    expect((await readdir(testFolder)).sort()).toEqual(['state']);
    expect(await readdir(join(testFolder, 'state', 'mounts'))).toEqual([]);
  });
});
