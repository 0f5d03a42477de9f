import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { createLocalStoreKind } from '#stores/local/kind.ts';
import { needs } from '#testbed/needs.ts';
import { type GatedKind, gated } from '#testing/fakes/gated-store.ts';
import { createSkippingClock, type SkippingClock } from '#testing/fakes/skipping-clock.ts';
import { aCall, startServer, type TestServer } from '#testing/server.ts';
import type { StoreName } from './model.ts';

let folder: string;
let state: string;
let clock: SkippingClock;
let kind: GatedKind;
let server: TestServer;

/** A life on the same state. */
async function start(): Promise<void> {
  kind = gated(createLocalStoreKind());
  server = await startServer({ listen: 'none', kinds: [kind], clock, folder: state });
}

beforeEach(async () => {
  folder = mkdtempSync(join(tmpdir(), 'stowage-ephemeral-'));
  state = mkdtempSync(join(folder, 'state-'));
  clock = createSkippingClock();
  await start();
  onTestFinished(async () => {
    await server[Symbol.asyncDispose]();
    rmSync(folder, { recursive: true, force: true });
  });
});

const want = { store: 'local' as StoreName, bytes: undefined, enforce: false };
const how = { readOnly: false, user: undefined };
const target = (): string => join(folder, 'target');
const publish = () => server.engine.ephemerals.publish('key', want, target(), how, aCall());
const unpublish = () => server.engine.ephemerals.unpublish('key', target(), aCall());
const volumes = async () => {
  const query = { stores: ['local'], labels: {}, contains: undefined, after: undefined, limit: 9 };
  return (await server.engine.catalogue.page(query, aCall())).volumes.map(({ name }) => name);
};

describe.skipIf(needs('mount'))('a volume that lives with its target', () => {
  test('is made with it, stays with it, and goes with it', async () => {
    for (let i = 0; i < 2; i++) await publish();
    expect(await volumes()).toEqual(['key']);
    expect(server.engine.ephemerals.volume('key')).toMatchObject({ labels: { 'stowage.dev/ephemeral': 'true' } });
    clock.skip(3_600_000);
    await server.engine.tend(aCall());
    expect(await volumes()).toEqual(['key']);
    expect(await unpublish()).toBe(true);
    expect(await volumes()).toEqual([]);
    expect(await unpublish()).toBe(false);
  });

  test('is unpublished while its store is silent, and destroyed when it answers', async () => {
    await publish();
    const gate = kind.close('delete', { deaf: true });
    const done = unpublish();
    await gate.reached;
    clock.skip(3_000);
    expect(await done).toBe(true);
    expect(await server.engine.mounts.list(aCall())).toEqual([]);
    gate.open();
    await expect.poll(volumes).toEqual([]);
  });

  test('that could not be destroyed before a stop, is by the next start', async () => {
    await publish();
    const gate = kind.close('delete', { deaf: true });
    const done = unpublish();
    await gate.reached;
    clock.skip(3_000);
    await done;
    await server.stop();
    gate.open();
    await start();
    await server.engine.tend(aCall());
    expect(await volumes()).toEqual([]);
    expect(server.engine.ephemerals.volume('key')).toBeUndefined();
  });
});

test('what nobody comes for after it was made, is destroyed in a while and no sooner', async () => {
  // Killed between making and mounting it.
  const nowhere = join(folder, 'missing', 'target');
  await expect(server.engine.ephemerals.publish('key', want, nowhere, how, aCall())).rejects.toThrow();
  expect(await volumes()).toEqual(['key']);
  await server.stop();
  await start();
  await server.engine.tend(aCall());
  clock.skip(599_000);
  await server.engine.tend(aCall());
  expect(await volumes()).toEqual(['key']);
  clock.skip(2_000);
  await server.engine.tend(aCall());
  expect(await volumes()).toEqual([]);
});
