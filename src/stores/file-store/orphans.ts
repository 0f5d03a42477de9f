import { eachBounded } from '#base/each-bounded.ts';
import type { Scope } from '#base/log.ts';
import type { Orphan, VolumeName } from '#core/model.ts';
import { isVolumeName } from '#core/names.ts';
import type { Housekeeping } from '#core/ports.ts';
import { findAdoptable, holdsVolumes } from './adopt.ts';
import { listLeftovers } from './leftovers.ts';
import { inspect } from './read-verbs.ts';
import type { VerbContext } from './verb-context.ts';

const maxConcurrentReads = 16;

export function createOrphans(ctx: VerbContext): Housekeeping['orphans'] {
  const { storeRoot, runVerb } = ctx;
  const store = storeRoot.store;

  async function orphanOfRecord(name: VolumeName): Promise<Orphan | undefined> {
    const read = await ctx.read(name);
    // It was removed after the listing.
    if (read.state === 'absent') return undefined;
    if (read.state !== 'ok')
      return { store, kind: 'unreadable-record', name, detail: read.error.message, action: read.error.action };
    const { volume, condition, detail } = await inspect(ctx, read.meta);
    if (condition === 'missing') {
      return {
        store,
        kind: 'missing-data',
        name,
        detail: `the volume is recorded, but ${detail ?? 'its data are gone'}`,
        action: `Put the data back, or forget the volume with: stowage volume delete ${store}/${name}`,
      };
    }
    // On a shared store, volumes of other hosts are no orphans.
    if (volume.instance === storeRoot.context.instance || storeRoot.hostLocks !== undefined) return undefined;
    return {
      store,
      kind: 'unknown-volume',
      name,
      detail: `Stowage instance ${volume.instance} created it, not this one`,
      action: `Take it over with: stowage store adopt ${store} ${name}`,
    };
  }

  async function find(scope: Scope): Promise<readonly Orphan[]> {
    const found: Orphan[] = [];
    const entries = await storeRoot.files.names(storeRoot.root);
    const names = entries.filter((entry) => entry.endsWith('.meta')).map((entry) => entry.slice(0, -'.meta'.length));
    await eachBounded(names, maxConcurrentReads, async (name) => {
      scope.signal.throwIfAborted();
      // Under the lock, so that a volume that is being created does not look like one without data.
      const orphan = isVolumeName(name)
        ? await runVerb(`inspecting volume '${name}'`, [name], scope, () => orphanOfRecord(name))
        : badlyNamedRecord(store, name);
      if (orphan !== undefined) found.push(orphan);
    });
    for (const { name, reason } of await findAdoptable(ctx, scope)) {
      // Every ext4 file system has lost+found. Stowage itself makes the folders that hold volumes.
      if (name === 'lost+found' || reason === holdsVolumes) continue;
      found.push(reason === undefined ? unrecordedData(store, name) : stranger(store, name, reason));
    }
    for (const name of await listLeftovers(storeRoot)) found.push(leftover(store, storeRoot.ownPath('tmp', name)));
    for (const unremovable of ctx.undeletable) {
      const path = storeRoot.ownPath('deleting', unremovable.name);
      if ((await storeRoot.files.lstat(path)) !== undefined) found.push(undeletable(store, path, unremovable.why));
    }
    return found.sort((a, b) => (a.name < b.name ? -1 : a.name > b.name ? 1 : 0));
  }

  return (scope) => runVerb('looking for orphans', [], scope, () => find(scope), 'long');
}

function badlyNamedRecord(store: Orphan['store'], name: string): Orphan {
  return {
    store,
    kind: 'unreadable-record',
    name,
    detail: `${name}.meta looks like a record, but no volume can have that name`,
    action: 'Move the file away.',
  };
}

function unrecordedData(store: Orphan['store'], name: string): Orphan {
  return {
    store,
    kind: 'unrecorded-directory',
    name,
    detail: 'data without a record',
    action: `Make it a volume with: stowage store adopt ${store} ${name}; or move it away.`,
  };
}

function stranger(store: Orphan['store'], name: string, reason: string): Orphan {
  return {
    store,
    kind: 'stranger',
    name,
    detail: `it cannot be a volume: ${reason}`,
    action: 'Move it away, or fix that. Stowage does not touch it.',
  };
}

function leftover(store: Orphan['store'], path: string): Orphan {
  return {
    store,
    kind: 'leftover',
    name: path,
    detail: 'an interrupted operation left it behind',
    action: 'Nothing to do: it is removed when Stowage starts.',
  };
}

function undeletable(store: Orphan['store'], path: string, why: string): Orphan {
  return {
    store,
    kind: 'leftover',
    name: path,
    detail: `the data of a deleted volume could not be removed: ${why}`,
    action: `Find what protects it (lsattr -aR ${path}; findmnt -R; its owner) and undo that: Stowage removes it with the next deletion, or when it starts.`,
  };
}
