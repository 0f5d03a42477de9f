import { mkdir, mkdtemp, readFile, realpath, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { beforeEach, describe, expect, onTestFinished, test, vi } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { run, type Stowage, startStowage } from './stowage.ts';

let testFolder: string;
let config: string;

beforeEach(async () => {
  testFolder = await realpath(await mkdtemp(join(tmpdir(), 'stowage-reload-')));
  config = join(testFolder, 'stowage.yaml');
  for (const name of ['a', 'b', 'c']) await mkdir(join(testFolder, name));
  onTestFinished(() => rm(testFolder, { recursive: true, force: true }));
});

async function start(): Promise<Stowage> {
  const server = await startStowage({ state: join(testFolder, 'state'), config });
  onTestFinished(() => server.stop());
  return server;
}

interface ListedStore {
  readonly name: string;
  readonly uri: string;
  readonly onDelete: string;
}

async function stores(server: Stowage): Promise<readonly ListedStore[]> {
  return (await server.api('GET', '/v1/stores')).body['items'] as readonly ListedStore[];
}
const names = async (server: Stowage): Promise<string[]> => (await stores(server)).map((store) => store.name);

describe.skipIf(lacks('linux'))('SIGHUP', () => {
  test('applies the changed configuration file without a restart', async () => {
    await writeFile(config, `stores:\n  a: local://${testFolder}/a\n  b: local://${testFolder}/b\n`);
    const server = await start();
    expect(await names(server)).toEqual(['a', 'b']);
    const { id } = (await server.api('POST', '/v1/volumes', { name: 'kept', store: 'a' })).body;
    await writeFile(
      config,
      `stores:\n  a:\n    uri: local://${testFolder}/a\n    onDelete: archive\n  c: local://${testFolder}/c\n`,
    );
    server.signal('SIGHUP');
    await vi.waitFor(async () => expect(await names(server)).toEqual(['a', 'c']));
    expect((await stores(server))[0]?.onDelete).toBe('archive');
    expect((await server.api('GET', `/v1/volumes/${id}`)).status).toBe(200);
  });

  test('changes nothing if the file is invalid, and the log says where the error is', async () => {
    await writeFile(config, `stores:\n  a: local://${testFolder}/a\n`);
    const server = await start();
    await writeFile(
      config,
      `stores:\n  a: local://${testFolder}/a\n  b:\n    uri: local://${testFolder}/b\n    colour: red\n`,
    );
    server.signal('SIGHUP');
    await vi.waitFor(() => expect(server.output()).toContain('failed to reload: keeping the previous configuration'));
    expect(server.output()).toContain(`${config}:5:5: store 'b' has the unknown option 'colour'`);
    expect(await names(server)).toEqual(['a']);
    expect((await server.api('POST', '/v1/volumes', { name: 'x' })).status).toBe(201);
    await rm(config);
    server.signal('SIGHUP');
    await vi.waitFor(() => expect(server.output()).toContain(`configuration file ${config} not found`));
    expect(await names(server)).toEqual(['a']);
  });

  test('loses no request that runs during the reload', async () => {
    await writeFile(config, `stores:\n  a: local://${testFolder}/a\n`);
    const server = await start();
    const results: number[] = [];
    const creating = Array.from({ length: 8 }, async (_, worker) => {
      for (let i = 0; i < 25; i++) {
        const body = { name: `v${worker}-${i}`, store: 'a' };
        results.push((await server.api('POST', '/v1/volumes', body)).status);
      }
    });
    for (const onDelete of ['archive', 'retain', 'delete', 'archive']) {
      await writeFile(config, `stores:\n  a: local://${testFolder}/a?onDelete=${onDelete}\n`);
      server.signal('SIGHUP');
      await vi.waitFor(async () => expect((await stores(server))[0]?.onDelete).toBe(onDelete), { timeout: 10_000 });
    }
    await Promise.all(creating);
    // When its options change, a store is closed for a moment. Requests then fail with a retryable error.
    expect(results.filter((status) => status !== 201 && status !== 503)).toEqual([]);
    const createdCount = results.filter((status) => status === 201).length;
    expect((await server.api('GET', '/v1/volumes?limit=1000')).body['items']).toHaveLength(createdCount);
  });
});

describe.skipIf(lacks('mount'))('SIGHUP while volumes are mounted', () => {
  test('keeps a store that was removed from the file or changed until its volumes are unmounted', async () => {
    await writeFile(config, `stores:\n  a: local://${testFolder}/a\n  b: local://${testFolder}/b\n`);
    const server = await start();
    await server.api('POST', '/v1/volumes', { name: 'v', store: 'a' });
    const target = join(testFolder, 'mounted');
    expect((await server.api('POST', '/v1/volumes/v/mount', { target })).status).toBe(200);
    await writeFile(join(target, 'file'), 'text');
    await writeFile(config, `stores:\n  b: local://${testFolder}/b\n`);
    server.signal('SIGHUP');
    await vi.waitFor(() => expect(server.output()).toContain("store 'a' has mounted volumes: a/v"));
    expect(await names(server)).toEqual(['a', 'b']);
    expect(await readFile(join(target, 'file'), 'utf8')).toBe('text');
    expect((await server.api('POST', '/v1/volumes/v/unmount', { target })).status).toBe(204);
    server.signal('SIGHUP');
    await vi.waitFor(async () => expect(await names(server)).toEqual(['b']));
  });
});

describe.skipIf(lacks('linux'))('an invalid configuration', () => {
  test('prevents the start of the server; the error has file, line, column and what to do', async () => {
    await writeFile(config, 'version: 1\nstores:\n  a: local:///x\n  a: local:///y\n');
    const args = ['up', '--state', join(testFolder, 'state'), '--listen', 'none', '--config', config];
    const { status, stderr } = await run('bin/stowage', args);
    expect(status).toBe(2);
    expect(stderr).toContain(`${config}:4:3: Map keys must be unique`);
    expect(stderr).toMatch(/^action: Correct the YAML at this position/m);
  });
});
