import type { Mount } from './model.ts';
import type { Records } from './ports.ts';

/**
 * Mounts that were made anew under somebody who used them. It is remembered for as long as that user has the mount, also over a
 * restart: what it has of the mount before is dead, and nobody but its user, or who started it, can do something about that.
 */
const settingKey = 'mounts.repaired';

type Noted = Readonly<Record<string, number>>;

const noted = ({ settings }: Pick<Records, 'settings'>): Noted => JSON.parse(settings.get(settingKey) ?? '{}');

export function noteRepaired(
  records: Pick<Records, 'settings' | 'mounts'>,
  { target }: Pick<Mount, 'target'>,
  at: number,
): void {
  const mounts = records.mounts.list();
  // Those of others that have gone since, or have come since at the same place, are forgotten on the way.
  const known = Object.entries(noted(records)).filter(([place, then]) =>
    mounts.some((mount) => mount.target === place && mount.since <= then),
  );
  records.settings.set(settingKey, JSON.stringify({ ...Object.fromEntries(known), [target]: at }));
}

/** Undefined: it is still the one that its user got. */
export function repairedAt(
  records: Pick<Records, 'settings'>,
  { target, since }: Pick<Mount, 'target' | 'since'>,
): number | undefined {
  const at = noted(records)[target];
  return at === undefined || at < since ? undefined : at;
}
