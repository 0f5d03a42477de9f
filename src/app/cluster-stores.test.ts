import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import type { StoreKind } from '#core/ports.ts';
import { createLocalStoreKind } from '#stores/local/kind.ts';
import { createNfsStoreKind } from '#stores/nfs/kind.ts';
import { eventually, paths } from '#testing/controller-fixture.ts';
import { collectingLog } from '#testing/core-calls.ts';
import { type FakeKubeApi, startKubeApi } from '#testing/fakes/kube-api.ts';
import { createKubeClient } from '#wire/kube/client.ts';
import { type ClusterStores, createClusterStores } from './cluster-stores.ts';
import { type Running, startUp } from './up.ts';

let api: FakeKubeApi;
let folder: string;
/** Stores that count as mounted. */
let staying: readonly string[];
let log: ReturnType<typeof collectingLog>;

beforeEach(async () => {
  api = await startKubeApi();
  onTestFinished(() => api[Symbol.asyncDispose]());
  folder = mkdtempSync(join(tmpdir(), 'stowage-agent-'));
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
  log = collectingLog();
  staying = [];
});

const kinds: ReadonlyMap<string, StoreKind> = new Map(
  [createLocalStoreKind(), createNfsStoreKind()].map((kind) => [kind.scheme, kind]),
);
const state = (): string => join(folder, 'state');
const aStore = (name: string, uri: string, options?: object): void =>
  void api.put(paths.stores, { metadata: { name, uid: `uid-of-${name}` }, spec: { uri, options } });
const aPlace = (name: string): string => {
  mkdirSync(join(folder, name), { recursive: true });
  return `local://${join(folder, name)}`;
};

/** One run of an agent. */
async function live(): Promise<{
  stores: ClusterStores;
  running: Running;
  names(): readonly string[];
  end(): Promise<void>;
}> {
  const clock = systemClock();
  const client = createKubeClient({ access: api.access, clock, userAgent: 'test' });
  const ending = new AbortController();
  const scope = { signal: ending.signal, log };
  const stores = await createClusterStores({ client, clock, log, state: state() });
  const watching = stores.watch(scope);
  await stores.whenKnown(scope.signal);
  const folders = { state: state(), run: folder, config: folder, socket: join(folder, 's') };
  const running = await startUp({
    folders,
    config: 'none',
    listen: 'none',
    bare: true,
    log,
    signal: ending.signal,
    kinds: [...kinds.values()],
    cluster: stores.configs,
  });
  const apply = async (): Promise<readonly string[]> => {
    await running.reload();
    return staying;
  };
  const following = stores.follow(apply, scope);
  let isOver = false;
  const end = async (): Promise<void> => {
    if (isOver) return;
    isOver = true;
    ending.abort();
    await Promise.all([following, watching]);
    await running.stop();
    client[Symbol.dispose]();
  };
  onTestFinished(end);
  const names = (): readonly string[] => running.core.stores.list().map(({ config }) => config.name as string);
  return { stores, running, names, end };
}

describe('the stores of a node in a cluster', () => {
  test('are those of the Store objects, follow their changes, and cause no writes to the API server', async () => {
    aStore('disks', aPlace('disks'), { maxVolumes: '3' });
    const { running, names } = await live();
    expect(running.core.stores.view('disks')).toMatchObject({
      config: { origin: 'cluster', policy: { maxVolumes: 3 } },
      problem: undefined,
    });
    aStore('more', aPlace('more'));
    await eventually(names).toEqual(['disks', 'more']);
    api.remove(paths.stores, 'disks');
    await eventually(names).toEqual(['more']);
    expect(api.requests.filter((one) => !one.startsWith('GET'))).toEqual([]);
  });

  test('work although one object is invalid, or its directory is missing on this node', async () => {
    aStore('wrong', 'ftp://server/x');
    aStore('missing', `local://${join(folder, 'missing')}`);
    aStore('disks', aPlace('disks'));
    const { running, names } = await live();
    expect(names().toSorted()).toEqual(['disks', 'missing']);
    expect(running.core.stores.view('disks').problem).toBe(undefined);
    expect(running.core.stores.view('missing').problem).toMatchObject({ reason: 'store-root-missing' });
    expect(log.lines.filter((line) => line.includes('invalid Store object'))).toHaveLength(1);
  });

  test('get their directories created in the state folder, and nowhere else', async () => {
    aStore('own', `local://${join(state(), 'stores', 'own')}`);
    aStore('elsewhere', `local://${join(state(), 'stores-elsewhere')}`);
    const { running } = await live();
    expect(running.core.stores.view('own').problem).toBe(undefined);
    expect(readdirSync(state())).not.toContain('stores-elsewhere');
  });

  test('survive a restart without an API server, and change when it is back', async () => {
    aStore('disks', aPlace('disks'));
    aStore('more', aPlace('more'));
    const first = await live();
    await eventually(() => JSON.parse(readFileSync(join(state(), 'cluster-stores.json'), 'utf8')).stores).toHaveLength(
      2,
    );
    await first.end();
    await api.down();
    const second = await live();
    expect(second.names()).toEqual(['disks', 'more']);
    api.remove(paths.stores, 'more');
    await api.up();
    await expect.poll(second.names, { timeout: 30_000, interval: 50 }).toEqual(['disks']);
  }, 60_000);

  test('stay after a restart if they were deleted while mounted', async () => {
    aStore('disks', aPlace('disks'));
    aStore('more', aPlace('more'));
    const first = await live();
    staying = ['disks'];
    for (const name of ['disks', 'more']) api.remove(paths.stores, name);
    const kept = (): readonly string[] =>
      JSON.parse(readFileSync(join(state(), 'cluster-stores.json'), 'utf8')).stores.map(
        ({ metadata }: { readonly metadata: { readonly name: string } }) => metadata.name,
      );
    await eventually(kept).toEqual(['disks']);
    await first.end();
    await api.down();
    const second = await live();
    expect(second.names()).toEqual(['disks']);
    staying = [];
    await api.up();
    await expect.poll(second.names, { timeout: 30_000, interval: 50 }).toEqual([]);
    await eventually(kept).toEqual([]);
  }, 60_000);

  test('are empty while the API server has never answered; an unreadable file counts as none', async () => {
    mkdirSync(state());
    writeFileSync(join(state(), 'cluster-stores.json'), '{"version":2}');
    await api.down();
    const { names } = await live();
    expect(names()).toEqual([]);
    expect(log.lines.join()).toMatch(/saved stores: unknown format.*starting without stores/);
    aStore('disks', aPlace('disks'));
    await api.up();
    await expect.poll(names, { timeout: 30_000, interval: 50 }).toEqual(['disks']);
  }, 60_000);
});
