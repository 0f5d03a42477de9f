import { mkdir, mkdtemp, realpath, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { beforeEach, expect, onTestFinished, test, vi } from 'vitest';
import { createLocalStoreKind } from '#stores/local/kind.ts';
import { aCall, waitForOptions } from '#testing/core-calls.ts';
import { type GatedKind, gated } from '#testing/fakes/gated-store.ts';
import { type CoreOptions, startCore, type TestCore } from '#testing/start-core.ts';

// Adding and changing stores while one of them opens slowly.

let folder: string;
let kind: GatedKind;

beforeEach(async () => {
  folder = await realpath(await mkdtemp(join(tmpdir(), 'stowage-changing-')));
  onTestFinished(() => rm(folder, { recursive: true }));
  for (const name of ['a', 'b', 'c', 'd']) await mkdir(join(folder, name));
  kind = gated(createLocalStoreKind());
});

async function startWithGate(options: CoreOptions = {}): Promise<TestCore> {
  const server = await startCore({ kinds: [kind], ...options });
  onTestFinished(() => server[Symbol.asyncDispose]());
  return server;
}

const add = (server: TestCore, name: string, at = name) =>
  server.core.stores.add(name, `local://${folder}/${at}`, aCall());
const names = ({ core }: TestCore): readonly string[] => core.stores.list().map(({ config }) => config.name);

test('a store that is being added does not block adding, removing and checking other stores', async () => {
  const server = await startWithGate();
  const gate = kind.close('open', { deaf: true, store: 'a' });
  const blockedAdd = add(server, 'a');
  await gate.reached;
  await add(server, 'b');
  expect(await server.core.stores.check('b', aCall())).toMatchObject({ ok: true });
  await server.core.stores.remove('b', aCall());
  await server.reload();

  expect(names(server)).toEqual(['local']);
  await expect(add(server, 'a', 'c')).rejects.toMatchObject({
    code: 'busy',
    reason: 'store-being-added',
    message: "a store 'a' is being added already, with another URI",
  });
  // Repeats the request, like a client whose connection broke.
  const repeatedAdd = add(server, 'a');
  gate.open();
  expect((await blockedAdd).config.name).toBe('a');
  expect((await repeatedAdd).config).toEqual((await blockedAdd).config);
  expect(gate.waiting()).toBe(1);
  expect(names(server)).toEqual(['local', 'a']);
});

test('the name of a store that could not be added is free again', async () => {
  const server = await startWithGate();
  await expect(add(server, 'a', 'nowhere')).rejects.toMatchObject({ reason: 'store-root-missing' });
  expect((await add(server, 'a')).problem).toBeUndefined();
});

test('a store that was being added at shutdown does not exist at the next start', async () => {
  const server = await startWithGate();
  const gate = kind.close('open', { deaf: true, store: 'a' });
  const rejectedAdd = expect(add(server, 'a')).rejects.toMatchObject({ code: 'unavailable' });
  await gate.reached;
  const stopping = server.stop();
  gate.open();
  await Promise.all([stopping, rejectedAdd]);
  const restarted = await startWithGate({ after: server });
  expect(names(restarted)).toEqual(['local']);
  // No process holds the store's lock.
  expect((await add(restarted, 'a')).problem).toBeUndefined();
});

test('the configuration file takes precedence over a store with the same name that is being added', async () => {
  const config = join(folder, 'stowage.yaml');
  await writeFile(config, `stores:\n  one: local://${folder}/b\n`);
  const server = await startWithGate({ config });
  const gate = kind.close('open', { deaf: true, store: 'a' });
  const rejectedAdd = expect(add(server, 'a')).rejects.toMatchObject({ reason: 'store-exists' });
  await gate.reached;
  await writeFile(config, `stores:\n  one: local://${folder}/b\n  a: local://${folder}/c\n`);
  const reloading = server.reload();
  await vi.waitFor(() => expect(names(server)).toContain('a'), waitForOptions);
  gate.open();
  await reloading;
  await rejectedAdd;
  await server.core.stores.retry(aCall());
  const configuredStore = { config: { origin: 'file', uri: `local://${folder}/c` }, problem: undefined };
  await vi.waitFor(() => expect(server.core.stores.view('a')).toMatchObject(configuredStore), waitForOptions);
});

test('a reload opens changed stores in parallel', async () => {
  const config = join(folder, 'stowage.yaml');
  await writeFile(config, `stores:\n  one: local://${folder}/a\n  two: local://${folder}/b\n`);
  const server = await startWithGate({ config });
  await writeFile(config, `stores:\n  one: local://${folder}/c\n  two: local://${folder}/d\n`);
  const gate = kind.close('open', { deaf: true });
  const reloading = server.reload();
  await vi.waitFor(() => expect(gate.waiting()).toBe(2), waitForOptions);
  gate.open();
  await reloading;
  expect(server.core.stores.list()).toMatchObject([
    { config: { uri: `local://${folder}/c` }, problem: undefined },
    { config: { uri: `local://${folder}/d` }, problem: undefined },
  ]);
});

test('a reload can move a directory from one store to another', async () => {
  const config = join(folder, 'stowage.yaml');
  await writeFile(config, `stores:\n  one: local://${folder}/a\n  two: local://${folder}/b\n`);
  const server = await startWithGate({ config });
  await writeFile(config, `stores:\n  one: local://${folder}/b\n  two: local://${folder}/a\n`);
  await server.reload();
  expect(server.core.stores.list()).toMatchObject([
    { config: { uri: `local://${folder}/b` }, problem: undefined },
    { config: { uri: `local://${folder}/a` }, problem: undefined },
  ]);
});

/** Starts removing store `a` while a call on it does not end. */
async function removeBusyStore(server: TestCore) {
  await add(server, 'a');
  const newVolume = { store: 'a', name: 'x', bytes: undefined, access: undefined, labels: {} };
  await server.core.volumes.create(newVolume, aCall());
  const gate = kind.close('label', { deaf: true, store: 'a' });
  const labelled = server.core.volumes.label('a..x', { l: '1' }, undefined, aCall());
  await gate.reached;
  const removing = server.core.stores.remove('a', aCall());
  await vi.waitFor(
    () => expect(server.core.stores.view('a').problem).toMatchObject({ reason: 'store-closing' }),
    waitForOptions,
  );
  return { gate, labelled, removing };
}

test('a store that is being removed keeps its name and does not block adding, checking and reloading other stores', async () => {
  const server = await startWithGate();
  const { gate, labelled, removing } = await removeBusyStore(server);
  await add(server, 'b');
  expect(await server.core.stores.check('b', aCall())).toMatchObject({ ok: true });
  await server.core.stores.remove('b', aCall());
  await server.reload();
  await server.core.stores.retry(aCall());
  await expect(add(server, 'a')).rejects.toMatchObject({ reason: 'store-exists' });
  const secondRemove = expect(server.core.stores.remove('a', aCall())).rejects.toMatchObject({
    reason: 'store-unknown',
  });
  expect(server.core.stores.view('a').problem).toMatchObject({ reason: 'store-closing' });
  gate.open();
  expect(await labelled).toMatchObject({ labels: { l: '1' } });
  await removing;
  await secondRemove;
  expect(names(server)).toEqual(['local']);
  expect((await add(server, 'a')).problem).toBeUndefined();
});

test('the configuration file takes precedence over a store with the same name that is being removed', async () => {
  const config = join(folder, 'stowage.yaml');
  await writeFile(config, `stores:\n  one: local://${folder}/b\n`);
  const server = await startWithGate({ config });
  const { gate, removing } = await removeBusyStore(server);
  const removeSettled = removing.catch(() => undefined);
  // The same location: the store was closed, so it must be opened again.
  await writeFile(config, `stores:\n  one: local://${folder}/b\n  a: local://${folder}/a\n`);
  const reloading = server.reload();
  gate.open();
  await Promise.all([reloading, removeSettled]);
  await server.core.stores.retry(aCall());
  const configuredStore = { config: { origin: 'file' }, problem: undefined };
  await vi.waitFor(() => expect(server.core.stores.view('a')).toMatchObject(configuredStore), waitForOptions);
});

test('a check of a store that cannot be opened does not block adding other stores', async () => {
  const config = join(folder, 'stowage.yaml');
  await writeFile(config, `stores:\n  late: local://${folder}/late\n`);
  const server = await startWithGate({ config });
  await mkdir(join(folder, 'late'));
  const gate = kind.close('open', { deaf: true, store: 'late' });
  const check = server.core.stores.check('late', aCall());
  await gate.reached;
  await add(server, 'b');
  gate.open();
  expect(await check).toMatchObject({ ok: true });
});

test('a reload that waits for a server does not block adding and removing stores, and removed stores do not return', async () => {
  const config = join(folder, 'stowage.yaml');
  await writeFile(config, `stores:\n  one: local://${folder}/a\n`);
  const server = await startWithGate({ config });
  await add(server, 'b');
  await writeFile(config, `stores:\n  one: local://${folder}/c\n  d: local://${folder}/c2\n`);
  await mkdir(join(folder, 'c2'));
  const gate = kind.close('open', { deaf: true, store: 'one' });
  const reloading = server.reload();
  await gate.reached;
  await server.core.stores.remove('b', aCall());
  await add(server, 'd');
  gate.open();
  await reloading;
  expect(names(server).toSorted()).toEqual(['d', 'one']);
  expect(server.core.stores.view('d')).toMatchObject({
    config: { origin: 'file', uri: `local://${folder}/c2` },
    problem: undefined,
  });
});
