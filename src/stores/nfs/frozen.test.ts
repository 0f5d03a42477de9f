import { mkdirSync, realpathSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, onTestFinished, test, vi } from 'vitest';
import { systemClock } from '#base/clock.ts';
import type { VolumeSpec } from '#core/model.ts';
import { volumeName } from '#core/names.ts';
import { createConnect } from '#stores/nfs/connect.ts';
import { createNfsStoreKind } from '#stores/nfs/kind.ts';
import { freePorts, loopbackAddress } from '#testbed/daemon.ts';
import { startGoNfs } from '#testbed/go-nfs.ts';
import { lacks } from '#testbed/lacks.ts';
import { scope } from '#testing/contracts/store.ts';
import { outcome } from '#testing/expected-errors.ts';
import { openExtraAddress } from '#testing/extra-address.ts';
import { ganeshaFolders, portsOf } from '#testing/ganesha-folders.ts';
import { localStore } from '#testing/local-store.ts';
import { contentsOf, quickFolder, wrongRecords } from '#testing/nfs-contents.ts';
import { createProcesses, type OpenNfs, openNfs } from '#testing/nfs-store.ts';
import { interceptCalls } from '#testing/nfs-tap.ts';
import { volumeSpec } from '#testing/volume-spec.ts';
import { createNfsServer } from '#wire/nfs3/server/server.ts';
import type { FileStore } from '../file-store/verbs.ts';

// Servers that are frozen, killed and restarted while a store is open.

const spec = (called: string, requestId = `${Math.random()}`): VolumeSpec => volumeSpec(called, { requestId });
const timeoutMs = 1_000;
/** One call that times out, and the time that the store needs to handle it. */
const answerTimeoutMs = timeoutMs + 2_000;

const codeOf = (work: Promise<unknown>): Promise<string> => outcome(work, 'code');
const codeWithin = async (ms: number, work: Promise<unknown>): Promise<string> => {
  const since = performance.now();
  const code = await codeOf(work);
  return performance.now() - since < ms ? code : `${code}, too late`;
};

const openWithTimeout = (
  { uri, options }: Required<Pick<OpenNfs, 'uri' | 'options'>>,
  ms = timeoutMs,
): Promise<FileStore> => openNfs({ uri, options: { ...options, timeout: `${ms}ms` } });

/** Creates a folder that is removed after the test. */
function createFolder(what: string): string {
  const folder = realpathSync(quickFolder(what));
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
  return folder;
}

describe.skipIf(lacks('ganesha'))('nfs-ganesha', () => {
  const [frozen, healthy] = [ganeshaFolders('frozen'), ganeshaFolders('healthy')];

  async function openStores(frozenTimeoutMs = timeoutMs) {
    const freshExport = frozen.fresh();
    const [frozenStore, other] = [
      await openWithTimeout(freshExport, frozenTimeoutMs),
      await openWithTimeout(healthy.fresh()),
    ];
    onTestFinished(async () => {
      frozen.server.thaw();
      await frozenStore.close();
      await other.close();
    });
    return { frozenStore, other, freshExport, folder: freshExport.folder };
  }

  test('frozen: every verb ends at its deadline, and other stores answer in the meantime', async () => {
    const frozenTimeoutMs = 15_000;
    const { frozenStore, other } = await openStores(frozenTimeoutMs);
    await using local = await localStore();
    const [one, two, three] = [
      await frozenStore.create(spec('one'), scope),
      await frozenStore.create(spec('two'), scope),
      await frozenStore.create(spec('three'), scope),
    ];
    await frozen.server.freeze();
    const verbs = Promise.all([
      codeWithin(frozenTimeoutMs + 2_000, frozenStore.create(spec('a'), scope)),
      codeWithin(frozenTimeoutMs + 2_000, frozenStore.get(one.name, scope)),
      codeWithin(frozenTimeoutMs + 2_000, Array.fromAsync(frozenStore.list(scope))),
      codeWithin(frozenTimeoutMs + 2_000, frozenStore.rename(one, volumeName('b'), scope)),
      codeWithin(frozenTimeoutMs + 2_000, frozenStore.delete(two, scope)),
      codeWithin(frozenTimeoutMs + 2_000, frozenStore.usage(three, scope)),
      codeWithin(frozenTimeoutMs + 2_000, frozenStore.housekeeping.sweep(scope)),
    ]);
    let answeredCount = 0;
    const otherWork = (async () => {
      for (let i = 0; i < 5; i++) {
        for (const store of [local.store, other]) {
          const volume = await store.create({ ...spec(`v${i}`), bytes: 1n }, scope);
          await store.delete(volume, scope);
          answeredCount++;
        }
      }
    })();
    // The other stores finish while the calls to the frozen server wait for their first reply.
    const winner = await Promise.race([verbs.then(() => 'the frozen'), otherWork.then(() => 'the others')]);
    expect([winner, answeredCount]).toEqual(['the others', 10]);
    expect(await verbs).toEqual(Array(7).fill('deadline'));
    frozen.server.thaw();
  });

  test('frozen during a creation: the retry makes one volume', async () => {
    const { frozenStore, folder } = await openStores();
    for (let round = 0; round < 2; round++) {
      const want = spec(`v${round}`, `request ${round}`);
      const [outcome] = await Promise.all([codeOf(frozenStore.create(want, scope)), frozen.server.freeze()]);
      expect(['deadline', 'done']).toContain(outcome);
      // The server is certainly frozen now, so this call times out.
      expect(await codeWithin(answerTimeoutMs, frozenStore.create(spec(`v${round}`, `request ${round}`), scope))).toBe(
        'deadline',
      );
      frozen.server.thaw();
      const made = await frozenStore.create(spec(`v${round}`, `request ${round}`), scope);
      expect((await frozenStore.get(made.name, scope))?.condition).toBe('ok');
    }
    await frozenStore.housekeeping.sweep(scope);
    expect(wrongRecords(contentsOf(folder).records())).toEqual([]);
    expect((await frozenStore.names(scope)).length).toBe(2);
    expect(contentsOf(folder).unrecorded()).toEqual([]);
  });

  test.each(['create', 'rename'] as const)(
    'frozen half-way through: %s waits for one answer, not for two',
    async (verb) => {
      const { frozenStore, freshExport, folder } = await openStores();
      const volume = await frozenStore.create(spec('a'), scope);
      const openOptions = { ...freshExport, options: { ...freshExport.options, timeout: '2s' }, instance: 'other' };
      const connect = interceptCalls(createConnect(systemClock()), async ({ procedure, make }) => {
        if (procedure === (verb === 'create' ? 'mkdir' : 'rename')) await frozen.server.freeze();
        return make();
      });
      const kind = createNfsStoreKind(systemClock(), connect);
      const processes = createProcesses();
      const store = await openNfs({ ...openOptions, kind, marks: processes('other') });
      const want = spec('b', 'request');
      const runVerb = (target: FileStore): Promise<unknown> =>
        verb === 'create' ? target.create(want, scope) : target.rename(volume, volumeName('b'), scope);
      expect(await codeWithin(3_900, runVerb(store))).toBe('deadline');
      frozen.server.thaw();
      const reopened = await openNfs({ ...openOptions, marks: processes('other') });
      await runVerb(reopened);
      await reopened.housekeeping.sweep(scope);
      expect((await reopened.names(scope)).toSorted()).toEqual(verb === 'create' ? ['a', 'b'] : ['b']);
      expect(wrongRecords(contentsOf(folder).records())).toEqual([]);
      await store.close();
      await reopened.close();
    },
  );

  test('killed: verbs fail while it is away, and work again after its restart', async () => {
    const { frozenStore } = await openStores();
    const made = await frozenStore.create(spec('a'), scope);
    await frozen.server.kill();
    expect(await codeWithin(answerTimeoutMs + timeoutMs, frozenStore.create(spec('b'), scope))).toMatch(
      /^(unavailable|deadline)$/,
    );
    await frozen.server.restart();
    // The first replies after a restart may take longer than the timeout of this store.
    await vi.waitFor(async () => expect((await frozenStore.label(made, { x: 'y' }, scope)).revision).toBe(2), 20_000);
    expect((await frozenStore.create(spec('b'), scope)).name).toBe('b');
    expect((await frozenStore.names(scope)).toSorted()).toEqual(['a', 'b']);
  });

  test('a store on a frozen server closes at once', async () => {
    const { frozenStore } = await openStores(20_000);
    await frozen.server.freeze();
    const pendingCreate = codeOf(frozenStore.create(spec('a'), scope));
    expect(await codeWithin(5_000, frozenStore.close())).toBe('done');
    expect(await pendingCreate).not.toBe('done');
  });
});

