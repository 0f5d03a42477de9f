import type { ProcessMarks, Records } from '#core/ports.ts';
import { isProcessMark, newProcessMark } from '#stores/nfs/lock-marks.ts';

const setting = 'process marks';
const mostDead = 64;

/**
 * A mark of this process, recorded for the next one. The state folder is one process's at a time, so those before it are
 * dead; unless the folder was copied from another machine, or restored: so only what was recorded since this machine
 * started counts. Undefined boot: nothing is known.
 */
export function takeProcessMarks({ settings }: Pick<Records, 'settings'>, boot: string | undefined): ProcessMarks {
  const dead = boot === undefined ? [] : recorded(settings.get(setting), boot);
  const own = newProcessMark();
  if (boot !== undefined) settings.set(setting, JSON.stringify({ boot, marks: [own, ...dead].slice(0, mostDead) }));
  return { own, dead };
}

function recorded(text: string | undefined, boot: string): readonly number[] {
  try {
    const found: unknown = JSON.parse(text ?? '{}');
    if (typeof found !== 'object' || found === null || !('boot' in found) || found.boot !== boot) return [];
    return 'marks' in found && Array.isArray(found.marks) ? found.marks.filter(isProcessMark) : [];
  } catch {
    return [];
  }
}
