import { basename } from 'node:path';
import type { VolumeId } from '#core/model.ts';
import type { StagingTarget } from '#core/ports.ts';

/** The target of a stage whose folder is named after its volume. */
export const targetAt = (path: string): StagingTarget => ({ volumeId: basename(path) as VolumeId, path });