test.skipIf(lacks('go-nfs'))(
  'a server that forgets its handles when it is restarted is asked for new ones',
  async () => {
    const path = createFolder('frozen');
    await using server = await startGoNfs({ path, signal: scope.signal });
    const store = await openWithTimeout({ uri: `nfs://${server.host}/`, options: portsOf(server) });
    const made = await store.create(spec('a'), scope);
    for (let round = 0; round < 2; round++) {
      await server.restart();
      expect((await store.get(made.name, scope))?.condition).toBe('ok');
      expect(await store.names(scope)).toContain('a');
      expect((await store.label(made, { round: `${round}` }, scope)).revision).toBe(round + 2);
      await server.restart();
      expect((await store.create(spec(`b${round}`), scope)).name).toBe(`b${round}`);
    }
    await store.close();
  },
);

test('a server with two addresses works while one of them is unreachable', async () => {
  const parent = createFolder('fail-over');
  const [directory, state] = [join(parent, 'exported'), join(parent, 'state')];
  mkdirSync(directory);
  const serverOptions = { clock: systemClock(), directory, state, port: 0, path: '/', squash: 'none' } as const;
  const server = await createNfsServer({ ...serverOptions, onError: () => undefined });
  onTestFinished(() => server.close());
  const hosts = [loopbackAddress(), loopbackAddress()] as const;
  const [port = 0] = await freePorts(hosts[0], 1);
  const extraAddresses = [
    await openExtraAddress(hosts[0], port, server),
    await openExtraAddress(hosts[1], port, server),
  ] as const;
  const options = { port: `${port}`, mountport: `${port}`, timeout: '5s' };
  const store = await openNfs({ uri: `nfs://${hosts.join(',')}/`, options });
  onTestFinished(() => store.close());
  const made = await store.create(spec('a'), scope);
  expect([extraAddresses[0].used > 0, extraAddresses[1].used]).toEqual([true, 0]);

  // Cut the first address during twenty creations.
  const creating = Promise.all(Array.from({ length: 20 }, (_, i) => store.create(spec(`v${i}`), scope)));
  await extraAddresses[0].cut();
  expect(new Set((await creating).map(({ id }) => id)).size).toBe(20);
  expect(extraAddresses[1].used).toBeGreaterThan(0);
  expect((await store.label(made, { x: 'y' }, scope)).revision).toBe(2);
  expect((await store.names(scope)).length).toBe(21);
  expect(wrongRecords(contentsOf(directory).records())).toEqual([]);
});
