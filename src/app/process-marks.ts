import type { ProcessMarks, Records } from '#core/ports.ts';
import { isProcessMark, newProcessMark } from '#stores/nfs/lock-marks.ts';

const marksSetting = 'process marks';
const maxDeadMarks = 64;

/**
 * Creates a mark for this process and records it for the next one. Only one process at a time uses the state folder, so the processes that
 * recorded marks in it are dead. Marks recorded in another folder don't count: this one may be a copy of the folder of a live process.
 * `folder`: undefined if the folder cannot be identified.
 */
export function takeProcessMarks({ settings }: Pick<Records, 'settings'>, folder: string | undefined): ProcessMarks {
  const dead = folder === undefined ? [] : readRecordedMarks(settings.get(marksSetting), folder);
  const own = newProcessMark();
  if (folder !== undefined)
    settings.set(marksSetting, JSON.stringify({ folder, marks: [own, ...dead].slice(0, maxDeadMarks) }));
  return { own, dead };
}

function readRecordedMarks(text: string | undefined, folder: string): readonly number[] {
  try {
    const found: unknown = JSON.parse(text ?? '{}');
    if (typeof found !== 'object' || found === null || !('folder' in found) || found.folder !== folder) return [];
    return 'marks' in found && Array.isArray(found.marks) ? found.marks.filter(isProcessMark) : [];
  } catch {
    return [];
  }
}
