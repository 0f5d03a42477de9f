import type { ProcessMarks, Records } from '#core/ports.ts';
import { isProcessMark, newProcessMark } from '#stores/nfs/lock-marks.ts';

const setting = 'process marks';
const mostDead = 64;

/**
 * A mark of this process, recorded for the next one. One process at a time has the state folder, so the processes that recorded marks in it
 * are dead. Marks that were recorded in another folder don't count: this one may be a copy of that of a process that lives.
 * `folder` is undefined if that cannot be told.
 */
export function takeProcessMarks({ settings }: Pick<Records, 'settings'>, folder: string | undefined): ProcessMarks {
  const dead = folder === undefined ? [] : recorded(settings.get(setting), folder);
  const own = newProcessMark();
  if (folder !== undefined) settings.set(setting, JSON.stringify({ folder, marks: [own, ...dead].slice(0, mostDead) }));
  return { own, dead };
}

function recorded(text: string | undefined, folder: string): readonly number[] {
  try {
    const found: unknown = JSON.parse(text ?? '{}');
    if (typeof found !== 'object' || found === null || !('folder' in found) || found.folder !== folder) return [];
    return 'marks' in found && Array.isArray(found.marks) ? found.marks.filter(isProcessMark) : [];
  } catch {
    return [];
  }
}
