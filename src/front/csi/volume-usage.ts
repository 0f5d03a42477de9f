import type { LiveMount, Volume } from '#core/model.ts';
import { VolumeUsage_Unit as Unit } from '#wire/csi/generated/csi.ts';
import type { DriverContext, FilesystemSpace } from './driver-context.ts';

interface UsageEntry {
  readonly unit: (typeof Unit)[keyof typeof Unit];
  readonly total: bigint;
  readonly used: bigint;
  readonly available: bigint;
}

/**
 * The volume's own usage. While that is not known, the usage of the file system that contains the volume: to a kubelet, a missing entry
 * means that nothing is used.
 */
export async function usageOf(ctx: DriverContext, volume: Volume, mount: LiveMount): Promise<readonly UsageEntry[]> {
  const { source } = mount;
  const size = volume.bytes ?? 0n;
  if (volume.access === 'block') return [{ unit: Unit.BYTES, total: size, used: 0n, available: 0n }];
  const space = await ctx.spaceOf(mount.target);
  // The volume has a file system of its own, so statfs is exact.
  if (space !== undefined && ctx.core.mounts.filesystemOf(source) !== undefined) return filesystemUsage(space);
  const own = await ctx.usageCounter.usageOf(volume);
  if (own === undefined) return space === undefined ? [] : filesystemUsage(space);
  const { bytes: used, files } = own;
  const room = space?.freeBytes;
  const left = volume.bytes === undefined ? (room ?? 0n) : size > used ? size - used : 0n;
  const free = room === undefined || room > left ? left : room;
  const freeFiles = space?.freeFiles ?? 0n;
  return [
    usageEntry(Unit.BYTES, volume.bytes ?? used + free, used, free),
    usageEntry(Unit.INODES, files + freeFiles, files, freeFiles),
  ];
}

const filesystemUsage = ({ totalBytes, freeBytes, files, freeFiles }: FilesystemSpace): readonly UsageEntry[] => [
  usageEntry(Unit.BYTES, totalBytes, totalBytes - freeBytes, freeBytes),
  usageEntry(Unit.INODES, files, files - freeFiles, freeFiles),
];

const usageEntry = (unit: UsageEntry['unit'], total: bigint, used: bigint, available: bigint): UsageEntry => ({
  unit,
  total,
  used,
  available,
});
