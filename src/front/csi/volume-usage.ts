import type { Volume } from '#core/model.ts';
import type { LiveMount } from '#core/mounts.ts';
import { VolumeUsage_Unit as Unit } from '#wire/csi/generated/csi.ts';
import type { About, Space } from './driver-context.ts';

interface Entry {
  readonly unit: (typeof Unit)[keyof typeof Unit];
  readonly total: bigint;
  readonly used: bigint;
  readonly available: bigint;
}

/**
 * The volume's own figures, not those of the file system around it: those only while its own are not known. A kubelet takes what is
 * left out for nothing used.
 */
export async function usageOf(about: About, volume: Volume, mount: LiveMount): Promise<readonly Entry[]> {
  const { source } = mount;
  const size = volume.bytes ?? 0n;
  if (volume.access === 'block') return [{ unit: Unit.BYTES, total: size, used: 0n, available: 0n }];
  const space = await about.spaceOf(mount.target);
  // A file system of its own knows best.
  if (space !== undefined && about.core.mounts.filesystemOf(source) !== undefined) return around(space);
  const own = await about.counting.of(volume);
  if (own === undefined) return space === undefined ? [] : around(space);
  const { bytes: used, files } = own;
  const room = space?.freeBytes;
  const left = volume.bytes === undefined ? (room ?? 0n) : size > used ? size - used : 0n;
  const free = room === undefined || room > left ? left : room;
  const freeFiles = space?.freeFiles ?? 0n;
  return [
    entry(Unit.BYTES, volume.bytes ?? used + free, used, free),
    entry(Unit.INODES, files + freeFiles, files, freeFiles),
  ];
}

const around = ({ totalBytes, freeBytes, files, freeFiles }: Space): readonly Entry[] => [
  entry(Unit.BYTES, totalBytes, totalBytes - freeBytes, freeBytes),
  entry(Unit.INODES, files, files - freeFiles, freeFiles),
];

const entry = (unit: Entry['unit'], total: bigint, used: bigint, available: bigint): Entry => ({
  unit,
  total,
  used,
  available,
});
