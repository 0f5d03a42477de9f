import { loadavg } from 'node:os';
import type { Bench } from './bench.ts';
import { measuredFileSystems } from './nfs/measured-folder.ts';
import { type PublishHost, type Side, sides, startHost } from './publish/host.ts';
import { type Row, toRow } from './report.ts';
import { requireComponents } from './required-components.ts';

const usualRounds = 100;
const warmUps = 10;
const parallelVolumes = 50;
const burstRounds = 9;

/**
 * The yardsticks for a local volume. The goal is relative to `driver`, which makes the same folders and mounts for the
 * same two calls, and nothing else. Without concurrency, the two gRPC calls alone take longer than mount(2), as `calls`
 * shows: a driver that only answers them.
 */
const yardsticks = ['driver', 'calls', 'programs'] as const;
const sideNames: Readonly<Record<Side, string>> = {
  local: 'local store',
  nfs: 'NFS store',
  driver: 'a driver that only mounts',
  answers: 'a driver that does nothing',
  calls: 'mount(2)',
  programs: 'the program mount',
};

const emptySamples = (): Record<Side, number[]> => ({
  local: [],
  nfs: [],
  driver: [],
  answers: [],
  calls: [],
  programs: [],
});

export const bench: Bench = {
  about: 'NodeStage and NodePublish, against the bare mounts',
  options: ['rounds'],
  run: async (signal, note, { rounds = usualRounds }) => {
    requireComponents('root', 'mount', 'fuse', 'ganesha');
    const [place] = measuredFileSystems();
    if (place === undefined) throw new Error('there is no file system to measure on');
    note(
      `nfs-ganesha on ${place.kind}; load ${loadavg()
        .map((load) => load.toFixed(1))
        .join(' ')}`,
    );
    await using host = await startHost(parallelVolumes, place, signal);
    return [...(await oneAtATime(host, rounds, note)), ...(await burstRows(host, note))];
  },
};

/** Runs every side once per round, in alternating order. */
async function oneAtATime(host: PublishHost, rounds: number, note: (text: string) => void): Promise<readonly Row[]> {
  const taken = emptySamples();
  for (let round = 1 - warmUps; round <= rounds; round++) {
    const volume = (round + warmUps) % parallelVolumes;
    for (const side of round % 2 === 0 ? sides : sides.toReversed()) {
      const took = await host.up(side, volume);
      await host.down(side, volume);
      if (round >= 1) taken[side].push(took);
    }
    if (round % 20 === 0) note(`round ${round}/${rounds}`);
  }
  return rowsOf('one at a time', taken, { nfsBelow: 50 });
}

/** Publishes all volumes at once, measured from the first call to the last answer. */
async function burstRows(host: PublishHost, note: (text: string) => void): Promise<readonly Row[]> {
  const all = emptySamples();
  const each: number[] = [];
  const volumes = Array.from({ length: parallelVolumes }, (_, i) => i);
  for (let rush = 0; rush <= burstRounds; rush++) {
    for (const side of rush % 2 === 0 ? sides : sides.toReversed()) {
      const since = performance.now();
      const took = await Promise.all(volumes.map((volume) => host.up(side, volume)));
      const ms = performance.now() - since;
      note(
        `${rush === 0 ? 'warm-up' : `${rush}/${burstRounds}`}: ${parallelVolumes} at once, ${sideNames[side]} ${ms.toFixed(0)} ms`,
      );
      for (const volume of volumes) await host.down(side, volume);
      if (rush === 0) continue;
      all[side].push(ms);
      if (side === 'nfs') each.push(...took);
    }
  }
  const p50 = toRow({ name: `${parallelVolumes} at once, ${sideNames.nfs}: each, p50`, unit: 'ms', values: each });
  return [...rowsOf(`${parallelVolumes} at once`, all, {}), p50];
}

function rowsOf(
  how: string,
  taken: Readonly<Record<Side, readonly number[]>>,
  { nfsBelow }: { readonly nfsBelow?: number },
): readonly Row[] {
  const unit = 'ms';
  return [
    ...yardsticks.map((side) =>
      toRow({
        name: `${how}, ${sideNames.local}, beside ${sideNames[side]}`,
        unit,
        values: taken.local,
        yardsticks: taken[side],
        ...(side === 'driver' ? { goal: { ratioAtMost: 2 } } : {}),
      }),
    ),
    toRow({
      name: `${how}, ${sideNames.answers}, beside ${sideNames.calls}`,
      unit,
      values: taken.answers,
      yardsticks: taken.calls,
    }),
    toRow({
      name: `${how}, ${sideNames.nfs}`,
      unit,
      values: taken.nfs,
      ...(nfsBelow === undefined ? {} : { goal: { valueBelow: nfsBelow } }),
    }),
  ];
}
