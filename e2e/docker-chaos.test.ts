import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { setTimeout as delay } from 'node:timers/promises';
import { beforeAll, describe, expect, test } from 'vitest';
import { eachBounded } from '#base/each-bounded.ts';
import { lacks } from '#testbed/lacks.ts';
import { sized } from '#testing/sized.ts';
import { suiteResources } from './docker-fixture.ts';
import { type Host, type RemoteNfsServer, startHost, startRemoteNfsServer, stopAtOnceOptions } from './docker-hosts.ts';
import { runCli } from './nfs-mount-fixture.ts';
import { call } from './stowage.ts';

const containers = sized({ usual: 14, long: 50 });
/** The number of volumes of each container. It also mounts the first volume of the next container. */
const volumesEach = 4;
const concurrency = 8;
const minKills = sized({ usual: 3, long: 6 });
const maxAttempts = 8;
/**
 * Docker's errors for a plugin that is down, or that ends before it answers. Docker then retries the call without its
 * body, and reports every error of Get as "no such volume".
 */
const unreachablePattern =
  /connection refused|no such file or directory|EOF|connection reset|broken pipe|plugin .* not found|request has no (?:Name|ID)|no such volume|volume was not found in the driver/;

/** One minute after its start, Stowage drops mounts that no engine knows. It checks every half minute. */
const dropPollOptions = { timeout: 150_000, interval: 500 };

/** Appends a line to each volume and prints it. */
const containerScript = `
  for at in /volumes/*; do echo "$1" >>"$at/$1" || exit 3; done
  echo started >>/tmp/starts
  exec sleep 1000`;
const waitForStartsScript = (times: number): string =>
  `until [ "$(wc -l </tmp/starts)" = ${times} ]; do sleep 0.05; done`;

interface ContainerPlan {
  readonly container: string;
  readonly volumes: readonly string[];
}
interface Refusal {
  readonly time: string;
  readonly status: number;
  readonly why: string;
}
const isOnSharedStore = (volume: string): boolean => volume.endsWith('-far');
const driverOf = (volume: string): string => (isOnSharedStore(volume) ? 'stowage' : 'stowage-local');
const plans: readonly ContainerPlan[] = Array.from({ length: containers }, (_, i) => ({
  container: `c${i}`,
  volumes: Array.from({ length: volumesEach }, (_, j) => `v${i}-${j}-${j % 2 === 0 ? 'far' : 'near'}`),
}));
const allVolumes = plans.flatMap(({ volumes }) => volumes);

