import { mkdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { type Row, toRow } from '../report.ts';
import { command } from './command.ts';
import type { Ours } from './ours.ts';

const goals = [
  { mounts: 20, below: 150 },
  { mounts: 100, below: 250 },
] as const;
const fileMib = 4;

/** Of a data path that is new, after some work on each of so many mounts, one after the other. */
export async function memoryRows(ours: Ours, parent: string, signal: AbortSignal): Promise<readonly Row[]> {
  const rows: Row[] = [];
  await using mounted = new AsyncDisposableStack();
  let count = 0;
  for (const { mounts, below } of goals) {
    while (count < mounts) {
      const folder = join(parent, `memory-${++count}`);
      await mkdir(folder);
      const { at } = mounted.use(await ours.mount(folder, { isCaching: true }));
      await command(['dd', 'if=/dev/zero', `of=${at}/file`, 'bs=1M', `count=${fileMib}`, 'conv=fsync'], signal);
      await command(['dd', `if=${at}/file`, 'of=/dev/null', 'bs=1M', 'iflag=direct'], signal);
      await command(['ls', '-l', at], signal);
    }
    rows.push(await memoryRow(ours, `${mounts} mounts`, { goal: { valueBelow: below } }));
  }
  return rows;
}

/** As it is now. */
export async function memoryRow(
  ours: Ours,
  when: string,
  goal: { readonly goal?: { readonly valueBelow: number } } = {},
): Promise<Row> {
  return toRow({ name: `${memoryName}, ${when}`, unit: 'MB', values: [await residentMegabytes(ours)], ...goal });
}

export const memoryName = 'memory of the data path';

async function residentMegabytes(ours: Ours): Promise<number> {
  const { active } = await ours.complete();
  const status = await readFile(`/proc/${active?.pid}/status`, 'utf8');
  return (Number(/^VmRSS:\s+(\d+) kB$/m.exec(status)?.[1]) * 1024) / 1e6;
}
