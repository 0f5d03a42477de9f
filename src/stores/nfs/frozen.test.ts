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
import { needs } from '#testbed/needs.ts';
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

// Servers that stand still, die and come back, under a store that stays open.

const spec = (called: string, requestId = `${Math.random()}`): VolumeSpec => volumeSpec(called, { requestId });
const timeoutMs = 1_000;
/** A call without an answer, and how the store handles it. */
const answerTimeoutMs = timeoutMs + 2_000;

const codeOf = (work: Promise<unknown>): Promise<string> => outcome(work, 'code');
const within = async (ms: number, work: Promise<unknown>): Promise<string> => {
  const since = performance.now();
  const code = await codeOf(work);
  return performance.now() - since < ms ? code : `${code}, too late`;
};

const openImpatient = (
  { uri, options }: Required<Pick<OpenNfs, 'uri' | 'options'>>,
  ms = timeoutMs,
): Promise<FileStore> => openNfs({ uri, options: { ...options, timeout: `${ms}ms` } });

/** A folder that goes with the test. */
function folderOf(what: string): string {
  const folder = realpathSync(quickFolder(what));
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
  return folder;
}

describe.skipIf(needs('ganesha'))('nfs-ganesha', () => {
  const [frozen, healthy] = [ganeshaFolders('frozen'), ganeshaFolders('healthy')];

  async function stores(stuckMs = timeoutMs) {
    const freshExport = frozen.fresh();
    const [stuck, other] = [await openImpatient(freshExport, stuckMs), await openImpatient(healthy.fresh())];
    onTestFinished(async () => {
      frozen.server.thaw();
      await stuck.close();
      await other.close();
    });
    return { stuck, other, freshExport, folder: freshExport.folder };
  }

  test('frozen: every verb ends at its deadline, and other stores answer in the meantime', async () => {
    const stuckMs = 15_000;
    const { stuck, other } = await stores(stuckMs);
    await using local = await localStore();
    const [one, two, three] = [
      await stuck.create(spec('one'), scope),
      await stuck.create(spec('two'), scope),
      await stuck.create(spec('three'), scope),
    ];
    await frozen.server.freeze();
    const verbs = Promise.all([
      within(stuckMs + 2_000, stuck.create(spec('a'), scope)),
      within(stuckMs + 2_000, stuck.get(one.name, scope)),
      within(stuckMs + 2_000, Array.fromAsync(stuck.list(scope))),
      within(stuckMs + 2_000, stuck.rename(one, volumeName('b'), scope)),
      within(stuckMs + 2_000, stuck.delete(two, scope)),
      within(stuckMs + 2_000, stuck.usage(three, scope)),
      within(stuckMs + 2_000, stuck.housekeeping.sweep(scope)),
    ]);
    let answered = 0;
    const busy = (async () => {
      for (let i = 0; i < 5; i++) {
        for (const store of [local.store, other]) {
          const volume = await store.create({ ...spec(`v${i}`), bytes: 1n }, scope);
          await store.delete(volume, scope);
          answered++;
        }
      }
    })();
    // All of that while the frozen ones wait for their first answer.
    const earliest = await Promise.race([verbs.then(() => 'the frozen'), busy.then(() => 'the others')]);
    expect([earliest, answered]).toEqual(['the others', 10]);
    expect(await verbs).toEqual(Array(7).fill('deadline'));
    frozen.server.thaw();
  });

  test('frozen during a creation: the retry makes one volume', async () => {
    const { stuck, folder } = await stores();
    for (let round = 0; round < 2; round++) {
      const want = spec(`v${round}`, `request ${round}`);
      const [told] = await Promise.all([codeOf(stuck.create(want, scope)), frozen.server.freeze()]);
      expect(['deadline', 'done']).toContain(told);
      // And once surely without an answer.
      expect(await within(answerTimeoutMs, stuck.create(spec(`v${round}`, `request ${round}`), scope))).toBe(
        'deadline',
      );
      frozen.server.thaw();
      const made = await stuck.create(spec(`v${round}`, `request ${round}`), scope);
      expect((await stuck.get(made.name, scope))?.condition).toBe('ok');
    }
    await stuck.housekeeping.sweep(scope);
    expect(wrongRecords(contentsOf(folder).records())).toEqual([]);
    expect((await stuck.names(scope)).length).toBe(2);
    expect(contentsOf(folder).unrecorded()).toEqual([]);
  });

  test.each(['create', 'rename'] as const)(
    'frozen half-way through: %s waits for one answer, not for two',
    async (verb) => {
      const { stuck, freshExport, folder } = await stores();
      const volume = await stuck.create(spec('a'), scope);
      const at = { ...freshExport, options: { ...freshExport.options, timeout: '2s' }, instance: 'other' };
      const freezing = interceptCalls(createConnect(systemClock()), async ({ procedure, make }) => {
        if (procedure === (verb === 'create' ? 'mkdir' : 'rename')) await frozen.server.freeze();
        return make();
      });
      const kind = createNfsStoreKind(systemClock(), freezing);
      const lives = createProcesses();
      const store = await openNfs({ ...at, kind, marks: lives('other') });
      const want = spec('b', 'request');
      const run = (on: FileStore): Promise<unknown> =>
        verb === 'create' ? on.create(want, scope) : on.rename(volume, volumeName('b'), scope);
      expect(await within(3_900, run(store))).toBe('deadline');
      frozen.server.thaw();
      const again = await openNfs({ ...at, marks: lives('other') });
      await run(again);
      await again.housekeeping.sweep(scope);
      expect((await again.names(scope)).toSorted()).toEqual(verb === 'create' ? ['a', 'b'] : ['b']);
      expect(wrongRecords(contentsOf(folder).records())).toEqual([]);
      await store.close();
      await again.close();
    },
  );

  test('killed: verbs fail while it is away, and work again after its restart', async () => {
    const { stuck } = await stores();
    const made = await stuck.create(spec('a'), scope);
    await frozen.server.kill();
    expect(await within(answerTimeoutMs + timeoutMs, stuck.create(spec('b'), scope))).toMatch(
      /^(unavailable|deadline)$/,
    );
    await frozen.server.restart();
    // It may need longer for its first answers than this store waits.
    await vi.waitFor(async () => expect((await stuck.label(made, { x: 'y' }, scope)).revision).toBe(2), 20_000);
    expect((await stuck.create(spec('b'), scope)).name).toBe('b');
    expect((await stuck.names(scope)).toSorted()).toEqual(['a', 'b']);
  });

  test('a store on a frozen server closes at once', async () => {
    const { stuck } = await stores(20_000);
    await frozen.server.freeze();
    const waiting = codeOf(stuck.create(spec('a'), scope));
    expect(await within(5_000, stuck.close())).toBe('done');
    expect(await waiting).not.toBe('done');
  });
});

