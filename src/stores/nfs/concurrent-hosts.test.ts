import { mkdirSync, readFileSync, realpathSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { StowageError } from '#core/errors.ts';
import type { Volume, VolumeName, VolumeSpec } from '#core/model.ts';
import { volumeName } from '#core/names.ts';
import { createConnect } from '#stores/nfs/connect.ts';
import { createNfsStoreKind } from '#stores/nfs/kind.ts';
import { startGanesha } from '#testbed/ganesha.ts';
import { lacks } from '#testbed/lacks.ts';
import { scope } from '#testing/contracts/store.ts';
import { connectToDisk } from '#testing/fakes/nfs-on-disk.ts';
import { contentsOf, quickFolder, wrongRecords } from '#testing/nfs-contents.ts';
import { openNfs } from '#testing/nfs-store.ts';
import { keptForAWeek } from '#testing/trash-retention.ts';
import { volumeSpec } from '#testing/volume-spec.ts';
import { createNfsServer } from '#wire/nfs3/server/server.ts';
import type { FileStore } from '../file-store/verbs.ts';

// Several hosts work on one export at the same time, on real servers. interleaved-hosts.test.ts tests every interleaving of two verbs.

/** A server on which several hosts can open the same store. */
interface Site extends AsyncDisposable {
  createStoreFolder(): { readonly folder: string; open(instance: string): Promise<FileStore> };
}

const kindOf = (connect: Parameters<typeof createNfsStoreKind>[1]) => createNfsStoreKind(systemClock(), connect);

function storeFoldersIn(
  parent: string,
  uriOf: (folder: string) => string,
  options: Record<string, string>,
): Site['createStoreFolder'] {
  let count = 0;
  return () => {
    const folder = join(parent, `${++count}`);
    mkdirSync(folder);
    const uri = uriOf(folder);
    // Each host has its own connections, as on separate machines.
    const open = (instance: string): Promise<FileStore> =>
      openNfs({ uri, options, instance, kind: kindOf(createConnect(systemClock())) });
    return { folder, open };
  };
}

const sites: Readonly<Record<string, () => Promise<Site>>> = {
  'nfs-ganesha': async () => {
    const parent = realpathSync(quickFolder('hosts'));
    const server = await startGanesha({ exports: [{ path: parent, tag: 'export' }], signal: scope.signal });
    const options = { port: `${server.nfsPort}`, mountport: `${server.mountPort}` };
    return {
      createStoreFolder: storeFoldersIn(parent, (folder) => `nfs://${server.host}${folder}`, options),
      [Symbol.asyncDispose]: async () => {
        await server[Symbol.asyncDispose]();
        rmSync(parent, { recursive: true, force: true });
      },
    };
  },
  'our own server': async () => {
    const parent = quickFolder('hosts');
    const [directory, state] = [join(parent, 'exported'), join(parent, 'state')];
    mkdirSync(directory);
    const serverOptions = { clock: systemClock(), directory, state, port: 0, path: '/', squash: 'none' } as const;
    const server = await createNfsServer({ ...serverOptions, onError: () => undefined });
    const options = { port: `${server.port}`, mountport: `${server.port}` };
    return {
      createStoreFolder: storeFoldersIn(
        directory,
        (folder) => `nfs://${server.host}${folder.slice(directory.length)}`,
        options,
      ),
      [Symbol.asyncDispose]: async () => {
        await server.close();
        rmSync(parent, { recursive: true, force: true });
      },
    };
  },
  'the local file system': async () => {
    const parent = quickFolder('hosts');
    let count = 0;
    return {
      createStoreFolder: () => {
        const folder = join(parent, `${++count}`);
        mkdirSync(folder);
        const connect = connectToDisk(folder);
        return {
          folder,
          open: (instance) => openNfs({ uri: 'nfs://nowhere/export', instance, kind: kindOf(connect) }),
        };
      },
      [Symbol.asyncDispose]: async () => rmSync(parent, { recursive: true, force: true }),
    };
  },
};

const volumeNameOf = volumeName;
const spec = (name: string, more: Partial<VolumeSpec> = {}): VolumeSpec =>
  volumeSpec(name, { requestId: `${Math.random()}`, instance: 'host-1', ...more });

const reasonOf = (result: PromiseSettledResult<unknown>): string =>
  result.status === 'fulfilled' ? 'done' : result.reason instanceof StowageError ? result.reason.reason : 'no reason';

for (const [title, start] of Object.entries(sites))
  describe.skipIf(title === 'nfs-ganesha' && lacks('ganesha'))(`several hosts on ${title}`, () => {
    let site: Site;
    beforeAll(async () => {
      site = await start();
    });
    afterAll(() => site[Symbol.asyncDispose]());

    async function openHosts(
      count: number,
    ): Promise<{ readonly folder: string; readonly stores: readonly FileStore[] }> {
      const { folder, open } = site.createStoreFolder();
      // Open at the same time, so that each host may be the first.
      const stores = await Promise.all(Array.from({ length: count }, (_, i) => open(`host-${i + 1}`)));
      return { folder, stores };
    }

    test('all hosts that open a new store at the same time get the same store id', async () => {
      const { stores } = await openHosts(8);
      expect(new Set(stores.map(({ identity }) => identity)).size).toBe(1);
      expect(stores[0]?.identity).toMatch(/^[0-9a-f-]{36}$/);
    });

    test('a host sees, changes and deletes a volume that another one made', async () => {
      const [one, other] = (await openHosts(2)).stores as [FileStore, FileStore];
      const made = await one.create(spec('a'), scope);
      expect(await other.get(made.name, scope)).toEqual({ volume: made, condition: 'ok' });
      expect(await Array.fromAsync(other.list(scope))).toEqual([made]);
      const labelled = await other.label(made, { by: 'other' }, scope);
      expect((await one.get(made.name, scope))?.volume).toEqual(labelled);
      await one.trash.put(made, keptForAWeek(1), scope);
      expect((await other.trash.restore(made.id, volumeNameOf('b'), scope)).labels).toEqual({ by: 'other' });
      await one.delete({ id: made.id, name: volumeNameOf('b') }, scope);
      expect(await other.names(scope)).toEqual([]);
    });

    test.each([2, 8])(
      'of %i hosts that create the same name at once, one succeeds and the others fail',
      async (count) => {
        const { folder, stores } = await openHosts(count);
        for (let round = 0; round < 12; round++) {
          const results = await Promise.allSettled(stores.map((store) => store.create(spec(`v${round}`), scope)));
          expect(results.map(reasonOf).sort()).toEqual(['done', ...Array(count - 1).fill('volume-exists')]);
        }
        expect(wrongRecords(contentsOf(folder).records())).toEqual([]);
        expect((await stores[0]?.names(scope))?.length).toBe(12);
      },
    );

    test.each([2, 8])('the same request to %i hosts makes one volume', async (count) => {
      const { folder, stores } = await openHosts(count);
      for (let round = 0; round < 12; round++) {
        const requestId = `request ${round}`;
        const made = await Promise.all(stores.map((store) => store.create(spec(`v${round}`, { requestId }), scope)));
        expect(new Set(made.map(({ id }) => id)).size).toBe(1);
      }
      expect(wrongRecords(contentsOf(folder).records())).toEqual([]);
      expect(contentsOf(folder).heldLocks()).toEqual([]);
    });

    test('no concurrent label change is lost', async () => {
      const { stores } = await openHosts(3);
      const made = await (stores[0] as FileStore).create(spec('a'), scope);
      const revisions = await Promise.all(
        stores.map(async (store, host) => {
          const seen: number[] = [];
          for (let i = 0; i < 5; i++) seen.push((await store.label(made, { [`${host}`]: `${i}` }, scope)).revision);
          return seen;
        }),
      );
      expect(revisions.flat().sort((a, b) => a - b)).toEqual(Array.from({ length: 15 }, (_, i) => i + 2));
      expect((await stores[1]?.get(made.name, scope))?.volume.revision).toBe(16);
    });

    test('no volume is lost, duplicated or mixed up, whatever three hosts do at once', async () => {
      const { folder, stores } = await openHosts(3);
      writeFileSync(join(folder, 'somebody.meta'), 'not ours');
      const seed = Math.floor(Math.random() * 2 ** 31);
      const model = createModel(folder, seed);
      await Promise.all(stores.map((store, i) => model.run(store, `host-${i + 1}`, 120)));
      for (const store of stores) {
        await store.housekeeping.sweep(scope);
        await store.housekeeping.reclaim(scope);
      }
      expect(model.faults(), `seed ${seed}`).toEqual([]);
      const kinds = (await (stores[0] as FileStore).housekeeping.orphans(scope)).map(
        (orphan) => `${orphan.kind} ${orphan.name}`,
      );
      expect(kinds.filter((kind) => !kind.startsWith('unknown-volume'))).toEqual(['unreadable-record somebody']);
      expect(readFileSync(join(folder, 'somebody.meta'), 'utf8')).toBe('not ours');
    });
  });

/** Records what the calls of each host returned, and checks that the store agrees. */
function createModel(folder: string, seed: number) {
  const known: Volume[] = [];
  /** The ids of volumes that a host deleted. */
  const deletedIds = new Set<string>();
  const unexpectedErrors: string[] = [];
  let state = seed;

  function pick<T>(choices: readonly T[]): T {
    state = (Math.imul(state, 1_103_515_245) + 12_345) & 0x7fff_ffff;
    return choices[(state >> 8) % choices.length] as T;
  }
  const anyName = (): VolumeName => volumeNameOf(pick(['a', 'b', 'c', 'd']));

  async function create(store: FileStore, host: string): Promise<void> {
    const made = await store.create(spec(anyName(), { instance: host }), scope);
    // No other host knows its id yet, so no host moves it.
    writeFileSync(join(folder, made.name, 'file'), made.id);
    known.push(made);
  }

  function destroy(id: string, work: () => Promise<void>): Promise<void> {
    deletedIds.add(id);
    return work();
  }

  async function step(store: FileStore, host: string): Promise<unknown> {
    const volume = known.length === 0 ? undefined : pick(known.slice(-6));
    if (volume === undefined) return create(store, host);
    const ref = { id: volume.id, name: pick([volume.name, anyName()]) };
    const verbs = [
      () => create(store, host),
      () => create(store, host),
      () => store.rename(ref, anyName(), scope),
      () => store.rename(ref, anyName(), scope),
      () => store.label(ref, { [host]: `${state}` }, scope),
      () => store.trash.put(ref, keptForAWeek(1), scope),
      () => store.trash.restore(ref.id, anyName(), scope),
      () => store.trash.restore(ref.id, anyName(), scope),
      () => destroy(ref.id, () => store.delete(ref, scope)),
      () => destroy(ref.id, () => store.trash.purge(ref.id, scope)),
      () => store.housekeeping.sweep(scope),
      () => store.housekeeping.reclaim(scope),
    ];
    return pick(verbs)();
  }

  return {
    run: async (store: FileStore, host: string, steps: number): Promise<void> => {
      for (let i = 0; i < steps; i++) {
        try {
          await step(store, host);
        } catch (cause) {
          const isFine = cause instanceof StowageError && ['exists', 'not-found', 'busy'].includes(cause.code);
          if (!isFine) unexpectedErrors.push(String(cause));
        }
      }
    },
    faults: (): string[] => {
      const contents = contentsOf(folder);
      const all = contents.records().filter(({ at }) => at !== 'somebody.meta');
      const isThere = (id: string): boolean => all.some((one) => one.id === id && one.data === id);
      return [
        ...unexpectedErrors,
        ...wrongRecords(all),
        ...known.filter(({ id }) => !deletedIds.has(id) && !isThere(id)).map(({ id }) => `${id} is lost`),
        ...all.filter(({ id }) => !known.some((one) => one.id === id)).map(({ id }) => `no host made ${id}`),
        ...contents.unrecorded().map((entry) => `without a record: ${entry}`),
        ...contents.heldLocks().map((entry) => `locked: ${entry}`),
        ...['tmp', 'deleting'].flatMap((part) => contents.own(part).map((entry) => `${part}: ${entry}`)),
      ];
    },
  };
}
