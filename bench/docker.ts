import type { Bench } from './bench.ts';
import { type DockerHost, type Side, sides, startHost } from './docker/host.ts';
import type { RecordedCall } from './docker/recorder.ts';
import { measuredFileSystems } from './nfs/measured-folder.ts';
import { type Row, toRow } from './report.ts';
import { requireComponents } from './required-components.ts';

const usualRounds = 60;
const warmUps = 3;
const parallelContainers = 20;
const burstRounds = 5;
const restarts = 9;
const ours = ['local', 'nfs'] as const;
type Ours = (typeof ours)[number];
/** The goal: how many milliseconds longer a container may take to start and end. */
const goals: Readonly<Record<Ours, number>> = { local: 10, nfs: 25 };
const sideNames: Readonly<Record<Side, string>> = {
  local: 'local store',
  nfs: 'NFS store',
  plain: "Docker's own driver",
};
/** The engine calls of one container that starts and ends. */
const methods = ['Get', 'Mount', 'Unmount'] as const;

export const bench: Bench = {
  about: "what our volumes add to docker run, against those of Docker's own local driver",
  options: ['rounds'],
  run: async (signal, note, { rounds = usualRounds }) => {
    requireComponents('docker', 'busybox', 'mount', 'fuse', 'ganesha');
    const [place] = measuredFileSystems();
    if (place === undefined) throw new Error('there is no file system to measure on');
    note(`nfs-ganesha on ${place.kind}`);
    await using host = await startHost(place, signal);
    const pairs = await oneAtATime(host, rounds, note);
    const back = await restartRows(host, note);
    const taken = await host.record();
    return [
      ...ours.flatMap((side) => pairRows(side, pairs[side])),
      ...back,
      ...(await callRows(host, taken)),
      ...(await burstRows(host, taken, note)),
    ];
  },
};

interface Pair {
  readonly with: number;
  readonly without: number;
}

/** Runs one container at a time, one with a Stowage volume and one with a Docker volume, in alternating order. */
async function oneAtATime(
  host: DockerHost,
  rounds: number,
  note: (text: string) => void,
): Promise<Readonly<Record<Ours, readonly Pair[]>>> {
  for (const side of sides) await host.makeVolume(side, side);
  const pairs: Record<Ours, Pair[]> = { local: [], nfs: [] };
  for (let round = 1 - warmUps; round <= rounds; round++) {
    for (const side of round % 2 === 0 ? ours : ours.toReversed()) {
      const pair = await pairOf(host, side, round % 4 < 2);
      note(
        `${round < 1 ? 'warm-up' : `round ${round}/${rounds}`}: ${sideNames[side]} ${pair.with.toFixed(1)} ms, without ${pair.without.toFixed(1)} ms`,
      );
      if (round >= 1) pairs[side].push(pair);
    }
  }
  return pairs;
}

async function pairOf(host: DockerHost, side: Ours, isFirst: boolean): Promise<Pair> {
  if (isFirst) return { with: await host.run(side), without: await host.run('plain') };
  const without = await host.run('plain');
  return { without, with: await host.run(side) };
}

function pairRows(side: Ours, pairs: readonly Pair[]): readonly Row[] {
  const values = pairs.map((pair) => pair.with);
  const yardsticks = pairs.map((pair) => pair.without);
  return [
    toRow({
      name: `added to docker run, ${sideNames[side]}`,
      unit: 'ms',
      values: pairs.map((pair) => pair.with - pair.without),
      goal: { valueBelow: goals[side] },
    }),
    toRow({ name: `docker run, ${sideNames[side]}`, unit: 'ms', values, yardsticks }),
  ];
}

/** The time from the start of the program until it answers engines. */
async function restartRows(host: DockerHost, note: (text: string) => void): Promise<readonly Row[]> {
  const measured = async (name: string): Promise<Row> => {
    const values: number[] = [];
    for (let round = 1; round <= restarts; round++) {
      values.push(await host.restart());
      note(`${name}, ${round}/${restarts}: ${values.at(-1)?.toFixed(0)} ms`);
    }
    return toRow({ name, unit: 'ms', values, goal: { valueBelow: 1_000 } });
  };
  return [
    await measured('back after kill -9'),
    await host.frozen(() => measured('back after kill -9, while the NFS server is silent')),
  ];
}

const msOf = (calls: readonly RecordedCall[], method: string): readonly number[] =>
  calls.filter((call) => call.method === method).map(({ ms }) => ms);

async function callRows(host: DockerHost, taken: () => readonly RecordedCall[]): Promise<readonly Row[]> {
  const rows: Row[] = [];
  for (const side of ours) {
    // The first container uses a restarted plugin.
    await host.run(side);
    const runs: (readonly RecordedCall[])[] = [];
    for (taken(); runs.length < burstRounds; runs.push(taken())) await host.run(side);
    for (const method of methods) {
      const own = runs.map((calls) => msOf(calls, method));
      rows.push(
        toRow({
          name: `calls of one run, ${sideNames[side]}: ${method}`,
          unit: '',
          values: own.map((all) => all.length),
        }),
        toRow({ name: `one at a time, ${sideNames[side]}: ${method}, p50`, unit: 'ms', values: own.flat() }),
      );
    }
  }
  return rows;
}

/** Runs many containers at once, each with its own volume. */
async function burstRows(
  host: DockerHost,
  taken: () => readonly RecordedCall[],
  note: (text: string) => void,
): Promise<readonly Row[]> {
  const volumes = (side: Side): readonly string[] =>
    Array.from({ length: parallelContainers }, (_, i) => `${side}-${i}`);
  for (const side of sides) for (const name of volumes(side)) await host.makeVolume(side, name);
  const seconds: Record<Side, number[]> = { local: [], nfs: [], plain: [] };
  const calls: Record<Side, RecordedCall[]> = { local: [], nfs: [], plain: [] };
  for (let rush = 0; rush <= burstRounds; rush++) {
    for (const side of rush % 2 === 0 ? sides : sides.toReversed()) {
      taken();
      const since = performance.now();
      await Promise.all(volumes(side).map((name) => host.run(name)));
      const took = (performance.now() - since) / 1000;
      note(
        `${rush === 0 ? 'warm-up' : `${rush}/${burstRounds}`}: ${parallelContainers} at once, ${sideNames[side]} ${took.toFixed(1)} s`,
      );
      if (rush === 0) continue;
      seconds[side].push(took);
      calls[side].push(...taken());
    }
  }
  return ours.flatMap((side) => [
    toRow({
      name: `${parallelContainers} at once, ${sideNames[side]}: all of them`,
      unit: 's',
      values: seconds[side],
      yardsticks: seconds.plain,
    }),
    ...methods.flatMap((method) => {
      const sorted = msOf(calls[side], method).toSorted((a, b) => a - b);
      return [0.5, 0.99].map((part) =>
        toRow({
          name: `${parallelContainers} at once, ${sideNames[side]}: ${method}, p${part * 100}`,
          unit: 'ms',
          values: [sorted[Math.ceil(part * sorted.length) - 1] ?? Number.NaN],
        }),
      );
    }),
  ]);
}
