import type { VolumeSpec } from '#core/model.ts';
import { newVolumeId, volumeName } from '#core/names.ts';

/** The spec of a volume without a size. Two specs with the same name are the same request. */
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
