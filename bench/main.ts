import { bench as engine } from './engine.ts';
import { bench as nfs } from './nfs.ts';
import { bench as nfsServer } from './nfs-server.ts';
import { bench as nfsVolumes } from './nfs-volumes.ts';
import { type Row, report } from './report.ts';

interface Bench {
  readonly about: string;
  /** `note` is for progress; the rows are the answer. */
  run(signal: AbortSignal, note: (text: string) => void): Promise<readonly Row[]>;
}

const benches: Readonly<Record<string, Bench>> = {
  engine,
  nfs,
  'nfs-server': nfsServer,
  'nfs-volumes': nfsVolumes,
};

async function main(name: string | undefined): Promise<number> {
  if (name === undefined) {
    for (const [each, { about }] of Object.entries(benches))
      console.log(`npm run bench -- ${each.padEnd(12)} ${about}`);
    return 0;
  }
  const bench = Object.hasOwn(benches, name) ? benches[name] : undefined;
  if (bench === undefined) {
    console.error(`There is no benchmark '${name}'. There are: ${Object.keys(benches).join(', ')}`);
    return 2;
  }
  const stop = new AbortController();
  // So that servers are ended and folders removed on Ctrl-C too.
  for (const signal of ['SIGINT', 'SIGTERM'] as const)
    process.once(signal, () => stop.abort(new Error(`stopped by ${signal}`)));
  const rows = await bench.run(stop.signal, (text) => console.error(text));
  process.stdout.write(report(name, rows));
  return 0;
}

process.exitCode = await main(process.argv[2]);
