import { fileURLToPath } from 'node:url';
import { command } from './command.ts';
import { files } from './tree.ts';

/** One measurement, on a mount and as calls without a mount. */
export interface Task {
  /** One row for each value that `measure` returns. */
  readonly rows: readonly TaskRow[];
  /**
   * `shared`: a folder with `large` and `tree` that tasks only read. `tree`: a folder with a tree of its own. `empty`:
   * an empty folder.
   */
  readonly folder: 'shared' | 'tree' | 'empty';
  readonly isCaching: boolean;
  /** Runs on a new mount. */
  measure(at: string, signal: AbortSignal): Promise<readonly number[]>;
  /** The task of raw.ts whose rate is the upper limit of the first value. */
  readonly raw?: readonly [task: string, count: number];
}

export interface TaskRow {
  readonly name: string;
  readonly unit: string;
  /** The goal as a ratio to sshfs. */
  readonly atLeast?: number;
  /** The goal as a ratio to the NFS client without a mount. */
  readonly ofRaw?: number;
}

export const largeMib = 256;
const createdFiles = 5000;
const statFiles = 10_000;
const randomMs = 1500;
const randomReads = { 1: 8000, 32: 25_000 } as const;

async function dd(args: readonly string[], signal: AbortSignal): Promise<readonly number[]> {
  const { stderr } = await command(['dd', 'bs=1M', `count=${largeMib}`, ...args], signal);
  // dd measures the time itself: starting the program takes a hundredth of it.
  const seconds = Number(/copied, ([\d.e-]+) s/.exec(stderr)?.[1]);
  return [largeMib / seconds];
}

async function application(task: string, folder: string, count: number, signal: AbortSignal) {
  const program = fileURLToPath(new URL('application.ts', import.meta.url));
  const { stdout } = await command([process.execPath, program, task, folder, String(count)], signal);
  return JSON.parse(stdout) as readonly number[];
}

async function perSecond(words: readonly [string, ...string[]], signal: AbortSignal): Promise<readonly number[]> {
  const { seconds } = await command(words, signal);
  return [files / seconds];
}

async function fio(file: string, depth: number, signal: AbortSignal): Promise<readonly number[]> {
  const { stdout } = await command(
    [
      ...(['fio', '--name=x', `--filename=${file}`, `--size=${largeMib}m`, '--rw=randread', '--bs=4k'] as const),
      '--direct=1',
      '--ioengine=psync',
      '--thread',
      `--numjobs=${depth}`,
      '--group_reporting',
      '--time_based',
      `--runtime=${randomMs}ms`,
      '--readonly',
      '--output-format=json',
    ],
    signal,
  );
  const { jobs } = JSON.parse(stdout) as { readonly jobs: readonly { readonly read: { readonly iops: number } }[] };
  return [jobs[0]?.read.iops ?? 0];
}

const randomRead = (depth: 1 | 32): Task => ({
  rows: [{ name: `random read of 4 KiB, depth ${depth}`, unit: '/s', atLeast: 1 }],
  folder: 'shared',
  isCaching: true,
  raw: [`random-${depth}`, randomReads[depth]],
  measure: (at, signal) => fio(`${at}/large`, depth, signal),
});

export const tasks: readonly Task[] = [
  {
    rows: [{ name: 'sequential write', unit: 'MiB/s', atLeast: 1, ofRaw: 0.85 }],
    folder: 'empty',
    isCaching: true,
    raw: ['write', largeMib],
    measure: (at, signal) => dd(['if=/dev/zero', `of=${at}/written`, 'conv=fsync'], signal),
  },
  {
    rows: [{ name: 'sequential read', unit: 'MiB/s', atLeast: 1, ofRaw: 0.85 }],
    folder: 'shared',
    isCaching: true,
    raw: ['read', largeMib],
    measure: (at, signal) => dd([`if=${at}/large`, 'of=/dev/null'], signal),
  },
  randomRead(1),
  randomRead(32),
  {
    rows: [{ name: 'create + write 4 KiB', unit: 'files/s', ofRaw: 0.75 }],
    folder: 'empty',
    isCaching: true,
    raw: ['create', createdFiles],
    measure: (at, signal) => application('create', `${at}/made`, createdFiles, signal),
  },
  {
    rows: [
      { name: 'stat, cold', unit: 'files/s', atLeast: 1 },
      { name: 'stat, warm', unit: 'files/s', atLeast: 1 },
      { name: 'stat, once more after all', unit: 'files/s' },
    ],
    folder: 'shared',
    isCaching: true,
    raw: ['stat', statFiles],
    measure: (at, signal) => application('stat', `${at}/tree`, statFiles, signal),
  },
  {
    rows: [{ name: 'stat, attribute caching off', unit: 'files/s', atLeast: 1 }],
    folder: 'shared',
    isCaching: false,
    measure: (at, signal) => application('stat-once', `${at}/tree`, statFiles, signal),
  },
  {
    rows: [{ name: 'ls -lR', unit: 'files/s', atLeast: 1 }],
    folder: 'shared',
    isCaching: true,
    raw: ['list', files],
    measure: (at, signal) => perSecond(['ls', '-lR', `${at}/tree`], signal),
  },
  {
    rows: [{ name: 'rm -rf', unit: 'files/s', ofRaw: 0.75 }],
    folder: 'tree',
    isCaching: true,
    raw: ['remove', files],
    measure: (at, signal) => perSecond(['rm', '-rf', `${at}/tree`], signal),
  },
];
