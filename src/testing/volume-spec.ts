import type { VolumeSpec } from '#core/model.ts';
import { newVolumeId, volumeName } from '#core/names.ts';

/** A volume that somebody wants, of no particular size. Asked for twice by one name it is the same request. */
export const volumeSpec = (name: string, more: Partial<VolumeSpec> = {}): VolumeSpec => ({
  id: newVolumeId(),
  name: volumeName(name),
  bytes: undefined,
  access: 'filesystem',
  labels: {},
  requestId: `request ${name}`,
  createdAt: 0,
  instance: 'instance-1',
  ...more,
});
