import type { Mount } from './model.ts';
import type { Records } from './ports.ts';

/**
 * Mounts that were repaired while in use. Recorded for as long as the user has the mount, also across restarts: files that the user opened
 * before the repair are dead, and only restarting the user helps.
 */
const settingKey = 'mounts.repaired';

type RepairTimes = Readonly<Record<string, number>>;

const readRepairTimes = ({ settings }: Pick<Records, 'settings'>): RepairTimes =>
  JSON.parse(settings.get(settingKey) ?? '{}');

export function recordRepair(
  records: Pick<Records, 'settings' | 'mounts'>,
  { target }: Pick<Mount, 'target'>,
  at: number,
): void {
  const mounts = records.mounts.list();
  // Also drop entries of mounts that are gone, or that were replaced by a newer mount at the same target.
  const currentEntries = Object.entries(readRepairTimes(records)).filter(([place, then]) =>
    mounts.some((mount) => mount.target === place && mount.since <= then),
  );
  records.settings.set(settingKey, JSON.stringify({ ...Object.fromEntries(currentEntries), [target]: at }));
}

/** When the mount was repaired. Undefined: it was not repaired since its user mounted it. */
export function repairedAt(
  records: Pick<Records, 'settings'>,
  { target, since }: Pick<Mount, 'target' | 'since'>,
): number | undefined {
  const at = readRepairTimes(records)[target];
  return at === undefined || at < since ? undefined : at;
}
