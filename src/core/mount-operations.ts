import type { Events } from './events.ts';
import type { Mount, VolumeId } from './model.ts';
import type { OperationIntent } from './operations.ts';
import type { Records } from './ports.ts';

/** The deadline of a mount or an unmount. */
export const mountDeadlineMs = 60_000;

/** `store/name`, or the id if the volume is no longer on record. */
export function volumeTitle({ records }: { readonly records: Pick<Records, 'volumes'> }, id: VolumeId): string {
  const volume = records.volumes.byId(id);
  return volume === undefined ? id : `${volume.store}/${volume.name}`;
}

/** The kinds of operations that mount and unmount. Their records have the mount. */
export type MountOperationKind = 'volume.mount' | 'volume.unmount';

export const isMountOperation = (kind: string): kind is MountOperationKind =>
  kind === 'volume.mount' || kind === 'volume.unmount';

export const mountIntent = (
  kind: MountOperationKind,
  parts: { readonly records: Pick<Records, 'volumes'> },
  mount: Mount,
): OperationIntent => ({
  kind,
  subject: volumeTitle(parts, mount.volumeId),
  params: { mount },
  deadlineMs: mountDeadlineMs,
});

export function publishMountEvent(
  { events, records }: { readonly events: Events; readonly records: Pick<Records, 'volumes'> },
  type: 'mounted' | 'unmounted',
  mount: Mount,
): void {
  const store = records.volumes.byId(mount.volumeId)?.store;
  events.publish(`mount.${type}`, mount.target, store, { volume: mount.volumeId, target: mount.target });
}
