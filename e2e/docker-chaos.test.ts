import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { setTimeout as delay } from 'node:timers/promises';
import { beforeAll, describe, expect, test } from 'vitest';
import { eachBounded } from '#base/each-bounded.ts';
import { needs } from '#testbed/needs.ts';
import { sized } from '#testing/sized.ts';
import { suiteResources } from './docker-fixture.ts';
import { atOnce, type Host, type RemoteNfsServer, startHost, startRemoteNfsServer } from './docker-hosts.ts';
import { runCli } from './nfs-mount-fixture.ts';
import { call } from './stowage.ts';

const containers = sized({ usual: 14, long: 50 });
/** Each container has so many volumes of its own. It also mounts the first volume of its neighbour. */
const volumesEach = 4;
const atATime = 8;
const leastKills = sized({ usual: 3, long: 6 });
const mostAttempts = 8;
/**
 * The errors that Docker returns for a plugin that is down, or that went away before it answered. Docker retries such a call
 * without its body, and treats every error of Get as "no such volume".
 */
const unreachable =
  /connection refused|no such file or directory|EOF|connection reset|broken pipe|plugin .* not found|request has no (?:Name|ID)|no such volume|volume was not found in the driver/;

/** A mount that no engine knows is dropped one minute after the start. Stowage checks every half minute. */
const untilDropped = { timeout: 150_000, interval: 500 };

/** Appends a line to each volume, and reports it. */
const work = `
  for at in /volumes/*; do echo "$1" >>"$at/$1" || exit 3; done
  echo started >>/tmp/starts
  exec sleep 1000`;
const hasWritten = (times: number): string => `until [ "$(wc -l </tmp/starts)" = ${times} ]; do sleep 0.05; done`;

interface Part {
  readonly container: string;
  readonly volumes: readonly string[];
}
interface Refusal {
  readonly time: string;
  readonly status: number;
  readonly why: string;
}
const isFar = (volume: string): boolean => volume.endsWith('-far');
const driverOf = (volume: string): string => (isFar(volume) ? 'stowage' : 'stowage-local');
const parts: readonly Part[] = Array.from({ length: containers }, (_, i) => ({
  container: `c${i}`,
  volumes: Array.from({ length: volumesEach }, (_, j) => `v${i}-${j}-${j % 2 === 0 ? 'far' : 'near'}`),
}));
const all = parts.flatMap(({ volumes }) => volumes);

