import { readdir, rm, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { describe, expect, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { sized } from '#testing/sized.ts';
import { createCompetingClients } from './competing-clients.ts';
import { type CrashFixture, createCrashFixture, entriesAfterCleanup, loopsOn, mountsUnder } from './crash-fixture.ts';
import { type KilledServer, startKilledServer } from './killed-server.ts';
import { seededRandom } from './seeded-random.ts';
import { checkContentsOnStore, type KnownVolume } from './volume-contents.ts';
import { createWorker, type Store } from './workload.ts';

const operations = sized({ usual: 200, long: 600 });
const workerCount = 4;

type Worker = ReturnType<typeof createWorker>;
type ListedObject = { readonly id: string; readonly name: string; readonly store: string; readonly bytes?: unknown };
const describeObject = ({ id, store, name, bytes }: ListedObject): string => `${id} ${store}/${name} ${bytes ?? ''}`;

async function listAll(stowage: KilledServer, path: string): Promise<readonly ListedObject[]> {
  const items: ListedObject[] = [];
  for (let after = ''; ; ) {
    const { body } = await stowage.call('GET', `${path}${path.includes('?') ? '&' : '?'}${after}`, undefined, '');
    const page = body as unknown as { readonly items: readonly ListedObject[]; readonly next: string | null };
    items.push(...page.items);
    if (page.next === null) return items;
    after = `after=${encodeURIComponent(page.next)}`;
  }
}

/**
 * Runs all workers until enough operations are done, while the server is killed repeatedly. Counts operations by kind.
 */
async function runUnderKills(
  stowage: KilledServer,
  fixture: CrashFixture,
  workers: readonly Worker[],
  clients: readonly (() => Promise<void>)[],
  random: () => number,
): Promise<ReadonlyMap<string, number>> {
  let [started, done, isOver] = [0, 0, false];
  const kinds = new Map<string, number>();
  const runLoops = async (loops: readonly (() => Promise<void>)[]): Promise<void> => {
    // When one loop fails, the others stop, too, so that nothing runs after the test.
    const ending = loops.map((loop) =>
      loop().finally(() => {
        isOver = true;
      }),
    );
    for (const end of await Promise.allSettled(ending)) if (end.status === 'rejected') throw end.reason;
  };
  const runWorkers = async (): Promise<void> => {
    await runLoops(
      workers.map((worker) => async () => {
        while (!isOver && started++ < operations) {
          const kind = await worker.step();
          kinds.set(kind, (kinds.get(kind) ?? 0) + 1);
          done++;
        }
      }),
    );
  };
  const competingLoops = clients.map((step) => async () => {
    while (!isOver) await step();
  });
  const killRepeatedly = async (): Promise<void> => {
    while (!isOver) {
      // Some operations must complete between two kills. Otherwise a slow machine would never make progress.
      const doneBeforeKill = done + Math.floor(random() * 7);
      while (!isOver && done < doneBeforeKill) await delay(5);
      if (random() < 0.5) {
        await fixture.changeConfig();
        await stowage.reloadConfig();
      }
      await delay(random() * 80);
      if (!isOver) await stowage.kill(random() < 0.25 ? random() * 500 : undefined);
    }
  };
  await runLoops([runWorkers, ...competingLoops, killRepeatedly]);
  return kinds;
}

/** Checks that the listed volumes, mounts and devices agree with the server's earlier answers. */
async function checkRecords(stowage: KilledServer, fixture: CrashFixture, workers: readonly Worker[]): Promise<void> {
  const { state, mounts, top, contested } = fixture;
  const known = workers.flatMap((worker) => [...worker.model.volumes.values()]);
  const volumes = (await listAll(stowage, '/v1/volumes?limit=50')).filter(({ store }) => store !== contested.name);
  const extra = workers.flatMap((worker) => worker.extraVolumes());
  expect(volumes.map(describeObject).sort()).toEqual([...known, ...extra].map(describeObject).sort());
  const trashed = workers.flatMap((worker) => [...worker.model.trash.values()]);
  expect((await listAll(stowage, '/v1/trash')).map(describeObject).sort()).toEqual(trashed.map(describeObject).sort());
  const { body: running } = await stowage.call('GET', '/v1/operations?limit=1000', undefined, '');
  expect((running['items'] as { state: string }[]).filter((operation) => operation.state === 'running')).toEqual([]);

  const mounted = known.filter((volume) => volume.mountedAt !== undefined);
  expect((await mountsUnder(mounts)).sort()).toEqual(mounted.map((volume) => volume.mountedAt).sort());
  const stages = mounted.map((volume) => join(state, 'mounts', volume.id));
  expect((await mountsUnder(join(state, 'mounts'))).sort()).toEqual(stages.sort());
  expect((await loopsOn(top)).length).toBe(mounted.filter((volume) => volume.layout === 'image').length);
}

async function checkNothingMounted({ top, mounts, state }: CrashFixture): Promise<void> {
  expect(await mountsUnder(top)).toEqual([]);
  expect(await loopsOn(top)).toEqual([]);
  expect(await readdir(mounts)).toEqual([]);
  expect(await readdir(join(state, 'mounts'))).toEqual([]);
}

/** Checks that the store contains the files of its volumes and nothing else. */
async function checkStore(stowage: KilledServer, store: Store, workers: readonly Worker[]): Promise<void> {
  const volumesIn = (from: (model: Worker['model']) => ReadonlyMap<string, KnownVolume>): readonly KnownVolume[] =>
    workers.flatMap(({ model }) => [...from(model).values()].filter((volume) => volume.store === store.name));
  const [volumes, retained] = [volumesIn((model) => model.volumes), volumesIn((model) => model.retained)];
  const suffix = store.layout === 'image' ? '.img' : '';
  const internalFolder = (name: string): string => join(store.root, '.stowage', name);
  expect(await entriesAfterCleanup(internalFolder('deleting'))).toEqual([]);
  // The running server refills the reserve of the store here after deletions, in the background.
  expect(await entriesAfterCleanup(internalFolder('tmp'))).toEqual([]);
  if (store.isRemote) {
    // Lock files stay as long as their volumes. Their timestamps hold the state of the lock, so they are always empty.
    for (const lock of await readdir(internalFolder('locks'))) {
      expect(lock).toMatch(/^sv1-/);
      expect((await stat(join(internalFolder('locks'), lock))).size).toBe(0);
    }
    // The new server starts to answer before it has finished the killed server's writes to this folder.
    expect(await entriesAfterCleanup(internalFolder('users'))).toEqual([]);
  }
  const data = [...volumes, ...retained].map(({ name }) => `${name}${suffix}`);
  const records = volumes.map(({ name }) => `${name}.meta`);
  expect((await readdir(store.root)).sort()).toEqual(['.stowage', ...data, ...records].sort());
  expect((await readdir(internalFolder('retained'))).sort()).toEqual(retained.map(({ id }) => `${id}.meta`).sort());
  const trash = volumesIn((model) => model.trash).map(({ id }) => id);
  expect((await readdir(internalFolder('trash'))).sort()).toEqual(trash.sort());
  const orphans = (await listAll(stowage, `/v1/stores/${store.name}/orphans`)).map((orphan) => orphan.name);
  expect(orphans.sort()).toEqual(retained.map(({ name }) => name).sort());
  if (store.layout === 'image') return;
  for (const volume of [...volumes, ...retained]) {
    if (volume.marker !== undefined) await checkContentsOnStore(store.root, volume);
  }
}

describe.skipIf(lacks('linux', 'root', 'mount', 'loop', 'xfs', 'ext4', 'fuse'))('kill -9 at random moments', () => {
  test('loses no volume, creates no volume twice and leaves nothing behind', { timeout: 600_000 }, async () => {
    const seed = Number(process.env['STOWAGE_SEED'] ?? Math.floor(Math.random() * 2 ** 31));
    const random = seededRandom(seed);
    const newRandom = (): (() => number) => seededRandom(Math.floor(random() * 2 ** 31));
    const fixture = await createCrashFixture();
    const stowage = await startKilledServer(fixture);
    try {
      const workers = Array.from({ length: workerCount }, (_, index) =>
        createWorker({ ...fixture, name: `w${index}`, stowage, random: newRandom() }),
      );
      const names = ['one', 'two', 'three'];
      const clients = createCompetingClients({
        count: 2,
        stowage,
        store: fixture.contested.name,
        names,
        random: newRandom(),
      });
      const kinds = await runUnderKills(stowage, fixture, workers, clients.steps, random);
      // Checks that enough operations of all kinds ran, and that kills interrupted calls.
      expect([...kinds.values()].reduce((sum, count) => sum + count, 0)).toBeGreaterThanOrEqual(operations);
      expect([...kinds.keys()].sort()).toEqual([...(workers[0]?.kinds ?? [])].sort());
      expect(stowage.kills).toBeGreaterThan(20);
      expect(stowage.interruptedCalls).toBeGreaterThan(20);
      expect(clients.history.nameConflicts).toBeGreaterThan(0);

      await checkRecords(stowage, fixture, workers);
      await clients.check();
      await Promise.all(workers.map((worker) => worker.unmountAll()));
      await checkNothingMounted(fixture);
      for (const store of fixture.stores) await checkStore(stowage, store, workers);
      // All written data are still there.
      await Promise.all(workers.map((worker) => worker.checkImages()));
      await checkNothingMounted(fixture);
    } catch (cause) {
      throw new Error(`with STOWAGE_SEED=${seed}, after ${stowage.kills} kills`, { cause });
    } finally {
      await stowage.stop();
      await fixture.end();
    }
    await rm(fixture.top, { recursive: true });
  });
});
