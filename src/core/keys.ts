/**
 * What locks are named by. Whoever needs several takes those of a volume first and those of its mounts after: two
 * orders would wait for each other.
 */
import type { VolumeId } from './model.ts';

/** A name in a store, whether or not a volume has it. */
export const nameKey = (store: string, name: string): string => `name ${store}/${name}`;
/** A volume, whatever it is called by now. */
export const volumeKey = (id: VolumeId): string => `volume ${id}`;
export const stageKey = (id: VolumeId): string => `stage ${id}`;
export const targetKey = (target: string): string => `target ${target}`;
/** What container engines have asked for of a volume; taken before all of the above. */
export const holdKey = (id: VolumeId): string => `hold ${id}`;
