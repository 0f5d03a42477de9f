import { randomUUID } from 'node:crypto';
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import type { TrashEntry, Volume } from '#core/model.ts';
import { createLocalStoreKind } from '#stores/local/kind.ts';
import { createConnect } from '#stores/nfs/connect.ts';
import { createNfsStoreKind } from '#stores/nfs/kind.ts';
import { startGanesha } from '#testbed/ganesha.ts';
import { lacks } from '#testbed/lacks.ts';
import { scope } from '#testing/contracts/store.ts';
import { aCall } from '#testing/core-calls.ts';
import { createSkewedClock, type SkewedClock } from '#testing/fakes/skewed-clock.ts';
import { portsOf } from '#testing/ganesha-folders.ts';
import { quickFolder } from '#testing/nfs-contents.ts';
import { startServer, type TestServer } from '#testing/server.ts';

// Several hosts share one store of a real server whose clock the tests can set. Each host is a complete `stowage up` with its
// own clock and retention. All hosts run in one process, so that a test decides when each of them runs its maintenance.

const minute = 60_000;
const hour = 60 * minute;
const day = 24 * hour;
const anywhere = (): boolean => true;

interface Host {
  readonly clock: SkewedClock;
  readonly server: TestServer;
  create(name: string): Promise<Volume>;
  remove(volume: Volume): Promise<{ readonly expiresAt: number | undefined }>;
  trash(): Promise<readonly TrashEntry[]>;
  restore(volume: Volume): Promise<Volume>;
  purge(volume: Volume): Promise<void>;
  /** Runs the maintenance that a server runs every half minute. */
  maintain(): Promise<void>;
  restart(): Promise<Host>;
}

