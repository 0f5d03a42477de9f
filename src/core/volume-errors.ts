import { formatSize } from '#base/size.ts';
import { StowageError } from './errors.ts';
import type { Access, StoreName, Volume } from './model.ts';
import { quoted } from './names.ts';
import type { Store } from './ports.ts';
import { type KindsWithOffers, storesOffering } from './store-offers.ts';

export function unknownVolume(ref: string): StowageError {
  return new StowageError(`there is no volume ${quoted(ref)}`, {
    code: 'not-found',
    reason: 'volume-unknown',
    action: 'List the volumes: stowage volume list',
  });
}

export function checkRevision(volume: Volume, expectedRevision: number | undefined): void {
  if (expectedRevision === undefined || expectedRevision === volume.revision) return;
  throw new StowageError(
    `volume '${volume.store}/${volume.name}' is at revision ${volume.revision}, not ${expectedRevision}`,
    {
      code: 'stale',
      reason: 'revision-differs',
      action: 'Read it again, and repeat the change if it still makes sense.',
    },
  );
}

/** Larger than any real volume, and small enough that sums of sizes stay far below 2^63. */
const maxVolumeBytes = 1n << 60n;

export function checkSize(bytes: bigint): void {
  if (bytes > 0n && bytes <= maxVolumeBytes) return;
  throw new StowageError(`a volume cannot have ${bytes} bytes`, {
    code: 'out-of-range',
    reason: 'size-out-of-range',
    action: 'Give a size between 1 byte and 1 EiB, for example 10G.',
  });
}

export function sizeRequired(store: StoreName): StowageError {
  return new StowageError(`store '${store}' needs the size of the volume`, {
    code: 'invalid',
    reason: 'size-required',
    action: 'Give a size: --size 1G (to Docker: -o size=1G). The administrator can set defaultSize on the store.',
  });
}

export function cannotEnforce(store: StoreName, kinds: KindsWithOffers): StowageError {
  const instead = storesOffering('enforcement', kinds);
  return new StowageError(`store '${store}' cannot enforce the size of a volume`, {
    code: 'unsupported',
    reason: 'enforcement-unsupported',
    action: instead === '' ? 'Leave out enforce.' : `Use ${instead}; or leave out enforce.`,
  });
}

export function enforcementPermanent(volume: Volume): StowageError {
  return new StowageError(
    `the size of volume '${volume.store}/${volume.name}' is enforced; enforcement cannot be switched off`,
    {
      code: 'unsupported',
      reason: 'enforcement-permanent',
      action: `Give it a larger size: stowage volume expand ${volume.store}/${volume.name} SIZE; or copy the data to a new volume.`,
    },
  );
}

export function enforcedWithoutSize(what: string): StowageError {
  return new StowageError(`${what} has no size to enforce`, {
    code: 'invalid',
    reason: 'enforcement-without-size',
    action:
      'Give a new volume a size with --size 1G (to Docker: -o size=1G), an existing one with: stowage volume expand NAME 1G',
  });
}

export function volumeExists(volume: Volume): StowageError {
  return new StowageError(`there is a volume '${volume.store}/${volume.name}' already`, {
    code: 'exists',
    reason: 'volume-exists',
    action: `Choose another name, or use it as it is: stowage volume show ${volume.store}/${volume.name}`,
  });
}

export function requestDiffers(present: Volume): StowageError {
  return new StowageError(
    `volume '${present.store}/${present.name}' was created by the same request with other parameters`,
    {
      code: 'exists',
      reason: 'request-differs',
      action: 'Use a new request id (Idempotency-Key) for a different request.',
    },
  );
}

export function storeReadOnly(store: StoreName): StowageError {
  return new StowageError(`store '${store}' is read-only`, {
    code: 'denied',
    reason: 'store-read-only',
    action: 'Use another store, or ask the administrator to change the store.',
  });
}

export function accessUnsupported(store: Store, access: Access, kinds: KindsWithOffers): StowageError {
  const instead = storesOffering('blockVolumes', kinds);
  return new StowageError(`store '${store.name}' has no ${access} volumes`, {
    code: 'unsupported',
    reason: 'access-unsupported',
    action: `It offers: ${store.access.join(', ')}.${instead === '' ? '' : ` For block volumes use ${instead}.`}`,
  });
}

export function cannotShrink(volume: Volume, bytes: bigint): StowageError {
  const [now, wanted] = [formatSize(volume.bytes ?? 0n), formatSize(bytes)];
  return new StowageError(`volume '${volume.store}/${volume.name}' has ${now} and cannot shrink to ${wanted}`, {
    code: 'out-of-range',
    reason: 'shrink-refused',
    action: 'Give a larger size, or copy the data to a new, smaller volume.',
  });
}

export function noDefaultStore(): StowageError {
  return new StowageError('there is no default store', {
    code: 'invalid',
    reason: 'store-required',
    action: 'Name a store (--store NAME), or add one: stowage store add NAME URI',
  });
}

export function volumeNotEmpty(volume: Pick<Volume, 'store' | 'name'>): StowageError {
  return new StowageError(`volume '${volume.store}/${volume.name}' may not be empty`, {
    code: 'conflict',
    reason: 'volume-not-empty',
    action: `See what is in it. If it is not needed any more: stowage volume delete ${volume.store}/${volume.name}`,
  });
}
