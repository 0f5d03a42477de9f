import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { setTimeout as delay } from 'node:timers/promises';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { eachBounded } from '#base/each-bounded.ts';
import { needs } from '#testbed/needs.ts';
import { atOnce, type FarServer, type Host, startFarServer, startHost } from './docker-hosts.ts';
import { succeeds } from './nfs-mounted.ts';

const containers = 50;
/** Of each container its own; it also has the first one of its neighbour. */
const volumesEach = 4;
const atATime = 8;
const leastKills = 6;
const mostAttempts = 8;
/**
 * What Docker says of a plugin that is not there, or went away before it answered. It repeats such a call without its body,
 * and takes every refusal of Get for a volume that is not there.
 */
const unreachable =
  /connection refused|no such file or directory|EOF|connection reset|broken pipe|plugin .* not found|request has no (?:Name|ID)|no such volume|volume was not found in the driver/;

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
const isFar = (volume: string): boolean => volume.endsWith('-far');
const parts: readonly Part[] = Array.from({ length: containers }, (_, i) => ({
  container: `c${i}`,
  volumes: Array.from({ length: volumesEach }, (_, j) => `v${i}-${j}-${j % 2 === 0 ? 'far' : 'near'}`),
}));
const all = parts.flatMap(({ volumes }) => volumes);

describe.skipIf(needs('docker', 'busybox', 'mount', 'fuse', 'ganesha', 'netns'))('very many volumes', () => {
  let server: FarServer;
  let host: Host;
  const over = new AbortController();
  const used = new AsyncDisposableStack();

  beforeAll(async () => {
    server = used.use(await startFarServer([{ tag: 'silver' }], over.signal));
    host = used.use(await startHost('one', server, over.signal));
    await succeeds(host.stowage, 'store', 'add', 'silver', server.uri('silver'));
  }, 60_000);
  afterAll(async () => {
    await used.disposeAsync();
    over.abort();
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
    await docker('volume', 'create', '-d', isFar(volume) ? 'stowage' : 'stowage-local', volume);
    if (!made.has(volume)) made.set(volume, Date.now());
  }
  /** Those that Stowage itself said were not there when they were. */
  const denied = (): readonly string[] =>
    host
      .output()
      .split('\n')
      .filter((line) => line.includes('"status":404'))
      .filter((line) => {
        const { time, why } = JSON.parse(line) as { readonly time: string; readonly why: string };
        return Date.parse(time) > (made.get(/'(\S+)'/.exec(why)?.[1] ?? '') ?? Number.POSITIVE_INFINITY);
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

  /** Kills it again and again, and looks whether it still knows all volumes when it is back. */
  async function harass(until: AbortSignal): Promise<number> {
    let kills = 0;
    while (!until.aborted || kills < leastKills) {
      await delay(Math.random() * 3_000, undefined, { signal: until }).catch(() => undefined);
      host.stowage.signal('SIGKILL');
      await host.stowage.ended();
      kills += 1;
      await host.start();
      const before = [...made.keys()];
      expect(await listed()).toEqual(expect.arrayContaining(before));
    }
    return kills;
  }

  test('are used by many containers while Stowage is killed again and again', { timeout: 300_000 }, async () => {
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
    expect(denied()).toEqual([]);
    for (const [i, { container, volumes }] of parts.entries()) {
      const before = parts.at(i - 1)?.container ?? '';
      for (const volume of volumes) {
        const top = isFar(volume) ? server.folder('silver') : join(host.top, 's', 'stores', 'local');
        const writers = volume === volumes[0] ? [container, before] : [container];
        for (const writer of writers)
          expect(readFileSync(join(top, volume, writer), 'utf8'), volume).toBe(`${writer}\n`.repeat(2));
      }
    }
    // Nothing is in the way of their end: what a crash left mounted is no use of a volume, and goes with it at the latest.
    await eachBounded(all, atATime, async (volume) => void (await host.docker('volume', 'rm', volume)));
    expect(await listed()).toEqual([]);
    expect(await host.mounts()).toEqual([]);
    expect((await host.stowage.api('GET', '/v1/mounts')).body['items']).toEqual([]);
    await host.stowage.stop();
    using records = new DatabaseSync(join(host.top, 's', 'state.db'), { readOnly: true });
    for (const table of ['holds', 'container_references', 'engine_names'])
      expect(records.prepare(`SELECT * FROM ${table}`).all(), table).toEqual([]);
  });
});