describe.skipIf(lacks('ganesha'))('the trash of a store that several hosts share', () => {
  let parent: string;
  let clockFile: string;
  let exported: Awaited<ReturnType<typeof startGanesha>>;
  let folder: string;
  let uri: string;
  let serverAhead = 0;
  let count = 0;

  beforeAll(async () => {
    parent = quickFolder('trash-hosts');
    mkdirSync(join(parent, 'export'));
    clockFile = join(parent, 'clock');
    writeFileSync(clockFile, '0');
    exported = await startGanesha({
      exports: [{ path: join(parent, 'export'), tag: 'export' }],
      clockFile,
      signal: scope.signal,
    });
  });
  afterAll(async () => {
    await exported[Symbol.asyncDispose]();
    rmSync(parent, { recursive: true, force: true });
  });
  beforeEach(() => {
    setServerClock(0);
    folder = join(parent, 'export', `${++count}`);
    mkdirSync(folder);
    uri = `nfs://${exported.host}${folder}`;
  });

  /** Sets the difference between the server's clock and this machine's. */
  function setServerClock(ahead: number): void {
    serverAhead = ahead;
    writeFileSync(clockFile, `${Math.round(ahead / 1000)}`);
  }
  const serverNow = (): number => Date.now() + serverAhead;

  interface HostOptions {
    readonly retention: string;
    readonly skew?: number;
    readonly folder?: string;
    readonly clock?: SkewedClock;
  }

  async function startHost({
    retention,
    skew = 0,
    folder: state,
    clock = createSkewedClock(skew),
  }: HostOptions): Promise<Host> {
    const kinds = [createLocalStoreKind(clock), createNfsStoreKind(clock, createConnect(systemClock()))];
    const server = await startServer({
      listen: 'none',
      clock,
      kinds,
      ...(state === undefined ? {} : { folder: state }),
    });
    onTestFinished(async () => {
      await server[Symbol.asyncDispose]();
      rmSync(server.folder, { recursive: true, force: true });
    });
    const { deletions, stores, volumes } = server.core;
    if (state === undefined) {
      const query = new URLSearchParams({ ...portsOf(exported), onDelete: 'archive', retention });
      await stores.add('keep', `${uri}?${query}`, aCall());
    }
    return {
      clock,
      server,
      create: (name) =>
        volumes.create({ store: 'keep', name, bytes: undefined, access: undefined, labels: {} }, aCall()),
      remove: ({ id }) => deletions.delete(id, undefined, aCall()),
      trash: () => deletions.trashOf('keep', aCall()),
      restore: ({ id }) => deletions.restore(id, undefined, anywhere, aCall()),
      purge: ({ id }) => deletions.purge(id, anywhere, aCall()),
      maintain: () => deletions.purgeExpired(aCall()),
      restart: async () => {
        await server.stop();
        return await startHost({ retention, folder: server.folder, clock });
      },
    };
  }

  /** Adds to the host's observed time, as if another process of the same instance had saved it. */
  function addObserved(instance: string, ms: number): void {
    const observed = join(folder, '.stowage', 'observed');
    for (const file of readdirSync(observed).map((name) => join(observed, name))) {
      const saved = JSON.parse(readFileSync(file, 'utf8'));
      if (saved.instance !== instance) continue;
      writeFileSync(file, `${JSON.stringify({ ...saved, elapsed: saved.elapsed + ms, mark: randomUUID() })}\n`);
    }
  }

  /**
   * Lets time pass for a host that observes the store all the while. Simulating days with an observation every five minutes would take long,
   * so this changes the file with the count. Before that it lets a minute pass, after which the host saves its count.
   */
  async function observe({ clock, server, maintain }: Host, ms: number): Promise<void> {
    await maintain();
    clock.pass(Math.min(ms, minute));
    if (ms <= minute) return;
    await maintain();
    clock.pass(ms - minute);
    addObserved(server.core.instance, ms - minute);
  }

  /** Lets time pass for the hosts and the server. */
  async function passTime(ms: number, ...hosts: readonly Host[]): Promise<void> {
    for (const host of hosts) await observe(host, ms);
    setServerClock(serverAhead + ms);
  }

  test('a host with a short retention does not purge entries of a host with a longer one', async () => {
    const one = await startHost({ retention: '30d' });
    const other = await startHost({ retention: '1m' });
    const volume = await one.create('a');
    await one.remove(volume);
    await other.maintain();
    await passTime(2 * minute, one, other);
    await other.maintain();
    await one.maintain();
    expect(await other.trash()).toHaveLength(1);
    expect((await one.restore(volume)).id).toBe(volume.id);
  });

  test('a host that joins with a clock eight days ahead purges nothing', async () => {
    const one = await startHost({ retention: '7d' });
    const volume = await one.create('a');
    await one.remove(volume);
    const newHost = await startHost({ retention: '7d', skew: 8 * day });
    await newHost.maintain();
    expect((await one.restore(volume)).id).toBe(volume.id);
  });

  test('a host whose clock is behind does not purge its entries early', async () => {
    const slowHost = await startHost({ retention: '7d', skew: -30 * day });
    const other = await startHost({ retention: '7d' });
    const volume = await slowHost.create('a');
    await slowHost.remove(volume);
    await other.maintain();
    await slowHost.maintain();
    expect((await slowHost.restore(volume)).id).toBe(volume.id);
  });

  test('of three hosts with wrong clocks and other retentions, the one that deleted a volume purges it in time', async () => {
    const owner = await startHost({ retention: '3d', skew: -400 * day });
    const others = [
      await startHost({ retention: '1m', skew: 500 * day }),
      await startHost({ retention: '30d', skew: -2 * hour }),
    ];
    const all = [owner, ...others];
    const volume = await owner.create('a');
    const before = serverNow();
    const { expiresAt = 0 } = await owner.remove(volume);
    expect(expiresAt - 3 * day).toBeGreaterThanOrEqual(Math.floor(before / 1000) * 1000);
    expect(expiresAt - 3 * day).toBeLessThanOrEqual(serverNow() + 1000);
    for (const host of all) expect(await host.trash()).toMatchObject([{ volume: { id: volume.id }, expiresAt }]);
    for (const step of [1, day, day, day - hour]) {
      await passTime(step, ...all);
      for (const host of all) await host.maintain();
      expect(await owner.trash()).toHaveLength(1);
    }
    await passTime(hour, ...all);
    for (const host of others) await host.maintain();
    expect(await owner.trash()).toHaveLength(1);
    await owner.maintain();
    expect(await owner.trash()).toEqual([]);
  });

  test('a server whose clock jumps ahead makes no host purge anything', async () => {
    const owner = await startHost({ retention: '7d' });
    const other = await startHost({ retention: '7d' });
    const volume = await owner.create('a');
    await owner.remove(volume);
    setServerClock(3650 * day);
    for (const host of [owner, other]) await host.maintain();
    for (const host of [owner, other]) await observe(host, 7 * day - hour);
    for (const host of [owner, other]) await host.maintain();
    expect(await owner.trash()).toHaveLength(1);
    setServerClock(7 * day - hour);
    for (const host of [owner, other]) await host.maintain();
    expect((await other.restore(volume)).id).toBe(volume.id);
  });

  test('a server whose clock jumps back keeps the entry until its date comes again', async () => {
    const owner = await startHost({ retention: '7d' });
    const volume = await owner.create('a');
    await owner.remove(volume);
    setServerClock(-365 * day);
    await observe(owner, 30 * day);
    await owner.maintain();
    expect(await owner.trash()).toHaveLength(1);
    setServerClock(7 * day + minute);
    await owner.maintain();
    expect(await owner.trash()).toEqual([]);
  });

  test('the time that a host has observed an entry survives restarts', async () => {
    let owner = await startHost({ retention: '7d' });
    const volume = await owner.create('a');
    await owner.remove(volume);
    setServerClock(365 * day);
    for (let restarts = 0; restarts < 7; restarts++) {
      await owner.maintain();
      await observe(owner, day - minute);
      await owner.maintain();
      expect((await owner.trash()).map(({ volume: { id } }) => id)).toEqual([volume.id]);
      // No host runs, and the wall clock advances.
      owner.clock.jump(90 * day);
      owner = await owner.restart();
    }
    await owner.maintain();
    await observe(owner, 8 * minute);
    await owner.maintain();
    expect(await owner.trash()).toEqual([]);
  });

  test('an entry whose owner is gone is purged by one other host, long after', async () => {
    const lostOwner = await startHost({ retention: '2d' });
    const volume = await lostOwner.create('a');
    await lostOwner.remove(volume);
    await lostOwner.server.stop();
    const others = [await startHost({ retention: '1m' }), await startHost({ retention: '1m' })];
    const [first, second] = others as [Host, Host];
    await passTime(2 * day + 2 * hour, ...others);
    // The first that sees the entry overdue becomes the successor; it waits for the retention and a week, as it saw them itself.
    for (const host of others) await host.maintain();
    for (let days = 0; days < 9; days++) {
      for (const host of others) await host.maintain();
      expect(await first.trash()).toHaveLength(1);
      await passTime(day, ...others);
    }
    await second.maintain();
    expect(await first.trash()).toHaveLength(1);
    await first.maintain();
    expect(await first.trash()).toEqual([]);
  });

  test('a successor of a lost owner does not trust a server whose clock jumped, either', async () => {
    const lostOwner = await startHost({ retention: '2d' });
    const volume = await lostOwner.create('a');
    await lostOwner.remove(volume);
    await lostOwner.server.stop();
    const other = await startHost({ retention: '1m' });
    setServerClock(3650 * day);
    await other.maintain();
    await observe(other, 9 * day - hour);
    await other.maintain();
    expect((await other.restore(volume)).id).toBe(volume.id);
  });

  test('a volume that was restored and deleted again is kept for its whole time again', async () => {
    const owner = await startHost({ retention: '7d' });
    const other = await startHost({ retention: '7d' });
    const volume = await owner.create('a');
    await owner.remove(volume);
    await owner.maintain();
    await passTime(6 * day, owner, other);
    await owner.maintain();
    const back = await other.restore(volume);
    await other.remove(back);
    await passTime(2 * day, owner, other);
    for (const host of [owner, other]) await host.maintain();
    expect(await owner.trash()).toHaveLength(1);
    await passTime(5 * day, owner, other);
    await owner.maintain();
    expect(await owner.trash()).toHaveLength(1);
    await other.maintain();
    expect(await owner.trash()).toEqual([]);
  });

  test('a user can purge at once, on any host', async () => {
    const owner = await startHost({ retention: '7d' });
    const other = await startHost({ retention: '7d' });
    const volume = await owner.create('a');
    await owner.remove(volume);
    await other.purge(volume);
    expect(await owner.trash()).toEqual([]);
  });
});
