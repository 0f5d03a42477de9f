import { mkdir, mkdtemp, realpath, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { beforeEach, expect, onTestFinished, test, vi } from 'vitest';
import { createLocalStoreKind } from '#stores/local/kind.ts';
import { type GatedKind, gated } from '#testing/fakes/gated-store.ts';
import { aCall, type ServerOptions, startServer, type TestServer } from '#testing/server.ts';

// Stores that are added and changed, while one of them takes its time to be opened.

let folder: string;
let kind: GatedKind;

beforeEach(async () => {
  folder = await realpath(await mkdtemp(join(tmpdir(), 'stowage-changing-')));
  onTestFinished(() => rm(folder, { recursive: true }));
  for (const name of ['a', 'b', 'c', 'd']) await mkdir(join(folder, name));
  kind = gated(createLocalStoreKind());
});

async function started(options: ServerOptions = {}): Promise<TestServer> {
  const server = await startServer({ listen: 'none', kinds: [kind], ...options });
  onTestFinished(() => server[Symbol.asyncDispose]());
  return server;
}

const add = (server: TestServer, name: string, at = name) =>
  server.engine.stores.add(name, `local://${folder}/${at}`, aCall());
const names = ({ engine }: TestServer): readonly string[] => engine.stores.list().map(({ config }) => config.name);

test('one that is being added keeps nobody from adding, removing and checking others', async () => {
  const server = await started();
  const gate = kind.close('open', { deaf: true, store: 'a' });
  const slow = add(server, 'a');
  await gate.reached;
  await add(server, 'b');
  expect(await server.engine.stores.check('b', aCall())).toMatchObject({ ok: true });
  await server.engine.stores.remove('b', aCall());
  await server.running.reload();

  expect(names(server)).toEqual(['local']);
  await expect(add(server, 'a', 'c')).rejects.toMatchObject({
    ...{ code: 'busy', reason: 'store-being-added' },
    message: "a store 'a' is being added already, with another URI",
  });
  // The same again, as by somebody whose connection broke.
  const again = add(server, 'a');
  gate.open();
  expect((await slow).config.name).toBe('a');
  expect((await again).config).toEqual((await slow).config);
  expect(gate.waiting()).toBe(1);
  expect(names(server)).toEqual(['local', 'a']);
});

test('a name whose adding failed is free again', async () => {
  const server = await started();
  await expect(add(server, 'a', 'nowhere')).rejects.toMatchObject({ reason: 'store-root-missing' });
  expect((await add(server, 'a')).problem).toBeUndefined();
});

test('one that was being added when the server ended is not there at the next start', async () => {
  const server = await started();
  const gate = kind.close('open', { deaf: true, store: 'a' });
  const refused = expect(add(server, 'a')).rejects.toMatchObject({ code: 'unavailable' });
  await gate.reached;
  const stopping = server.stop();
  gate.open();
  await Promise.all([stopping, refused]);
  const next = await started({ folder: server.folder });
  expect(names(next)).toEqual(['local']);
  // And nobody holds it.
  expect((await add(next, 'a')).problem).toBeUndefined();
});

test('the file has the last word on a name that is being added', async () => {
  const config = join(folder, 'stowage.yaml');
  await writeFile(config, `stores:\n  one: local://${folder}/b\n`);
  const server = await started({ config });
  const gate = kind.close('open', { deaf: true, store: 'a' });
  const refused = expect(add(server, 'a')).rejects.toMatchObject({ reason: 'store-exists' });
  await gate.reached;
  await writeFile(config, `stores:\n  one: local://${folder}/b\n  a: local://${folder}/c\n`);
  const reloading = server.running.reload();
  await vi.waitFor(() => expect(names(server)).toContain('a'));
  gate.open();
  await reloading;
  await refused;
  await server.engine.stores.retry(aCall());
  expect(server.engine.stores.view('a')).toMatchObject({
    config: { origin: 'file', uri: `local://${folder}/c` },
    problem: undefined,
  });
});

test('those that a reload changes are opened at once, not one after the other', async () => {
  const config = join(folder, 'stowage.yaml');
  await writeFile(config, `stores:\n  one: local://${folder}/a\n  two: local://${folder}/b\n`);
  const server = await started({ config });
  await writeFile(config, `stores:\n  one: local://${folder}/c\n  two: local://${folder}/d\n`);
  const gate = kind.close('open', { deaf: true });
  const reloading = server.running.reload();
  await vi.waitFor(() => expect(gate.waiting()).toBe(2));
  gate.open();
  await reloading;
  expect(server.engine.stores.list()).toMatchObject([
    { config: { uri: `local://${folder}/c` }, problem: undefined },
    { config: { uri: `local://${folder}/d` }, problem: undefined },
  ]);
});

test('a reload can give the directory of one to another', async () => {
  const config = join(folder, 'stowage.yaml');
  await writeFile(config, `stores:\n  one: local://${folder}/a\n  two: local://${folder}/b\n`);
  const server = await started({ config });
  await writeFile(config, `stores:\n  one: local://${folder}/b\n  two: local://${folder}/a\n`);
  await server.running.reload();
  expect(server.engine.stores.list()).toMatchObject([
    { config: { uri: `local://${folder}/b` }, problem: undefined },
    { config: { uri: `local://${folder}/a` }, problem: undefined },
  ]);
});
