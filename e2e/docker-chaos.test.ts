import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { setTimeout as delay } from 'node:timers/promises';
import { beforeAll, describe, expect, test } from 'vitest';
import { eachBounded } from '#base/each-bounded.ts';
import { needs } from '#testbed/needs.ts';
import { sized } from '#testing/sized.ts';
import { lasting } from './docker-ground.ts';
import { atOnce, type FarServer, type Host, startFarServer, startHost } from './docker-hosts.ts';
import { succeeds } from './nfs-mounted.ts';
import { call } from './stowage.ts';

const containers = sized({ usual: 14, long: 50 });
/** Of each container its own; it also has the first one of its neighbour. */
const volumesEach = 4;
const atATime = 8;
const leastKills = sized({ usual: 3, long: 6 });
const mostAttempts = 8;
/**
 * What Docker says of a plugin that is not there, or went away before it answered. It repeats such a call without its body,
 * and takes every refusal of Get for a volume that is not there.
 */
const unreachable =
  /connection refused|no such file or directory|EOF|connection reset|broken pipe|plugin .* not found|request has no (?:Name|ID)|no such volume|volume was not found in the driver/;

/** A minute after a start is a mount dropped of which no engine knows; it is looked for every half minute. */
const untilDropped = { timeout: 150_000, interval: 500 };

/** Adds a line to each of its volumes, and says when it has. */
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
  let server: FarServer;
  let host: Host;
  const { all: used, signal } = lasting();

  beforeAll(async () => {
    server = used.use(await startFarServer([{ tag: 'silver' }], signal));
    host = used.use(await startHost('one', server, signal));
    await succeeds(host.stowage, 'store', 'add', 'silver', server.uri('silver'));
  }, 60_000);

  /** As a person does it while Stowage is down now and then: again. Anything else that Docker says is a fault. */
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

  /** When it was certain. */
  const made = new Map<string, number>();
  async function make(volume: string): Promise<void> {
    await docker('volume', 'create', '-d', driverOf(volume), volume);
    if (!made.has(volume)) made.set(volume, Date.now());
  }
  /** All that Stowage itself refused and should not have. */
  const refusals = (): readonly Refusal[] =>
    host
      .output()
      .split('\n')
      .filter((line) => line.includes('plugin call was refused'))
      .map((line): Refusal => JSON.parse(line))
      .filter(({ status, time, why }) => {
        // Repeated by Docker, when the connection was lost, without its body; or asked of both plugins.
        if (status === 400) return !/^the request has no (?:Name|ID)\.|^volume '\S+' is not for plugin/.test(why);
        // Before it was made.
        const since = made.get(/'(\S+)'/.exec(why)?.[1] ?? '') ?? Number.POSITIVE_INFINITY;
        return status !== 404 || Date.parse(time) > since;
      });
  const listed = async (): Promise<readonly string[]> =>
    (await docker('volume', 'ls', '-q')).split('\n').filter(Boolean);

  async function live({ container, volumes }: Part, neighbour: string): Promise<void> {
    // The last may be there already, or on its way.
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

  /** As an engine does it that never hears of the answer: nobody is going to let go of it. */
  async function loseMount(volume: string): Promise<string> {
    const socket = join(host.engine.plugins, `${driverOf(volume)}.sock`);
    const { status, body } = await call(socket, 'POST', '/VolumeDriver.Mount', { Name: volume, ID: 'lost' }, {});
    expect([status, body['Err']]).toEqual([200, '']);
    return String(body['Mountpoint']);
  }
  const left = (): readonly string[] =>
    ['published', 'mounts'].flatMap((name) => readdirSync(join(host.top, 's', name)));

  /** Kills it again and again, and looks whether it still knows all volumes when it is back. */
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

  test('are used by many containers while Stowage is killed again and again', { timeout: 600_000 }, async () => {
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
    // What crashes left goes away while it runs, without anybody doing anything about it.
    const lost = await Promise.all((parts[0]?.volumes ?? []).map(loseMount));
    await kill();
    expect(await host.mounts()).toEqual(expect.arrayContaining(lost));
    await expect.poll(() => host.mounts(), untilDropped).toEqual([]);
    // Folders go a moment after what was mounted there.
    await expect.poll(left, untilDropped).toEqual([]);
    expect((await host.stowage.api('GET', '/v1/mounts')).body['items']).toEqual([]);

    // And nothing is in the way of their end.
    await eachBounded(all, atATime, async (volume) => void (await host.docker('volume', 'rm', volume)));
    expect(await listed()).toEqual([]);
    expect(refusals()).toEqual([]);
    await host.stowage.stop();
    using records = new DatabaseSync(join(host.top, 's', 'state.db'), { readOnly: true });
    for (const table of ['holds', 'container_references', 'engine_names'])
      expect(records.prepare(`SELECT * FROM ${table}`).all(), table).toEqual([]);
  });
});
