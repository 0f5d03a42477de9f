import { StowageError } from '#core/errors.ts';
import { quoted } from '#core/names.ts';

export function differentStore(root: string, store: string, why: string): StowageError {
  return new StowageError(`${root} is not the expected store: ${why}`, {
    code: 'unavailable',
    reason: 'store-identity',
    action: `Mount the disk that holds the store. To make this directory the store: stowage store adopt ${store}`,
  });
}

export function notFound(name: string, store: string): StowageError {
  return new StowageError(`there is no volume ${quoted(name)} in store ${store}`, {
    code: 'not-found',
    reason: 'volume-unknown',
    action: `List the volumes with: stowage volume list --store ${store}`,
  });
}

export function nameTaken(name: string, store: string): StowageError {
  return new StowageError(`store ${store} already has a volume ${quoted(name)}`, {
    code: 'exists',
    reason: 'volume-exists',
    action: `Choose another name, or look at the existing one with: stowage volume show ${store}/${name}`,
  });
}

export function dataUnrecorded(name: string, path: string, store: string): StowageError {
  return new StowageError(`${path} already exists but belongs to no volume`, {
    code: 'exists',
    reason: 'directory-unrecorded',
    action: `Make it a volume as it is with: stowage store adopt ${store} ${name}; or move it away; or choose another name.`,
  });
}

export function dataUnusable(name: string, path: string, found: string): StowageError {
  return new StowageError(`the data of volume ${quoted(name)} cannot be used: ${path} ${found}`, {
    code: 'conflict',
    reason: 'volume-data-unusable',
    action: `Put the volume's data back at ${path}, or delete the volume.`,
  });
}

/** Another host has reserved the name and has not written its record yet. */
export function beingCreated(name: string, store: string): StowageError {
  return new StowageError(`another Stowage instance is creating volume ${quoted(name)} in store ${store}`, {
    code: 'busy',
    reason: 'volume-being-made',
    action: 'Try again in a moment, or choose another name.',
  });
}
