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
} as const;

function list(): number {
  for (const [name, { about, options = [] }] of Object.entries(benches))
    console.log(`npm run bench -- ${name.padEnd(12)} ${about}${options.map((option) => ` [--${option} …]`).join('')}`);
  return 0;
}

/** Returns the error in the options, or undefined. */
function readOptions(
  values: { readonly rounds?: string; readonly only?: string; readonly against?: string },
  { options = [] }: Bench,
): BenchOptions | string {
  for (const name of Object.keys(values) as (keyof BenchOptions)[])
    if (!options.includes(name)) return `This benchmark has no --${name}.`;
  const rounds = values.rounds === undefined ? undefined : Number(values.rounds);
  if (rounds !== undefined && !(Number.isSafeInteger(rounds) && rounds > 0)) return '--rounds takes a number.';
  return { rounds, only: values.only ?? '', against: values.against };
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
  const options = readOptions(values, bench);
  if (typeof options === 'string') {
    console.error(options);
    return 2;
  }
  const stop = new AbortController();
  // An interrupt must also stop servers and remove folders.
  for (const signal of ['SIGINT', 'SIGTERM'] as const)
    process.once(signal, () => stop.abort(new Error(`stopped by ${signal}`)));
  const rows = await bench.run(stop.signal, (text) => console.error(text), options);
  process.stdout.write(report(name, rows));
  return 0;
}

process.exitCode = await main();
