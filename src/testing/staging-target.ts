import { basename } from 'node:path';
import type { VolumeId } from '#core/model.ts';
import type { StagingTarget } from '#core/ports.ts';

/** The staging target at a path whose last part is the volume's id. */
export const targetAt = (path: string): StagingTarget => ({ volumeId: basename(path) as VolumeId, path });