describe.skipIf(needs('docker', 'busybox', 'mount', 'fuse', 'ganesha', 'netns'))('very many volumes', () => {
  let server: RemoteNfsServer;
  let host: Host;
  const { all: used, signal } = suiteResources();

  beforeAll(async () => {
    server = used.use(await startRemoteNfsServer([{ tag: 'silver' }], signal));
    host = used.use(await startHost('one', server, signal));
    await runCli(host.stowage, 'store', 'add', 'silver', server.uri('silver'));
  }, 60_000);

  /** Retries while Stowage is down, as a user would. Any other error of Docker fails the test. */
  async function docker(...words: readonly string[]): Promise<string> {
    for (let attempt = 1; ; attempt += 1) {
      try {
        return await host.docker(...words);
      } catch (thrown) {
        const { stderr } = thrown as { readonly stderr: string };
        expect(stderr, words.join(' ')).toMatch(unreachable);
        if (attempt === mostAttempts) throw thrown;
        await delay(100);
      }
    }
  }

  /** When each volume was certain to exist. */
  const made = new Map<string, number>();
  async function make(volume: string): Promise<void> {
    await docker('volume', 'create', '-d', driverOf(volume), volume);
    if (!made.has(volume)) made.set(volume, Date.now());
  }
  /** Requests that Stowage itself rejected and should not have. */
  const refusals = (): readonly Refusal[] =>
    host
      .output()
      .split('\n')
      .filter((line) => line.includes('plugin call was rejected'))
      .map((line): Refusal => JSON.parse(line))
      .filter(({ status, time, why }) => {
        // Docker retried the request without its body after the connection was lost, or asked both plugins.
        if (status === 400) return !/^the request has no (?:Name|ID)\.|^volume '\S+' is not for plugin/.test(why);
        // The request came before the volume existed.
        const since = made.get(/'(\S+)'/.exec(why)?.[1] ?? '') ?? Number.POSITIVE_INFINITY;
        return status !== 404 || Date.parse(time) > since;
      });
  const listed = async (): Promise<readonly string[]> =>
    (await docker('volume', 'ls', '-q')).split('\n').filter(Boolean);

  async function live({ container, volumes }: Part, neighbour: string): Promise<void> {
    // The last container may already be running or starting.
    for (const volume of [...volumes, neighbour]) await make(volume);
    const at = [...volumes, neighbour].flatMap((volume) => ['-v', `${volume}:/volumes/${volume}`]);
    await docker('create', ...atOnce, '--name', container, ...at, host.image, 'sh', '-c', work, 'sh', container);
    for (const times of [1, 2]) {
      await docker('start', container);
      await docker('exec', container, 'sh', '-c', hasWritten(times));
      await docker('stop', container);
    }
    await docker('rm', container);
  }

  async function kill(): Promise<void> {
    host.stowage.signal('SIGKILL');
    await host.stowage.ended();
    await host.start();
  }

  /** Mounts a volume for an engine that never gets the answer, so nobody unmounts it. */
  async function loseMount(volume: string): Promise<string> {
    const socket = join(host.engine.plugins, `${driverOf(volume)}.sock`);
    const { status, body } = await call(socket, 'POST', '/VolumeDriver.Mount', { Name: volume, ID: 'lost' }, {});
    expect([status, body['Err']]).toEqual([200, '']);
    return String(body['Mountpoint']);
  }
  const left = (): readonly string[] =>
    ['published', 'mounts'].flatMap((name) => readdirSync(join(host.top, 's', name)));

  /** Kills Stowage again and again, and checks after each restart that it still knows all volumes. */
  async function harass(until: AbortSignal): Promise<number> {
    let kills = 0;
    while (!until.aborted || kills < leastKills) {
      await delay(Math.random() * 3_000, undefined, { signal: until }).catch(() => undefined);
      await kill();
      kills += 1;
      const before = [...made.keys()];
      expect(await listed()).toEqual(expect.arrayContaining(before));
    }
    return kills;
  }

  test('stay usable for many containers while Stowage is killed again and again', { timeout: 600_000 }, async () => {
    const done = new AbortController();
    const harassing = harass(done.signal);
    try {
      await eachBounded(parts, atATime, async (part) => {
        const next = parts[(parts.indexOf(part) + 1) % parts.length];
        await live(part, next?.volumes[0] ?? '');
      });
    } finally {
      done.abort();
      await harassing.catch(() => undefined);
    }
    expect(await harassing).toBeGreaterThanOrEqual(leastKills);

    expect((await listed()).toSorted()).toEqual(all.toSorted());
    expect(refusals()).toEqual([]);
    for (const [i, { container, volumes }] of parts.entries()) {
      const before = parts.at(i - 1)?.container ?? '';
      for (const volume of volumes) {
        const top = isFar(volume) ? server.folder('silver') : join(host.top, 's', 'stores', 'local');
        const writers = volume === volumes[0] ? [container, before] : [container];
        for (const writer of writers)
          expect(readFileSync(join(top, volume, writer), 'utf8'), volume).toBe(`${writer}\n`.repeat(2));
      }
    }
    // Stowage removes mounts that a crash left over while it runs, without a request.
    const lost = await Promise.all((parts[0]?.volumes ?? []).map(loseMount));
    await kill();
    expect(await host.mounts()).toEqual(expect.arrayContaining(lost));
    await expect.poll(() => host.mounts(), untilDropped).toEqual([]);
    // A target folder is removed shortly after it is unmounted.
    await expect.poll(left, untilDropped).toEqual([]);
    expect((await host.stowage.api('GET', '/v1/mounts')).body['items']).toEqual([]);

    // Nothing prevents the deletion of the volumes.
    await eachBounded(all, atATime, async (volume) => void (await host.docker('volume', 'rm', volume)));
    expect(await listed()).toEqual([]);
    expect(refusals()).toEqual([]);
    await host.stowage.stop();
    using records = new DatabaseSync(join(host.top, 's', 'state.db'), { readOnly: true });
    for (const table of ['holds', 'container_references', 'engine_names'])
      expect(records.prepare(`SELECT * FROM ${table}`).all(), table).toEqual([]);
  });
});
