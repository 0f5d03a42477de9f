import { endsWithin } from '#base/patience.ts';
import type { Usage, Volume } from '#core/model.ts';
import type { LiveMount } from '#core/mounts.ts';
import type { Call } from '#core/operations.ts';
import { VolumeUsage_Unit as Unit } from '#wire/csi/generated/csi.ts';
import type { About } from './driver.ts';

/** A kubelet asks for all of its volumes every minute: what takes longer to count than this is told the next time. */
const waitMs = 5_000;

interface Entry {
  readonly unit: (typeof Unit)[keyof typeof Unit];
  readonly total: bigint;
  readonly used: bigint;
  readonly available: bigint;
}

/** The volume's own figures, not those of the file system around it. */
export async function usageOf(about: About, volume: Volume, mount: LiveMount, call: Call): Promise<readonly Entry[]> {
  const { source } = mount;
  const size = volume.bytes ?? 0n;
  if (volume.access === 'block') return [{ unit: Unit.BYTES, total: size, used: 0n, available: 0n }];
  const space = await about.spaceOf(mount.target);
  // A file system of its own knows best.
  if (source.kind === 'loop' && space !== undefined)
    return [
      entry(Unit.BYTES, space.totalBytes, space.totalBytes - space.freeBytes, space.freeBytes),
      entry(Unit.INODES, space.files, space.files - space.freeFiles, space.freeFiles),
    ];
  const own = await measured(about, volume, call);
  const [used, files] = [own?.bytes ?? 0n, own?.files ?? 0n];
  const around = space?.freeBytes;
  const left = volume.bytes === undefined ? (around ?? 0n) : size > used ? size - used : 0n;
  const free = around === undefined || around > left ? left : around;
  const freeFiles = space?.freeFiles ?? 0n;
  return [
    entry(Unit.BYTES, volume.bytes ?? used + free, used, free),
    entry(Unit.INODES, files + freeFiles, files, freeFiles),
  ];
}

const entry = (unit: Entry['unit'], total: bigint, used: bigint, available: bigint): Entry => ({
  ...{ unit, total, used, available },
});

/** A lower bound, where it was not done in time. */
async function measured({ engine, clock }: About, { id }: Volume, call: Call): Promise<Usage | undefined> {
  using limit = clock.deadline(waitMs, call.signal);
  let found: Usage | undefined;
  const measuring = engine.volumes.usage(id, { ...call, signal: limit.signal }).then((usage) => {
    found = usage;
  });
  await endsWithin(measuring, waitMs, clock);
  return found;
}
