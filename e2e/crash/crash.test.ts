import { mkdir, mkdtemp, readdir, readFile, realpath, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { describe, expect, test } from 'vitest';
import { needs } from '#testbed/needs.ts';
import { startVictim, type Victim } from './victim.ts';
import { chance, createWorker, type Known, type Store } from './workload.ts';

const operations = 200;
const workers = 4;

interface Listed {
  readonly items: readonly {
    readonly id: string;
    readonly name: string;
    readonly store: string;
    readonly bytes: string | null;
  }[];
  readonly next: string | null;
}

async function listed(victim: Victim, path: string): Promise<Listed['items']> {
  const items: Listed['items'][number][] = [];
  for (let after = ''; ; ) {
    const { body } = await victim.call('GET', `${path}${path.includes('?') ? '&' : '?'}${after}`, undefined, '');
    const page = body as unknown as Listed;
    items.push(...page.items);
    if (page.next === null) return items;
    after = `after=${encodeURIComponent(page.next)}`;
  }
}

async function loopsOn(folder: string): Promise<string[]> {
  const found: string[] = [];
  for (const device of await readdir('/sys/block')) {
    const backing = await readFile(`/sys/block/${device}/loop/backing_file`, 'utf8').catch(() => '');
    if (backing.startsWith(folder)) found.push(backing.trim());
  }
  return found;
}

async function mountsUnder(folder: string): Promise<string[]> {
  const table = await readFile('/proc/self/mountinfo', 'utf8');
  return table
    .split('\n')
    .map((line) => line.split(' ')[4] ?? '')
    .filter((at) => at.startsWith(folder));
}

/** Space is freed behind the answer, so this is waited for; the bound is what fails. */
async function emptied(folder: string): Promise<void> {
  for (let round = 0; round < 200; round++) {
    if ((await readdir(folder)).length === 0) return;
    await delay(50);
  }
  expect(await readdir(folder)).toEqual([]);
}

function expectedEntries(store: Store, volumes: readonly Known[]): string[] {
  const suffix = store.layout === 'image' ? '.img' : '';
  return [
    '.stowage',
    ...volumes.filter((one) => one.store === store.name).flatMap((one) => [`${one.name}${suffix}`, `${one.name}.meta`]),
  ].sort();
}

describe.skipIf(needs('linux', 'root', 'mount', 'loop', 'xfs', 'ext4'))('kill -9 at random moments', () => {
  test('loses nothing, makes nothing twice and leaves nothing behind', { timeout: 600_000 }, async () => {
    const seed = Number(process.env['STOWAGE_SEED'] ?? Math.floor(Math.random() * 2 ** 31));
    const random = chance(seed);
    const top = await realpath(await mkdtemp(join(tmpdir(), 'stowage-crash-')));
    const state = join(top, 'state');
    const mounts = join(top, 'mounts');
    const stores: Store[] = [
      { name: 'plain', root: join(top, 'plain'), layout: 'directory', archive: false },
      { name: 'kept', root: join(top, 'kept'), layout: 'directory', archive: true },
      { name: 'images', root: join(top, 'images'), layout: 'image', archive: true },
    ];
    for (const folder of [mounts, ...stores.map((store) => store.root)]) await mkdir(folder);
    const config = join(top, 'stowage.yaml');
    const lines = stores.map(
      (store) =>
        `  ${store.name}: local://${store.root}?layout=${store.layout}${store.archive ? '&onDelete=archive' : ''}`,
    );
    await writeFile(config, ['version: 1', 'stores:', ...lines, ''].join('\n'));
    const victim = await startVictim({ state, config });
    try {
      const crew = Array.from({ length: workers }, (_, index) =>
        createWorker({ name: `w${index}`, victim, stores, mounts, random: chance(Math.floor(random() * 2 ** 31)) }),
      );
      let [begun, done, over] = [0, 0, false];
      const kinds = new Map<string, number>();
      const work = async (worker: (typeof crew)[number]): Promise<void> => {
        try {
          while (!over && begun++ < operations) {
            const kind = await worker.step();
            kinds.set(kind, (kinds.get(kind) ?? 0) + 1);
            done++;
          }
        } catch (thrown) {
          // The others stop too, so that nothing goes on after the test.
          over = true;
          throw thrown;
        }
      };
      const working = Promise.allSettled(crew.map(work)).then((ends) => {
        over = true;
        for (const end of ends) if (end.status === 'rejected') throw end.reason;
      });
      const killing = (async () => {
        while (!over) {
          // Not before something was done since the last one: on a slow machine nothing would ever be.
          const enough = done + Math.floor(random() * 7);
          while (!over && done < enough) await delay(5);
          await delay(random() * 80);
          if (!over) await victim.kill(random() < 0.25 ? random() * 500 : undefined);
        }
      })();
      await Promise.allSettled([working, killing]);
      await working;
      await killing;
      // Else nothing was tried.
      expect([...kinds.values()].reduce((sum, count) => sum + count, 0)).toBeGreaterThanOrEqual(operations);
      expect([...kinds.keys()].sort()).toEqual(
        ['adopt', 'create', 'expand', 'label', 'mount', 'purge', 'remove', 'rename', 'restore', 'unmount'].sort(),
      );
      expect(victim.kills).toBeGreaterThan(20);
      expect(victim.interrupted).toBeGreaterThan(20);

      const known = crew.flatMap((worker) => [...worker.model.volumes.values()]);
      const trashed = crew.flatMap((worker) => [...worker.model.trash.values()]);
      const brief = (volume: { id: string; name: string; store: string; bytes?: string | bigint | null | undefined }) =>
        `${volume.id} ${volume.store}/${volume.name} ${volume.bytes ?? ''}`;
      expect((await listed(victim, '/v1/volumes?limit=50')).map(brief).sort()).toEqual(known.map(brief).sort());
      expect((await listed(victim, '/v1/trash')).map(brief).sort()).toEqual(trashed.map(brief).sort());
      const { body: running } = await victim.call('GET', '/v1/operations?limit=1000', undefined, '');
      expect((running['items'] as { state: string }[]).filter((one) => one.state === 'running')).toEqual([]);

      const mounted = known.filter((volume) => volume.mountedAt !== undefined);
      expect((await mountsUnder(mounts)).sort()).toEqual(mounted.map((volume) => volume.mountedAt).sort());
      expect((await mountsUnder(join(state, 'mounts'))).sort()).toEqual(
        mounted.map((volume) => join(state, 'mounts', volume.id)).sort(),
      );
      expect((await loopsOn(top)).length).toBe(mounted.filter((volume) => volume.store === 'images').length);
      for (const worker of crew) await worker.unmountAll();
      expect(await mountsUnder(top)).toEqual([]);
      expect(await loopsOn(top)).toEqual([]);
      expect(await readdir(mounts)).toEqual([]);
      expect(await readdir(join(state, 'mounts'))).toEqual([]);

      for (const store of stores) {
        await emptied(join(store.root, '.stowage', 'deleting'));
        expect(await readdir(join(store.root, '.stowage', 'tmp'))).toEqual([]);
        expect((await readdir(store.root)).sort()).toEqual(expectedEntries(store, known));
        expect((await readdir(join(store.root, '.stowage', 'trash'))).sort()).toEqual(
          trashed
            .filter((one) => one.store === store.name)
            .map((one) => one.id)
            .sort(),
        );
        expect((await listed(victim, `/v1/stores/${store.name}/orphans`)).map((orphan) => orphan.name)).toEqual([]);
      }
      // What was written is still there, mounted or not.
      for (const volume of known) {
        if (volume.marker === undefined || volume.store === 'images') continue;
        const store = stores.find((one) => one.name === volume.store);
        expect(await readFile(join(store?.root ?? '', volume.name, 'marker'), 'utf8')).toBe(volume.marker);
      }
    } catch (cause) {
      throw new Error(`with STOWAGE_SEED=${seed}, after ${victim.kills} kills`, { cause });
    } finally {
      await victim.stop();
    }
    await rm(top, { recursive: true });
  });
});
