import type { ProcessMarks, Records } from '#core/ports.ts';
import { instanceMark, isProcessMark, newProcessMark } from '#stores/nfs/lock-marks.ts';

const setting = 'process marks';
const sharedMark = 'shared mark';
const mostDead = 64;

/**
 * Has all processes of the instance use one mark. For controllers: each starts with nothing, and could not take the locks of the one that
 * died before it for two minutes, in which claims would wait. The price: two that lead at the same time do not exclude each other.
 */
export const shareMark = ({ settings }: Pick<Records, 'settings'>, instance: string): void =>
  settings.set(sharedMark, String(instanceMark(instance)));

/**
 * A mark of this process, recorded for the next one. One process at a time has the state folder, so the processes that recorded marks in it
 * are dead. Marks that were recorded in another folder don't count: this one may be a copy of that of a process that lives.
 * `folder` is undefined if that cannot be told.
 */
export function takeProcessMarks({ settings }: Pick<Records, 'settings'>, folder: string | undefined): ProcessMarks {
  const shared = Number(settings.get(sharedMark));
  if (isProcessMark(shared)) return { own: shared, dead: [], isShared: true };
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