describe.skipIf(lacks('docker', 'busybox', 'mount', 'fuse', 'ganesha', 'netns'))(
  'many volumes of many containers',
  () => {
    let server: RemoteNfsServer;
    let host: Host;
    const { all: resources, signal } = suiteResources();

    beforeAll(async () => {
      server = resources.use(await startRemoteNfsServer([{ tag: 'silver' }], signal));
      host = resources.use(await startHost('one', server, signal));
      await runCli(host.stowage, 'store', 'add', 'silver', server.uri('silver'));
    }, 60_000);

    /** Retries while Stowage is down, as a user would do. Throws any other error of Docker. */
    async function docker(...words: readonly string[]): Promise<string> {
      for (let attempt = 1; ; attempt += 1) {
        try {
          return await host.docker(...words);
        } catch (thrown) {
          const { stderr } = thrown as { readonly stderr: string };
          expect(stderr, words.join(' ')).toMatch(unreachablePattern);
          if (attempt === maxAttempts) throw thrown;
          await delay(100);
        }
      }
    }

    /** The time from which each volume certainly existed. */
    const creationTimes = new Map<string, number>();
    async function createVolume(volume: string): Promise<void> {
      await docker('volume', 'create', '-d', driverOf(volume), volume);
      if (!creationTimes.has(volume)) creationTimes.set(volume, Date.now());
    }
    /** Requests that Stowage rejected wrongly. */
    const refusals = (): readonly Refusal[] =>
      host
        .output()
        .split('\n')
        .filter((line) => line.includes('plugin call was rejected'))
        .map((line): Refusal => JSON.parse(line))
        .filter(({ status, time, why }) => {
          // Docker retried the request without its body after it lost the connection, or asked both plugins.
          if (status === 400) return !/^the request has no (?:Name|ID)\.|^volume '\S+' is not for plugin/.test(why);
          // The request arrived before the volume existed.
          const since = creationTimes.get(/'(\S+)'/.exec(why)?.[1] ?? '') ?? Number.POSITIVE_INFINITY;
          return status !== 404 || Date.parse(time) > since;
        });
    const listVolumes = async (): Promise<readonly string[]> =>
      (await docker('volume', 'ls', '-q')).split('\n').filter(Boolean);

    async function runLifeCycle({ container, volumes }: ContainerPlan, neighbour: string): Promise<void> {
      // The last container may already be running or starting.
      for (const volume of [...volumes, neighbour]) await createVolume(volume);
      const volumeOptions = [...volumes, neighbour].flatMap((volume) => ['-v', `${volume}:/volumes/${volume}`]);
      await docker(
        'create',
        ...stopAtOnceOptions,
        '--name',
        container,
        ...volumeOptions,
        host.image,
        'sh',
        '-c',
        containerScript,
        'sh',
        container,
      );
      for (const times of [1, 2]) {
        await docker('start', container);
        await docker('exec', container, 'sh', '-c', waitForStartsScript(times));
        await docker('stop', container);
      }
      await docker('rm', container);
    }

    async function killAndRestart(): Promise<void> {
      host.stowage.signal('SIGKILL');
      await host.stowage.ended();
      await host.start();
    }

    /** Mounts a volume for an engine that never receives the answer, so no engine unmounts the volume. */
    async function mountWithoutAnswer(volume: string): Promise<string> {
      const socket = join(host.engine.plugins, `${driverOf(volume)}.sock`);
      const { status, body } = await call(socket, 'POST', '/VolumeDriver.Mount', { Name: volume, ID: 'lost' }, {});
      expect([status, body['Err']]).toEqual([200, '']);
      return String(body['Mountpoint']);
    }
    const remainingEntries = (): readonly string[] =>
      ['published', 'mounts'].flatMap((name) => readdirSync(join(host.top, 's', name)));

    /** Kills Stowage repeatedly, and checks after each restart that it still knows all volumes. */
    async function killRepeatedly(until: AbortSignal): Promise<number> {
      let kills = 0;
      while (!until.aborted || kills < minKills) {
        await delay(Math.random() * 3_000, undefined, { signal: until }).catch(() => undefined);
        await killAndRestart();
        kills += 1;
        const before = [...creationTimes.keys()];
        expect(await listVolumes()).toEqual(expect.arrayContaining(before));
      }
      return kills;
    }

    test('stay usable while Stowage is killed repeatedly', { timeout: 600_000 }, async () => {
      const abort = new AbortController();
      const killing = killRepeatedly(abort.signal);
      try {
        await eachBounded(plans, concurrency, async (part) => {
          const next = plans[(plans.indexOf(part) + 1) % plans.length];
          await runLifeCycle(part, next?.volumes[0] ?? '');
        });
      } finally {
        abort.abort();
        await killing.catch(() => undefined);
      }
      expect(await killing).toBeGreaterThanOrEqual(minKills);

      expect((await listVolumes()).toSorted()).toEqual(allVolumes.toSorted());
      expect(refusals()).toEqual([]);
      for (const [i, { container, volumes }] of plans.entries()) {
        const before = plans.at(i - 1)?.container ?? '';
        for (const volume of volumes) {
          const top = isOnSharedStore(volume) ? server.folder('silver') : join(host.top, 's', 'stores', 'local');
          const writers = volume === volumes[0] ? [container, before] : [container];
          for (const writer of writers)
            expect(readFileSync(join(top, volume, writer), 'utf8'), volume).toBe(`${writer}\n`.repeat(2));
        }
      }
      // The running Stowage removes mounts that a crash left behind, without any request.
      const orphanedMounts = await Promise.all((plans[0]?.volumes ?? []).map(mountWithoutAnswer));
      await killAndRestart();
      expect(await host.mounts()).toEqual(expect.arrayContaining(orphanedMounts));
      await expect.poll(() => host.mounts(), dropPollOptions).toEqual([]);
      // Stowage removes a target folder shortly after the unmount.
      await expect.poll(remainingEntries, dropPollOptions).toEqual([]);
      expect((await host.stowage.api('GET', '/v1/mounts')).body['items']).toEqual([]);

      // No use of a volume is left that prevents its deletion.
      await eachBounded(allVolumes, concurrency, async (volume) => void (await host.docker('volume', 'rm', volume)));
      expect(await listVolumes()).toEqual([]);
      expect(refusals()).toEqual([]);
      await host.stowage.stop();
      using records = new DatabaseSync(join(host.top, 's', 'state.db'), { readOnly: true });
      for (const table of ['holds', 'container_references', 'engine_names'])
        expect(records.prepare(`SELECT * FROM ${table}`).all(), table).toEqual([]);
    });
  },
);
