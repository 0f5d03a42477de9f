import { formatSize } from '#base/size.ts';
import { type ReasonWith, StowageError } from './errors.ts';
import type { StoreConfig, StoreName, StorePolicy, VolumeId } from './model.ts';
import type { Records, VolumeTotals } from './ports.ts';

/** Enforces the administrator's limits of stores, also for concurrent requests. */
export interface StoreLimits {
  /** Reserves a total size for the volume until disposed. Throws 'exhausted' if it exceeds a limit. */
  reserve(config: StoreConfig, id: VolumeId, bytes: bigint): Disposable;
}

/** The bytes available to new volumes: the free space, capped by the administrator's limits. */
export function roomForVolumes(
  freeBytes: bigint,
  { maxBytes, maxVolumes }: Pick<StorePolicy, 'maxBytes' | 'maxVolumes'>,
  { bytes, volumes }: VolumeTotals,
): bigint {
  if (maxVolumes !== undefined && volumes >= maxVolumes) return 0n;
  if (maxBytes === undefined) return freeBytes;
  const remainingBytes = maxBytes > bytes ? maxBytes - bytes : 0n;
  return remainingBytes < freeBytes ? remainingBytes : freeBytes;
}

interface Reservation {
  readonly id: VolumeId;
  readonly bytes: bigint;
}

export function createStoreLimits(records: Records): StoreLimits {
  const reservations = new Map<StoreName, Set<Reservation>>();

  /** The reserved volumes and bytes that the records do not include yet. */
  function pending(store: StoreName): { volumes: number; bytes: bigint } {
    let [volumes, bytes] = [0, 0n];
    for (const reservation of reservations.get(store) ?? []) {
      const recorded = records.volumes.byId(reservation.id);
      if (recorded === undefined) volumes++;
      const additionalBytes = reservation.bytes - (recorded?.bytes ?? 0n);
      if (additionalBytes > 0n) bytes += additionalBytes;
    }
    return { volumes, bytes };
  }

  function check(config: StoreConfig, id: VolumeId, bytes: bigint): void {
    const { maxVolumes, maxBytes } = config.policy;
    if (maxVolumes === undefined && maxBytes === undefined) return;
    const totals = records.volumes.totals(config.name);
    const reserved = pending(config.name);
    const recorded = records.volumes.byId(id);
    if (maxVolumes !== undefined && recorded === undefined && totals.volumes + reserved.volumes >= maxVolumes) {
      throw limitExceeded(config.name, `is full: it may hold ${maxVolumes} volumes`, 'store-volumes-limit');
    }
    const remainingBytes = (maxBytes ?? 0n) - totals.bytes - reserved.bytes;
    const additionalBytes = bytes - (recorded?.bytes ?? 0n);
    if (maxBytes !== undefined && additionalBytes > 0n && additionalBytes > remainingBytes) {
      const room = formatSize(remainingBytes > 0n ? remainingBytes : 0n);
      const wanted = formatSize(additionalBytes);
      throw limitExceeded(
        config.name,
        `has no room for ${wanted}: ${room} of ${formatSize(maxBytes)} are left`,
        'store-bytes-limit',
      );
    }
  }

  return {
    reserve: (config, id, bytes) => {
      check(config, id, bytes);
      const reservation: Reservation = { id, bytes };
      const storeReservations = reservations.get(config.name) ?? new Set();
      reservations.set(config.name, storeReservations.add(reservation));
      return { [Symbol.dispose]: () => storeReservations.delete(reservation) };
    },
  };
}

function limitExceeded(store: StoreName, why: string, reason: ReasonWith<'exhausted'>): StowageError {
  return new StowageError(`store '${store}' ${why}`, {
    code: 'exhausted',
    reason,
    action: 'Delete volumes you no longer need, use another store, or ask the administrator to raise the limit.',
  });
}
