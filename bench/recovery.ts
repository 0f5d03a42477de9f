import { join } from 'node:path';
import { startGanesha } from '#testbed/ganesha.ts';
import { createScratchFolder } from '#testing/scratch-folder.ts';
import type { Bench } from './bench.ts';
import { command } from './datapath/command.ts';
import { type OurDataPath, startOurDataPath } from './datapath/our-data-path.ts';
import { files, plantTree } from './datapath/tree.ts';
import { makeFolder, measuredFileSystems } from './nfs/measured-folder.ts';
import { type Application, startApplication } from './recovery/application-process.ts';
import { type Row, toRow } from './report.ts';
import { requireComponents } from './required-components.ts';

const usualRounds = 50;

interface Kind {
  readonly name: string;
  /** Disturbs the data path. Resolves when another process serves the mount. */
  disturb(ours: OurDataPath, signal: AbortSignal): Promise<void>;
  /** The goals in milliseconds. */
  readonly goals: { readonly median?: number; readonly worst: number };
}

const kinds: readonly Kind[] = [
  { name: 'killed', disturb: kill, goals: { median: 150, worst: 500 } },
  {
    name: 'upgraded',
    disturb: ({ client, program }, signal) => client.upgrade(program, signal),
    goals: { worst: 200 },
  },
];

export const bench: Bench = {
  about: 'how long an application waits when the process that serves its mount is killed or upgraded',
  options: ['rounds', 'only'],
  run: async (signal, note, { rounds = usualRounds, only }) => {
    requireComponents('fuse', 'ganesha');
    const [place] = measuredFileSystems();
    if (place === undefined) throw new Error('there is no file system to measure on');
    using scratch = createScratchFolder('stowage-bench-');
    await using exported = await makeFolder(place, []);
    const folder = join(exported.path, 'volume');
    plantTree(join(folder, 'tree'));
    await using ganesha = await startGanesha({ exports: [{ path: exported.path, tag: 'bench' }], signal });
    await using ours = await startOurDataPath({ server: ganesha, folder: scratch.folder, signal });
    await using mounted = await ours.mount(folder, { isCaching: true });
    await using application = await startApplication(mounted.at, signal);
    const rows: Row[] = [];
    for (const memory of ['', `, ${files} files known`]) {
      // Lists the tree, so that the successor must take over all inodes that the kernel knows.
      if (memory !== '') await command(['ls', '-lR', join(mounted.at, 'tree')], signal);
      for (const kind of kinds.filter(({ name }) => name.includes(only))) {
        const pauses: number[] = [];
        while (pauses.length < rounds) {
          pauses.push(await pauseOf(kind, ours, application, signal));
          note(`${kind.name}${memory} ${pauses.length}/${rounds}: ${pauses.at(-1)?.toFixed(1)} ms`);
        }
        rows.push(...rowsOf(kind, memory, pauses));
      }
    }
    const { errors, operations } = await application.end();
    for (const error of errors) note(error);
    return [
      ...rows,
      toRow({ name: 'errors that the application saw', unit: '', values: [errors.length], goal: { valueBelow: 1 } }),
      toRow({ name: 'operations that it did', unit: '', values: [operations] }),
    ];
  },
};

async function kill({ client, complete }: OurDataPath, signal: AbortSignal): Promise<void> {
  const { active } = await client.status(signal);
  process.kill(active?.pid ?? Number.NaN, 'SIGKILL');
  await complete();
}

/** The duration of the application's longest call among the calls in flight at the fault and all later ones. */
async function pauseOf(kind: Kind, ours: OurDataPath, application: Application, signal: AbortSignal): Promise<number> {
  await ours.complete();
  await application.progress();
  application.forget();
  await kind.disturb(ours, signal);
  await application.progress();
  return application.longest();
}

function rowsOf({ name, goals }: Kind, memory: string, pauses: readonly number[]): readonly Row[] {
  const sorted = pauses.toSorted((a, b) => a - b);
  const rank = (part: number): number => sorted[Math.ceil(part * sorted.length) - 1] ?? Number.NaN;
  const row = (what: string, part: number, below: number | undefined): Row =>
    toRow({
      name: `data path ${name} ${pauses.length} times${memory}: pause, ${what}`,
      unit: 'ms',
      values: [rank(part)],
      ...(below === undefined ? {} : { goal: { valueBelow: below } }),
    });
  return [row('p50', 0.5, goals.median), row('p99', 0.99, goals.worst)];
}
