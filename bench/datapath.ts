import { cp, mkdir, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { checkOut } from '#testbed/earlier-commit.ts';
import { startGanesha } from '#testbed/ganesha.ts';
import { startSftpServer, startSshServer } from '#testbed/sshfs.ts';
import { createScratchFolder } from '#testing/scratch-folder.ts';
import type { Bench } from './bench.ts';
import { command } from './datapath/command.ts';
import { memoryName, memoryRow, memoryRows } from './datapath/memory.ts';
import type { Mounter } from './datapath/mounting.ts';
import { type OurDataPathOptions, startOurDataPath } from './datapath/our-data-path.ts';
import { sshfsMounting } from './datapath/sshfs.ts';
import { largeMib, type Task, tasks } from './datapath/tasks.ts';
import { plantTree } from './datapath/tree.ts';
import { startRaw } from './nfs/driver.ts';
import { makeFolder, measuredFileSystems } from './nfs/measured-folder.ts';
import { noSlower, type Row, toRow } from './report.ts';
import { requireComponents } from './required-components.ts';

const usualRounds = 5;
/** The limit for one task without a mount. */
const rawMs = 60_000;
/** `ssh` is encrypted sshfs, as users run it. It is shown for comparison; no goal depends on it. */
const sides = ['ours', 'sshfs', 'ssh', 'raw'] as const;
type Side = (typeof sides)[number];
/** With `--against`: this data path and the data path of the earlier commit. */
const versions = ['ours', 'earlier'] as const;
type Version = (typeof versions)[number];

/** The values of one task for each side, one per round. */
interface Measured<S extends string> {
  readonly task: Task;
  readonly values: Readonly<Record<S, (readonly number[])[]>>;
}

export const bench: Bench = {
  about: 'our mount of an nfs-ganesha export against sshfs over plain TCP, and against our NFS client without a mount',
  options: ['rounds', 'only', 'against'],
  run: async (signal, note, { rounds = usualRounds, only, against }) => {
    requireComponents('fuse', 'ganesha', 'fio', 'sshfs');
    const [place] = measuredFileSystems();
    if (place === undefined) throw new Error('there is no file system to measure on');
    note(`nfs-ganesha and sftp-server on ${place.kind}`);
    using scratch = createScratchFolder('stowage-bench-');
    await using exported = await makeFolder(place, []);
    await plantShared(join(exported.path, 'shared'));
    await using ganesha = await startGanesha({ exports: [{ path: exported.path, tag: 'bench' }], signal });
    const about = { server: ganesha, exported: exported.path, signal, note };
    const wanted = tasks.filter(({ rows }) => rows.some(({ name }) => name.includes(only)));
    if (against !== undefined) {
      await using earlier = await checkOut(against, signal);
      return await versionRows({ ...about, folder: scratch.folder }, earlier.path, rounds, wanted);
    }
    return [
      ...(await speedRows({ ...about, folder: scratch.folder }, rounds, wanted)),
      ...(memoryName.includes(only) ? await memoryOf({ ...about, folder: join(scratch.folder, 'memory') }) : []),
    ];
  },
};

interface DataPathBenchOptions extends OurDataPathOptions {
  /** The folder that the server exports. */
  readonly exported: string;
  readonly note: (text: string) => void;
}

async function speedRows(
  about: DataPathBenchOptions,
  rounds: number,
  wanted: readonly Task[],
): Promise<readonly Row[]> {
  const { server, folder, exported, signal, note } = about;
  if (wanted.length === 0) return [];
  await using sftp = await startSftpServer();
  const run = async (file: string, args: readonly string[]) => (await command([file, ...args], signal)).stdout;
  await using ssh = await startSshServer(folder, run);
  await using ours = await startOurDataPath(about);
  await using raw = startRaw(server, signal);
  const mountings = { ours, sshfs: sshfsMounting(sftp, folder, signal), ssh: sshfsMounting(ssh, folder, signal) };
  const measure = async (task: Task, side: Side): Promise<readonly number[]> => {
    await using place = await folderFor(task, exported);
    if (side !== 'raw') return await onMount(task, mountings[side], place.path, signal);
    if (task.raw === undefined) return [];
    const [name, times] = task.raw;
    return [await raw.request<number>(`${name} ${place.path} ${times}`, rawMs)];
  };
  const measured = await compare(wanted, { sides, rounds, measure, note });
  return [...measured.flatMap(rowsOf), await memoryRow(ours, 'after all this')];
}

async function versionRows(about: DataPathBenchOptions, tree: string, rounds: number, wanted: readonly Task[]) {
  const { folder, exported, signal, note } = about;
  await using ours = await startOurDataPath({ ...about, folder: join(folder, 'ours') });
  await using earlier = await startOurDataPath({ ...about, folder: join(folder, 'earlier'), tree });
  const mountings = { ours, earlier };
  const measure = async (task: Task, side: Version): Promise<readonly number[]> => {
    await using place = await folderFor(task, exported);
    return await onMount(task, mountings[side], place.path, signal);
  };
  const measured = await compare(wanted, { sides: versions, rounds, measure, note });
  return measured.flatMap(versionRowsOf);
}

const versionRowsOf = ({ task, values }: Measured<Version>): readonly Row[] =>
  task.rows.map(({ name, unit }, i) => {
    const [ours, earlier] = versions.map((side) => values[side].map((one) => one[i] ?? Number.NaN));
    return toRow({ name, unit, values: ours ?? [], yardsticks: earlier ?? [], goal: noSlower });
  });

async function memoryOf(about: DataPathBenchOptions): Promise<readonly Row[]> {
  await using ours = await startOurDataPath(about);
  return await memoryRows(ours, about.exported, about.signal);
}

/** All sides read this folder in turn. After the first read, the server has it in its cache for all sides. */
async function plantShared(folder: string): Promise<void> {
  await mkdir(folder);
  await writeFile(join(folder, 'large'), Buffer.alloc(largeMib * 1024 * 1024, 'stowage '));
  plantTree(join(folder, 'tree'));
}

let count = 0;

/** Created directly on the server's disk, so that the server's cache is cold. */
async function folderFor(task: Task, parent: string): Promise<AsyncDisposable & { readonly path: string }> {
  const shared = join(parent, 'shared');
  if (task.folder === 'shared') return { path: shared, [Symbol.asyncDispose]: () => Promise.resolve() };
  const path = join(parent, `${task.folder}-${++count}`);
  await mkdir(path);
  if (task.folder === 'tree') await cp(join(shared, 'tree'), join(path, 'tree'), { recursive: true });
  return { path, [Symbol.asyncDispose]: () => rm(path, { recursive: true, force: true }) };
}

async function onMount(task: Task, mounting: Mounter, folder: string, signal: AbortSignal) {
  await using mounted = await mounting.mount(folder, task);
  return await task.measure(mounted.at, signal);
}

interface Comparison<S extends string> {
  readonly sides: readonly S[];
  readonly rounds: number;
  readonly note: (text: string) => void;
  measure(task: Task, side: S): Promise<readonly number[]>;
}

/** Runs every task on every side in each round. The order of the sides rotates, so that no side is always the first. */
async function compare<S extends string>(
  wanted: readonly Task[],
  { sides, rounds, measure, note }: Comparison<S>,
): Promise<readonly Measured<S>[]> {
  const noValues = () => Object.fromEntries(sides.map((side) => [side, []])) as unknown as Measured<S>['values'];
  const all = wanted.map((task): Measured<S> => ({ task, values: noValues() }));
  // Round 0 is a warm-up: code is not compiled yet, and the servers' caches are cold.
  for (let round = 0; round <= rounds; round++) {
    for (const { task, values } of all) {
      const order = sides.map((_, i) => sides[(i + round) % sides.length] as S);
      for (const side of order) {
        const found = await measure(task, side);
        if (round > 0) values[side].push(found);
        const shown = found.map((value, i) => `${task.rows[i]?.name} ${Math.round(value)} ${task.rows[i]?.unit}`);
        if (found.length > 0)
          note(`${round === 0 ? 'warm-up' : `round ${round}/${rounds}`}: ${side}: ${shown.join(', ')}`);
      }
    }
  }
  return all;
}

function rowsOf({ task, values }: Measured<Side>): readonly Row[] {
  return task.rows.flatMap(({ name, unit, atLeast, ofRaw }, i) => {
    const of = (side: Side): readonly number[] => values[side].map((one) => one[i] ?? Number.NaN);
    const goal = (ratio: number | undefined) => (ratio === undefined ? {} : { goal: { ratioAtLeast: ratio } });
    const mine = { unit, values: of('ours') };
    const beside = toRow({ ...mine, name: `${name}, beside sshfs`, yardsticks: of('sshfs'), ...goal(atLeast) });
    const encrypted = toRow({ ...mine, name: `${name}, beside sshfs by ssh`, yardsticks: of('ssh') });
    if (task.raw === undefined || i > 0) return [beside, encrypted];
    return [
      beside,
      encrypted,
      toRow({ ...mine, name: `${name}, beside our client`, yardsticks: of('raw'), ...goal(ofRaw) }),
    ];
  });
}
