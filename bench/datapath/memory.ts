import { mkdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { type Row, toRow } from '../report.ts';
import { command } from './command.ts';
import type { OurDataPath } from './our-data-path.ts';

const goals = [
  { mounts: 20, below: 150 },
  { mounts: 100, below: 250 },
] as const;
const fileMib = 4;

/** Peak memory of a new data path after work on several mounts at the same time. */
export async function memoryRows(ours: OurDataPath, parent: string, signal: AbortSignal): Promise<readonly Row[]> {
  const rows: Row[] = [];
  await using mounted = new AsyncDisposableStack();
  const places: string[] = [];
  for (const { mounts, below } of goals) {
    while (places.length < mounts) {
      const folder = join(parent, `memory-${places.length + 1}`);
      await mkdir(folder);
      places.push(mounted.use(await ours.mount(folder, { isCaching: true })).at);
    }
    await Promise.all(places.map((at) => work(at, signal)));
    const values = [await megabytes(ours, 'VmHWM')];
    rows.push(toRow({ name: `${memoryName}, ${mounts} mounts`, unit: 'MB', values, goal: { valueBelow: below } }));
  }
  return rows;
}

async function work(at: string, signal: AbortSignal): Promise<void> {
  await command(['dd', 'if=/dev/zero', `of=${at}/file`, 'bs=1M', `count=${fileMib}`, 'conv=fsync'], signal);
  await command(['dd', `if=${at}/file`, 'of=/dev/null', 'bs=1M', 'iflag=direct'], signal);
  await command(['ls', '-l', at], signal);
}

/** The present memory of the data path. */
export async function memoryRow(ours: OurDataPath, when: string): Promise<Row> {
  return toRow({ name: `${memoryName}, ${when}`, unit: 'MB', values: [await megabytes(ours, 'VmRSS')] });
}

export const memoryName = 'memory of the data path';

/** Resident memory: the present value, or the peak. */
async function megabytes(ours: OurDataPath, which: 'VmRSS' | 'VmHWM'): Promise<number> {
  const { active } = await ours.complete();
  const status = await readFile(`/proc/${active?.pid}/status`, 'utf8');
  const line = status.split('\n').find((each) => each.startsWith(`${which}:`));
  return (Number.parseInt(line?.split(':')[1] ?? '', 10) * 1024) / 1e6;
}
