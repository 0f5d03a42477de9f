import type { Bench } from './bench.ts';
import {
  type BenchCluster,
  type Created,
  nodeProcesses,
  periodicRequests,
  type Side,
  startBenchCluster,
  stores,
} from './provision/bench-cluster.ts';
import { type Row, toRow } from './report.ts';
import { requireComponents } from './required-components.ts';

const usualRounds = 5;
const warmUp = 50;
const claims = 300;
/** The number of volumes after which memory is reported. */
const mediumCount = 1_000;
const largeCount = 10_000;
/** The memory goals in MB. */
const nodeMemoryGoals: Readonly<Record<(typeof nodeProcesses)[number], number>> = { agent: 100, keeper: 65 };

export const bench: Bench = {
  about:
    'claims that become volumes, against a loop that only creates the objects; and what controller, agent and keeper hold',
  options: ['rounds', 'only'],
  run: async (signal, note, { rounds = usualRounds, only }) => {
    requireComponents('root', 'mount', 'netns', 'firewall', 'kubernetes', 'busybox', 'ganesha', 'helm', 'fuse');
    await using benchCluster = await startBenchCluster(signal);
    const parts = [
      { names: ['claims', 'requests'], rows: () => speedRows(benchCluster, rounds, note) },
      { names: ['memory'], rows: () => memoryRows(benchCluster, note) },
    ];
    const rows: Row[] = [];
    for (const { names, rows: measure } of parts)
      if (names.some((name) => name.includes(only))) rows.push(...(await measure()));
    return rows;
  },
};

interface Round extends Created {
  readonly goneMs: number;
  /** The CPU time of the provisioner, Events included. */
  readonly cpuMs: number;
  /** Stowage's requests to the API server for all claims. */
  readonly requests: ReadonlyMap<string, number>;
}

/** Restarts both sides in each round, and creates some volumes before the measurement. */
async function speedRows(
  benchCluster: BenchCluster,
  rounds: number,
  note: (text: string) => void,
): Promise<readonly Row[]> {
  const all: Record<Side, Round[]> = { nfs: [], local: [], bare: [] };
  const sides: readonly Side[] = [...stores, 'bare'];
  for (let round = 1; round <= rounds; round++) {
    for (const side of round % 2 === 0 ? sides : sides.toReversed()) {
      const one = await roundOf(benchCluster, side, round);
      const seconds = [one.claimsMs, one.madeMs, one.boundMs, one.goneMs].map((ms) => (ms / 1000).toFixed(2));
      note(
        `round ${round}/${rounds}, ${side}: claims ${seconds[0]} s, PVs ${seconds[1]} s, bound ${seconds[2]} s, gone ${seconds[3]} s`,
      );
      if (side !== 'bare') note([...one.requests].map(([what, times]) => `${what}: ${times}`).join(', '));
      all[side].push(one);
    }
  }
  return stores.flatMap((side) => rowsOf(side, all[side], all.bare));
}

const storeNames: Readonly<Record<(typeof stores)[number], string>> = { nfs: 'NFS store', local: 'local store' };

function rowsOf(side: keyof typeof storeNames, ours: readonly Round[], bare: readonly Round[]): readonly Row[] {
  const ratio = (what: string, pick: (round: Round) => number, most: number): Row =>
    toRow({
      name: `${claims} claims, ${storeNames[side]}: ${what}`,
      unit: 's',
      values: ours.map((one) => pick(one) / 1000),
      yardsticks: bare.map((one) => pick(one) / 1000),
      goal: { ratioAtMost: most },
    });
  return [
    ratio('all PVs made', ({ madeMs }) => madeMs, 1.25),
    ratio('all bound', ({ boundMs }) => boundMs, 1.1),
    toRow({
      name: `requests for a claim, ${storeNames[side]}`,
      unit: '',
      values: ours.map(({ requests }) => perClaim(requests)),
      goal: { valueBelow: 2.01 },
    }),
    toRow({
      name: `processor time of the controller for a claim, ${storeNames[side]}`,
      unit: 'ms',
      values: ours.map(({ cpuMs }) => cpuMs / claims),
      yardsticks: bare.map(({ cpuMs }) => cpuMs / claims),
    }),
    toRow({
      name: `${claims} claims deleted, ${storeNames[side]}: all volumes gone`,
      unit: 's',
      values: ours.map(({ goneMs }) => goneMs / 1000),
    }),
  ];
}

function perClaim(requests: ReadonlyMap<string, number>): number {
  let sum = 0;
  for (const [what, times] of requests) if (!periodicRequests.test(what)) sum += times;
  return sum / claims;
}

async function roundOf(benchCluster: BenchCluster, side: Side, round: number): Promise<Round> {
  await using running = await benchCluster.startProvisioner(side);
  const warm = `warm-${side}-${round}`;
  await benchCluster.create(side, warm, warmUp);
  await benchCluster.remove(side, warm, warmUp);
  await benchCluster.settled();
  const prefix = `claim-${side}-${round}`;
  const before = await running.cpuMs();
  const created = await benchCluster.create(side, prefix, claims);
  const requests = await benchCluster.settled();
  const cpuMs = (await running.cpuMs()) - before;
  const goneMs = await benchCluster.remove(side, prefix, claims);
  return { ...created, goneMs, requests, cpuMs };
}

async function memoryRows(benchCluster: BenchCluster, note: (text: string) => void): Promise<readonly Row[]> {
  const rows: Row[] = [];
  const add = async (whose: string, when: string, below: number, measured: Promise<number>): Promise<void> => {
    const value = await measured;
    const name = `memory of the ${whose}, ${when}`;
    note(`${name}: ${value.toFixed(0)} MB`);
    rows.push(toRow({ name, unit: 'MB', values: [value], goal: { valueBelow: below } }));
  };
  const addNode = async (when: string): Promise<void> => {
    for (const which of nodeProcesses) await add(which, when, nodeMemoryGoals[which], benchCluster.memoryOf(which));
  };
  {
    await using controller = await benchCluster.startProvisioner('nfs');
    await add('controller', 'idle', 130, controller.restingMemory());
    await addNode('idle');
    await benchCluster.create('nfs', 'some', mediumCount);
    await benchCluster.settled();
    await add('controller', `after ${mediumCount} claims`, 130, controller.restingMemory());
    // The agent creates the volumes of the local store.
    await benchCluster.create('local', 'own', mediumCount);
    await addNode(`after ${mediumCount} claims`);
    await benchCluster.createMany('nfs', 'many', largeCount - 2 * mediumCount);
    await benchCluster.settled();
    await add('controller', `${largeCount} volumes`, 150, controller.restingMemory());
  }
  // So far, another controller process has created the volumes.
  await using controller = await benchCluster.startProvisioner('nfs');
  await add('controller', `${largeCount} volumes, after a restart`, 150, controller.restingMemory());
  return rows;
}
