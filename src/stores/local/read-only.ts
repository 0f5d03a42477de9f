import { createHash } from 'node:crypto';
import { lstat, readdir } from 'node:fs/promises';
import type { Scope } from '#base/log.ts';
import { StowageError } from '#core/errors.ts';
import type { Volume, VolumeId, VolumeName, VolumeRef } from '#core/model.ts';
import { isVolumeName, quoted } from '#core/names.ts';
import type { Store } from '#core/ports.ts';
import { notFound } from './errors.ts';
import { eachBounded, lstatIfThere } from './files.ts';
import type { Parts } from './parts.ts';
import type { Place } from './place.ts';

const looksAtOnce = 16;
const listing = 'listing volumes';

type Verbs = Exclude<
  keyof Store,
  'identity' | 'name' | 'kind' | 'reach' | 'enforcesCapacity' | 'readOnly' | 'shared' | 'access' | 'needsSize' | 'check'
>;

/** What lies in the directory are the volumes, recorded or not. Nothing is ever written: it may be on a read-only disk. */
export function createReadOnlyVerbs(parts: Parts): Pick<Store, Verbs> {
  const { place, layout, during, dataPath, volume } = parts;

  async function look(name: VolumeName): Promise<Volume | undefined> {
    const there = await lstatIfThere(dataPath(name));
    if (there === undefined || layout.wrongWith(there) !== undefined) return undefined;
    if (await layout.isStore(dataPath(name))) return undefined;
    const read = await parts.read(name).catch(() => undefined);
    if (read?.state === 'ok') return volume(read.meta);
    const { bytes, access } = await layout.appraise(dataPath(name));
    const id = derivedId(place.root, name);
    const requestId = `existing:${id}`;
    const createdAt = Math.floor((await lstat(dataPath(name))).birthtimeMs);
    const instance = place.context.instance;
    return { id, name, store: place.store, bytes, access, labels: {}, requestId, createdAt, revision: 1, instance };
  }

  const candidates = (scope: Scope): Promise<readonly VolumeName[]> =>
    during(listing, [], scope, async () => {
      const entries = await readdir(place.root, { withFileTypes: true });
      return entries.flatMap((entry) => {
        const rightKind = layout.kind === 'directory' ? entry.isDirectory() : entry.isFile();
        if (!rightKind || !entry.name.endsWith(layout.suffix)) return [];
        const name = entry.name.slice(0, entry.name.length - layout.suffix.length);
        return isVolumeName(name) ? [name] : [];
      });
    });

  const names: Store['names'] = async (scope) => {
    const all = await candidates(scope);
    const stores = new Set<VolumeName>();
    await eachBounded(all, looksAtOnce, async (name) => {
      if (await during(listing, [], scope, () => layout.isStore(dataPath(name)))) stores.add(name);
    });
    return all.filter((name) => !stores.has(name));
  };

  async function held(ref: VolumeRef): Promise<Volume> {
    const found = await look(ref.name);
    if (found?.id !== ref.id) throw notFound(ref.name, place.store);
    return found;
  }

  return {
    names,
    get: (name, scope) =>
      during(`reading volume ${quoted(name)}`, [], scope, async () => {
        const found = await look(name);
        return found === undefined ? undefined : { volume: found, condition: 'ok' as const };
      }),
    list: async function* (scope) {
      for (const name of await names(scope)) {
        const found = await during(`reading volume ${quoted(name)}`, [], scope, () => look(name));
        if (found !== undefined) yield found;
      }
    },
    source: (ref, scope) =>
      during(`locating volume ${quoted(ref.name)}`, [], scope, async () =>
        layout.source(dataPath(ref.name), (await held(ref)).access),
      ),
    usage: (ref, scope) =>
      during(
        `measuring volume ${quoted(ref.name)}`,
        [],
        scope,
        async () => {
          await held(ref);
          return layout.usage(dataPath(ref.name), scope);
        },
        'long',
      ),
    ...createRefusals(place),
    adoptable: async () => [],
    orphans: async () => [],
    sweep: async () => undefined,
    reclaim: async () => undefined,
    close: () => place.close(),
  };
}

type Changes = 'create' | 'delete' | 'release' | 'rename' | 'label' | 'expand' | 'adopt' | 'claim' | 'trash';

function createRefusals(place: Place): Pick<Store, Changes> {
  const refuse = (name: string, verb: string) => async (): Promise<never> => {
    throw new StowageError(`store ${place.store} is read-only: ${name} cannot be ${verb}`, {
      code: 'denied',
      reason: 'store-read-only',
      action: 'Use another store, or have an administrator remove readOnly from this one.',
    });
  };
  const refusing = (verb: string) => (volume: VolumeRef | VolumeName) =>
    refuse(`volume ${quoted(typeof volume === 'string' ? volume : volume.name)}`, verb)();

  return {
    create: refusing('created'),
    delete: refusing('deleted'),
    release: refusing('released'),
    rename: refusing('renamed'),
    label: refusing('labelled'),
    expand: refusing('expanded'),
    adopt: refusing('adopted'),
    claim: refusing('claimed'),
    trash: {
      put: refusing('deleted'),
      list: async () => [],
      restore: (_id, name) => refusing('restored')(name),
      purge: (id) => refuse(id, 'purged')(),
    },
  };
}

/** Stable without anything being stored: the same place and name give the same id. */
function derivedId(root: string, name: string): VolumeId {
  const hex = createHash('sha256').update(`local://${root}\n${name}`).digest('hex');
  const parts = [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20, 32)];
  return `sv1-${parts.join('-')}` as VolumeId;
}
