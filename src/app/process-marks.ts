import type { ProcessMarks, Records } from '#core/ports.ts';
import { isProcessMark, newProcessMark } from '#stores/nfs/lock-marks.ts';

const setting = 'process marks';
const mostDead = 64;

/**
 * Creates a mark for this process and records it for the next one. Only one process at a time uses the state folder, so the processes that
 * recorded marks in it are dead. Marks recorded in another folder don't count: this one may be a copy of the folder of a live process.
 * `folder`: undefined if the folder cannot be identified.
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