test.skipIf(needs('go-nfs'))(
  'a server that forgets its handles when it is restarted is asked for new ones',
  async () => {
    const path = folderOf('frozen');
    await using server = await startGoNfs({ path, signal: scope.signal });
    const store = await openImpatient({ uri: `nfs://${server.host}/`, options: portsOf(server) });
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
  const parent = folderOf('fail-over');
  const [directory, state] = [join(parent, 'exported'), join(parent, 'state')];
  mkdirSync(directory);
  const about = { clock: systemClock(), directory, state, port: 0, path: '/', squash: 'none' } as const;
  const server = await createNfsServer({ ...about, onError: () => undefined });
  onTestFinished(() => server.close());
  const hosts = [loopbackAddress(), loopbackAddress()] as const;
  const [port = 0] = await freePorts(hosts[0], 1);
  const ways = [
    await openExtraAddress(hosts[0], port, server),
    await openExtraAddress(hosts[1], port, server),
  ] as const;
  const options = { port: `${port}`, mountport: `${port}`, timeout: '5s' };
  const store = await openNfs({ uri: `nfs://${hosts.join(',')}/`, options });
  onTestFinished(() => store.close());
  const made = await store.create(spec('a'), scope);
  expect([ways[0].used > 0, ways[1].used]).toEqual([true, 0]);

  // In the middle of twenty creations.
  const creating = Promise.all(Array.from({ length: 20 }, (_, i) => store.create(spec(`v${i}`), scope)));
  await ways[0].cut();
  expect(new Set((await creating).map(({ id }) => id)).size).toBe(20);
  expect(ways[1].used).toBeGreaterThan(0);
  expect((await store.label(made, { x: 'y' }, scope)).revision).toBe(2);
  expect((await store.names(scope)).length).toBe(21);
  expect(wrongRecords(contentsOf(directory).records())).toEqual([]);
});
