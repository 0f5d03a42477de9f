import { parseArgs } from 'node:util';
import type { Bench, BenchOptions } from './bench.ts';
import { bench as datapath } from './datapath.ts';
import { bench as docker } from './docker.ts';
import { bench as engine } from './engine.ts';
import { bench as nfs } from './nfs.ts';
import { bench as nfsServer } from './nfs-server.ts';
import { bench as nfsVolumes } from './nfs-volumes.ts';
import { bench as provision } from './provision.ts';
import { bench as publish } from './publish.ts';
import { bench as recovery } from './recovery.ts';
import { report } from './report.ts';
import { compareVersions } from './versions.ts';

const benches: Readonly<Record<string, Bench>> = {
  engine,
  nfs,
  'nfs-server': nfsServer,
  'nfs-volumes': nfsVolumes,
  datapath,
  recovery,
  docker,
  provision,
  publish,
};

const known = {
  rounds: { type: 'string' },
  only: { type: 'string' },
  against: { type: 'string' },
  runs: { type: 'string' },
} as const;

const usualRuns = 3;

function list(): number {
  for (const [name, { about, options = [] }] of Object.entries(benches))
    console.log(`npm run bench -- ${name.padEnd(12)} ${about}${options.map((option) => ` [--${option} …]`).join('')}`);
  console.log('Every benchmark: --against COMMIT, to compare with an earlier commit [--runs …]');
  return 0;
}

type Values = Readonly<Partial<Record<keyof typeof known, string>>>;

/** Returns the error in the options, if there is one. */
function readOptions({ runs: _, ...values }: Values, { options = [] }: Bench): BenchOptions | string {
  for (const name of Object.keys(values) as (keyof BenchOptions)[])
    if (!options.includes(name)) return `This benchmark has no --${name}.`;
  const rounds = values.rounds === undefined ? undefined : count(values.rounds);
  if (rounds === null) return '--rounds takes a number.';
  return { rounds, only: values.only ?? '', against: values.against };
}

/** Null: it is no positive number. */
function count(text: string): number | null {
  const value = Number(text);
  return Number.isSafeInteger(value) && value > 0 ? value : null;
}

async function main(): Promise<number> {
  const { values, positionals } = parseArgs({ options: known, allowPositionals: true });
  const [name] = positionals;
  if (name === undefined) return list();
  const bench = Object.hasOwn(benches, name) ? benches[name] : undefined;
  if (bench === undefined) {
    console.error(`There is no benchmark '${name}'. There are: ${Object.keys(benches).join(', ')}`);
    return 2;
  }
  const comparesItself = bench.options?.includes('against') === true;
  const { against: commit, ...rest } = values;
  const options = readOptions(comparesItself ? values : rest, bench);
  if (typeof options === 'string') {
    console.error(options);
    return 2;
  }
  const stop = new AbortController();
  // An interrupt must also stop servers and remove folders.
  for (const signal of ['SIGINT', 'SIGTERM'] as const)
    process.once(signal, () => stop.abort(new Error(`stopped by ${signal}`)));
  const note = (text: string): void => console.error(text);
  const runs = values.runs === undefined ? usualRuns : count(values.runs);
  if (runs === null) {
    console.error('--runs takes a number.');
    return 2;
  }
  const { signal } = stop;
  const args = ['rounds', 'only'].flatMap((option) =>
    option in rest ? [`--${option}=${rest[option as 'only']}`] : [],
  );
  const rows =
    commit === undefined || comparesItself
      ? await bench.run(signal, note, options)
      : await compareVersions(name, { commit, runs, args, signal, note });
  process.stdout.write(report(name, rows));
  return 0;
}

process.exitCode = await main();
