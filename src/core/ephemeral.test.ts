import { mkdirSync, mkdtempSync, readdirSync, rmSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { beforeEach, describe, expect, onTestFinished, test, vi } from 'vitest';
import { createLocalStoreKind } from '#stores/local/kind.ts';
import { aCall, runMaintenance, waitForOptions } from '#testing/core-calls.ts';
import { type GatedKind, gated } from '#testing/fakes/gated-store.ts';
import { createMemoryRecords, type MemoryRecords } from '#testing/fakes/records.ts';
import { createSkippingClock, type SkippingClock } from '#testing/fakes/skipping-clock.ts';
import { replaceVerbs } from '#testing/fakes/wrapped-store.ts';
import { startCore, type TestCore } from '#testing/start-core.ts';
import { StowageError, stowageError } from './errors.ts';
import type { StoreName } from './model.ts';
import type { Store, StoreKind } from './ports.ts';
import { parseStoreConfig } from './store-uri.ts';

let folder: string;
let state: string;
let records: MemoryRecords;
let clock: SkippingClock;
let kind: GatedKind;
let server: TestCore;

/** While true, the store executes calls, but its answers are lost. */
let losesAnswers = false;
let createRequests: string[] = [];
/** If set, create requests wait here instead of being executed. */
let queuedCreates: (() => Promise<unknown>)[] | undefined;
function losingAnswers(inner: StoreKind): StoreKind {
  const noAnswer = () => new StowageError('no answer', { code: 'deadline', reason: 'nfs-timeout', action: 'Wait.' });
  const answer = async <T>(made: T): Promise<T> => {
    if (!losesAnswers) return made;
    throw noAnswer();
  };
  const wrap = (store: Store): Store =>
    replaceVerbs(store, {
      create: async (spec, scope) => {
        if (queuedCreates === undefined) return await answer(await store.create(spec, scope));
        queuedCreates.push(() => store.create(spec, aCall()));
        throw noAnswer();
      },
      get: async (name, scope) => {
        createRequests.push(name);
        if (losesAnswers) clock.skip(2_000);
        return await answer(await store.get(name, scope));
      },
    });
  return { ...inner, open: async (...args) => wrap(await inner.open(...args)) };
}

/** A store of directories that is registered as shared between hosts. */
const sharedKind: StoreKind = {
  ...createLocalStoreKind(),
  scheme: 'far',
  placement: 'anywhere',
  validate: () => undefined,
  open: ({ uri, ...config }, ...rest) =>
    createLocalStoreKind().open({ ...config, uri: uri.replace('far:', 'local:') }, ...rest),
};

/** Starts the server, after a stop on the same state. */
async function start(after?: TestCore): Promise<void> {
  losesAnswers = false;
  createRequests = [];
  queuedCreates = undefined;
  kind = gated(losingAnswers(createLocalStoreKind()));
  server = await startCore({ kinds: [kind, sharedKind], clock, folder: state, records, after });
}

beforeEach(async () => {
  folder = mkdtempSync(join(tmpdir(), 'stowage-ephemeral-'));
  state = mkdtempSync(join(folder, 'state-'));
  clock = createSkippingClock();
  records = createMemoryRecords();
  await start();
  onTestFinished(async () => {
    await server[Symbol.asyncDispose]();
    records[Symbol.dispose]();
    rmSync(folder, { recursive: true, force: true });
  });
});

const want = { store: 'local' as StoreName, bytes: undefined, enforce: false };
const publishOptions = { readOnly: false, user: undefined };
const target = (): string => join(folder, 'target');
const publish = (key = 'key', store = 'local') =>
  server.core.ephemerals.publish(key, { ...want, store: store as StoreName }, target(), publishOptions, aCall());
const unpublish = (key = 'key') => server.core.ephemerals.unpublish(key, target(), aCall());
/** Stops the server, and advances the clock past its timeouts. */
const stop = async (): Promise<void> => {
  const stopping = server.stop();
  const isOver = async (): Promise<void> => {
    clock.skip(2_000);
    expect(await Promise.race([stopping, undefined])).toBeDefined();
  };
  await vi.waitFor(isOver, { timeout: 20_000 });
};
const volumes = async () => {
  const query = { stores: ['local'], labels: {}, contains: undefined, after: undefined, limit: 9 };
  return (await server.core.catalogue.page(query, aCall())).volumes.map(({ name }) => name);
};

describe('a volume that lives with its target', () => {
  test('is created and destroyed together with its target', async () => {
    for (let i = 0; i < 2; i++) await publish();
    expect(await volumes()).toEqual(['key']);
    expect(server.core.ephemerals.volume('key')).toMatchObject({ labels: { 'stowage.dev/ephemeral': 'true' } });
    clock.skip(3_600_000);
    await runMaintenance(server.core);
    expect(await volumes()).toEqual(['key']);
    expect(await unpublish()).toBe(true);
    expect(await volumes()).toEqual([]);
    expect(await unpublish()).toBe(false);
  });

  test('stays while it is mounted, even if its target contains a symbolic link', async () => {
    mkdirSync(join(folder, 'real'));
    symlinkSync('real', join(folder, 'link'));
    const byLink = join(folder, 'link/target');
    await server.core.ephemerals.publish('key', want, byLink, publishOptions, aCall());
    await runMaintenance(server.core);
    clock.skip(3_600_000);
    await runMaintenance(server.core);
    // A reboot also removes the mount. The pod is started again and needs its data.
    server.kept.mounts.remove(join(folder, 'real/target'));
    await server.core.mounts.reconcile(aCall());
    await runMaintenance(server.core);
    expect(await volumes()).toEqual(['key']);
    expect(await server.core.ephemerals.unpublish('key', byLink, aCall())).toBe(true);
    expect(await volumes()).toEqual([]);
  });

  test.each(['retain', 'archive'])('is destroyed even on a store with onDelete=%s', async (onDelete) => {
    const storeFolder = mkdtempSync(join(folder, 'place-'));
    await server.core.stores.add('keeps', `local://${storeFolder}?onDelete=${onDelete}`, aCall());
    await publish('key', 'keeps');
    expect(readdirSync(storeFolder)).toContain('key');
    await unpublish();
    expect(readdirSync(storeFolder)).toEqual(['.stowage']);
    expect(await server.core.deletions.trash(['keeps'], aCall())).toMatchObject({ entries: [] });
  });

  test('is unpublished while its store does not answer, and destroyed when the store answers', async () => {
    await publish();
    const gate = kind.close('delete', { deaf: true });
    const unpublishing = unpublish();
    await gate.reached;
    clock.skip(3_000);
    expect(await unpublishing).toBe(true);
    expect(await server.core.mounts.list(aCall())).toEqual([]);
    gate.open();
    await expect.poll(volumes).toEqual([]);
  });

  test('is destroyed after a restart if it could not be destroyed before', async () => {
    await publish();
    const gate = kind.close('delete', { deaf: true });
    const unpublishing = unpublish();
    await gate.reached;
    clock.skip(3_000);
    await unpublishing;
    await stop();
    gate.open();
    await start(server);
    await runMaintenance(server.core);
    expect(await volumes()).toEqual([]);
    expect(server.core.ephemerals.volume('key')).toBeUndefined();
  });
});

test('a volume that is created but never mounted is destroyed after a while, not at once', async () => {
  // As if Stowage was killed after it created the volume and before it mounted it.
  const nowhere = join(folder, 'missing', 'target');
  await expect(server.core.ephemerals.publish('key', want, nowhere, publishOptions, aCall())).rejects.toThrow();
  expect(await volumes()).toEqual(['key']);
  await server.stop();
  await start(server);
  await runMaintenance(server.core);
  clock.skip(500_000);
  await runMaintenance(server.core);
  expect(await volumes()).toEqual(['key']);
  clock.skip(101_000);
  await runMaintenance(server.core);
  expect(await volumes()).toEqual([]);
});

describe('a volume whose create request got no answer', () => {
  const createdRecords = () => readdirSync(join(state, 'stores', 'local')).filter((name) => name.endsWith('.meta'));
  const publishWithoutAnswer = async () => {
    losesAnswers = true;
    await expect(publish()).rejects.toThrow('no answer');
    losesAnswers = false;
    expect(createdRecords()).toEqual(['key.meta']);
  };

  test('is destroyed with its target', async () => {
    await publishWithoutAnswer();
    expect(await unpublish()).toBe(true);
    expect(createdRecords()).toEqual([]);
    expect(await unpublish()).toBe(false);
  });

  test('is destroyed after a while if it is never mounted', async () => {
    await publishWithoutAnswer();
    await runMaintenance(server.core);
    clock.skip(601_000);
    await runMaintenance(server.core);
    expect(createdRecords()).toEqual([]);
  });

  test('stays on the list until its store has reported whether the volume exists, even across a restart', async () => {
    await publishWithoutAnswer();
    const gate = kind.close('get', { deaf: true });
    const unpublishing = unpublish();
    await gate.reached;
    clock.skip(3_000);
    expect(await unpublishing).toBe(true);
    await stop();
    gate.open();
    expect(createdRecords()).toEqual(['key.meta']);
    await start(server);
    await runMaintenance(server.core);
    expect(createdRecords()).toEqual([]);
    expect(await unpublish()).toBe(false);
  });

  test('is looked up once per pass for all volumes of a store that does not answer', async () => {
    await publishWithoutAnswer();
    losesAnswers = true;
    await expect(publish('other')).rejects.toThrow('no answer');
    for (const key of ['key', 'other']) await unpublish(key);
    createRequests = [];
    await runMaintenance(server.core);
    expect(createRequests).toHaveLength(1);
    losesAnswers = false;
    await runMaintenance(server.core);
    expect(createdRecords()).toEqual([]);
  });

  test('is destroyed by the second pass if another volume cut off the first one', async () => {
    await publish();
    losesAnswers = true;
    await expect(publish('other')).rejects.toThrow('no answer');
    losesAnswers = false;
    using _held = await server.core.operations.lock(['ephemeral key'], aCall().signal);
    const unpublishing = unpublish();
    await vi.waitFor(async () => {
      clock.skip(3_000);
      expect(await Promise.race([unpublishing, undefined])).toBe(true);
    }, waitForOptions);
    losesAnswers = true;
    await unpublish('other');
    losesAnswers = false;
    const [first, second] = [new AbortController(), new AbortController()];
    const cutOff = server.core.ephemerals.reconcile(aCall({ signal: first.signal }));
    await new Promise(setImmediate);
    first.abort();
    await cutOff;
    expect(createdRecords()).toContain('other.meta');
    const settling = server.core.ephemerals.reconcile(aCall({ signal: second.signal }));
    await vi.waitFor(() => expect(createdRecords()).not.toContain('other.meta'), waitForOptions);
    second.abort();
    await settling;
  });

  test('is destroyed when its removed store is added again', async () => {
    const storeFolder = mkdtempSync(join(folder, 'store-'));
    const { stores } = server.core;
    await stores.add('second', `local://${storeFolder}`, aCall());
    losesAnswers = true;
    await expect(publish('key', 'second')).rejects.toThrow('no answer');
    await stores.remove('second', aCall());
    losesAnswers = false;
    expect(await unpublish()).toBe(true);
    await runMaintenance(server.core);
    await stores.add('second', `local://${storeFolder}`, aCall());
    await runMaintenance(server.core);
    expect(readdirSync(storeFolder)).not.toContain('key.meta');
    expect(await unpublish()).toBe(false);
  });

  test('is destroyed even if the server creates it only after reporting that it does not exist', async () => {
    queuedCreates = [];
    await expect(publish()).rejects.toThrow('no answer');
    expect(await unpublish()).toBe(true);
    for (const make of queuedCreates) await make();
    expect(createdRecords()).toEqual(['key.meta']);
    clock.skip(30_000);
    await runMaintenance(server.core);
    expect(createdRecords()).toEqual([]);
    expect(await unpublish()).toBe(false);
  });

  test('is not confused with another volume of the same name', async () => {
    const sameNamedVolume = { ...want, name: 'key', access: undefined, labels: {} };
    await server.core.volumes.create(sameNamedVolume, aCall());
    await expect(publish()).rejects.toThrow();
    expect(await unpublish()).toBe(true);
    clock.skip(30_000);
    await runMaintenance(server.core);
    expect(createdRecords()).toEqual(['key.meta']);
    expect(await unpublish()).toBe(false);
  });
});

describe('the inline policy', () => {
  /** Publishes to a target that cannot be mounted, and reports whether the store's directory has the volume. */
  const publishInline = async (kindOf: (uri: string) => string) => {
    const storeFolder = mkdtempSync(join(folder, 'store-'));
    await server.core.stores.add('second', kindOf(storeFolder), aCall());
    const nowhere = join(folder, 'missing', 'target');
    const request = { ...want, store: 'second' as StoreName };
    const failure = await server.core.ephemerals
      .publish('key', request, nowhere, publishOptions, aCall())
      .catch(stowageError);
    return { failure, isMade: readdirSync(storeFolder).includes('key.meta') };
  };
  const inlineRejection = {
    code: 'denied',
    reason: 'inline-not-allowed',
    message: "store 'second' does not allow inline volumes",
    action: expect.stringContaining('inline: true'),
  };

  test.each([
    ['a store of this machine', (place: string) => `local://${place}`],
    ['a shared store that allows them', (place: string) => `far://${place}?inline=true`],
  ])('allows inline volumes on %s', async (_what, kindOf) => {
    expect(await publishInline(kindOf)).toMatchObject({ isMade: true });
  });

  test.each([
    ['a store of this machine that forbids them', (place: string) => `local://${place}?inline=false`],
    ['a shared store', (place: string) => `far://${place}`],
  ])('rejects inline volumes on %s', async (_what, kindOf) => {
    expect(await publishInline(kindOf)).toMatchObject({ isMade: false, failure: inlineRejection });
    expect(await unpublish()).toBe(false);
  });

  test('lets existing inline volumes be mounted after they are forbidden', async () => {
    const kinds = new Map([[kind.scheme, kind]]);
    const place = mkdtempSync(join(folder, 'store-'));
    const nowhere = join(folder, 'missing', 'target');
    const request = { ...want, store: 'second' as StoreName };
    const reasonOf = async (key: string) =>
      stowageError(
        await server.core.ephemerals.publish(key, request, nowhere, publishOptions, aCall()).catch(stowageError),
      ).reason;
    const configure = async (query: string) => {
      const config = parseStoreConfig('second', `local://${place}${query}`, 'file', kinds);
      await server.core.stores.configure([config], undefined, aCall());
    };
    await configure('');
    const mountFailure = await reasonOf('key');
    expect(mountFailure).not.toBe('inline-not-allowed');
    await configure('?inline=false');
    expect(await reasonOf('key')).toBe(mountFailure);
    expect(await reasonOf('other')).toBe('inline-not-allowed');
  });
});
