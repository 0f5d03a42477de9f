import { createHash } from 'node:crypto';
import { eachBounded } from '#base/each-bounded.ts';
import type { Scope } from '#base/log.ts';
import { StowageError } from '#core/errors.ts';
import type { Volume, VolumeId, VolumeName, VolumeRef } from '#core/model.ts';
import { isVolumeName, quoted } from '#core/names.ts';
import { notFound } from './errors.ts';
import { isParentFolder } from './parent-folders.ts';
import { pathIfUnusual, recordedNames } from './read-verbs.ts';
import type { StoreRoot } from './store-root.ts';
import type { VerbContext } from './verb-context.ts';
import type { FileStore } from './verbs.ts';

const maxConcurrentReads = 16;
const listing = 'listing volumes';

type ReadOnlyVerb = Exclude<
  keyof FileStore,
  'identity' | 'name' | 'changedByOthers' | 'access' | 'sources' | 'check' | 'room'
>;

interface FoundVolume {
  readonly path: string;
  readonly volume: Volume;
}

/** All data in the directory are volumes, with or without a record. Never writes: the store may be on a read-only disk. */
export function createReadOnlyVerbs(ctx: VerbContext): Pick<FileStore, ReadOnlyVerb> {
  const { storeRoot, layout, runVerb, dataPath, volume } = ctx;
  const { files } = storeRoot;

  async function findVolume(name: VolumeName): Promise<FoundVolume | undefined> {
    const read = await ctx.read(name).catch(() => undefined);
    const recorded = read?.state === 'ok' ? read.meta : undefined;
    const path = dataPath(recorded ?? { name });
    const fileInfo = await files.lstat(path);
    if (fileInfo === undefined || layout.unsuitableBecause(fileInfo) !== undefined || (await holdsOtherVolumes(path)))
      return undefined;
    if (recorded !== undefined) return { path, volume: volume(recorded) };
    const { bytes, access } = await layout.inspectData(path);
    const id = derivedId(storeRoot.baseUri, name);
    const requestId = `existing:${id}`;
    const createdAt = Math.floor(fileInfo.createdAt);
    const instance = storeRoot.context.instance;
    const fields = {
      id,
      name,
      store: storeRoot.store,
      bytes,
      enforce: false,
      access,
      labels: {},
      requestId,
      createdAt,
      instance,
    };
    return { path, volume: { ...fields, revision: 1 } };
  }

  const holdsOtherVolumes = async (path: string): Promise<boolean> =>
    (await layout.isStore(path)) || (await isParentFolder(ctx, path));

  const candidates = (scope: Scope): Promise<{ readonly data: VolumeName[]; readonly withoutData: VolumeName[] }> =>
    runVerb(listing, [], scope, async () => {
      const entries = await files.list(storeRoot.root);
      const data = entries.flatMap(({ name: file, type }) => {
        if (type !== (layout.kind === 'directory' ? 'directory' : 'file') || !file.endsWith(layout.suffix)) return [];
        const name = file.slice(0, file.length - layout.suffix.length);
        return isVolumeName(name) ? [name] : [];
      });
      // A record without data beside it may point to data in a folder.
      const namesWithData = new Set(data);
      const withoutData = recordedNames(entries.map(({ name }) => name)).filter((name) => !namesWithData.has(name));
      return { data, withoutData };
    });

  const names: FileStore['names'] = async (scope) => {
    const { data, withoutData } = await candidates(scope);
    const visible: VolumeName[] = [];
    await eachBounded(data, maxConcurrentReads, async (name) => {
      if (!(await runVerb(listing, [], scope, () => holdsOtherVolumes(dataPath({ name }))))) visible.push(name);
    });
    await eachBounded(withoutData, maxConcurrentReads, async (name) => {
      if ((await runVerb(listing, [], scope, () => findVolume(name))) !== undefined) visible.push(name);
    });
    return visible;
  };

  async function findOrThrow(ref: VolumeRef): Promise<FoundVolume> {
    const found = await findVolume(ref.name);
    if (found?.volume.id !== ref.id) throw notFound(ref.name, storeRoot.store);
    return found;
  }

  return {
    names,
    get: (name, scope) =>
      runVerb(`reading volume ${quoted(name)}`, [], scope, async () => {
        const found = await findVolume(name);
        if (found === undefined) return undefined;
        return { volume: found.volume, condition: 'ok' as const, ...pathIfUnusual(ctx, found.path, name) };
      }),
    list: async function* (scope) {
      for (const name of await names(scope)) {
        const found = await runVerb(`reading volume ${quoted(name)}`, [], scope, () => findVolume(name));
        if (found !== undefined) yield found.volume;
      }
    },
    source: (ref, scope) =>
      runVerb(`locating volume ${quoted(ref.name)}`, [], scope, async () => {
        const { path, volume: found } = await findOrThrow(ref);
        return layout.source(path, found);
      }),
    usage: (ref, scope) =>
      runVerb(
        `measuring volume ${quoted(ref.name)}`,
        [],
        scope,
        async () => {
          const { path } = await findOrThrow(ref);
          return layout.usage(path, {}, scope);
        },
        'long',
      ),
    ...createRefusals(storeRoot),
    housekeeping: {
      sweep: async () => undefined,
      orphans: async () => [],
      reclaim: async () => undefined,
    },
    close: () => storeRoot.close(),
  };
}

type ChangeVerb = 'create' | 'delete' | 'rename' | 'label' | 'expand' | 'trash' | 'adoption';

function createRefusals(storeRoot: StoreRoot): Pick<FileStore, ChangeVerb> {
  const refuse = (name: string, verb: string) => async (): Promise<never> => {
    throw new StowageError(`store ${storeRoot.store} is read-only: ${name} cannot be ${verb}`, {
      code: 'denied',
      reason: 'store-read-only',
      action: 'Use another store, or have an administrator remove readOnly from this one.',
    });
  };
  const refuseVolume = (verb: string) => (volume: VolumeRef | VolumeName) =>
    refuse(`volume ${quoted(typeof volume === 'string' ? volume : volume.name)}`, verb)();

  return {
    create: refuseVolume('created'),
    delete: refuseVolume('deleted'),
    rename: refuseVolume('renamed'),
    label: refuseVolume('labelled'),
    expand: refuseVolume('expanded'),
    trash: {
      put: refuseVolume('deleted'),
      list: async () => [],
      restore: (_id, name) => refuseVolume('restored')(name),
      purge: (id) => refuse(id, 'purged')(),
      listExpired: async () => [],
      purgeExpired: async () => false,
    },
    adoption: {
      adoptable: async () => [],
      adopt: refuseVolume('adopted'),
      claim: refuseVolume('claimed'),
      release: refuseVolume('released'),
    },
  };
}

/** Stable without storing anything: the same store URI and name give the same id. */
function derivedId(base: string, name: string): VolumeId {
  const hex = createHash('sha256').update(`${base}\n${name}`).digest('hex');
  const groups = [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20, 32)];
  return `sv1-${groups.join('-')}` as VolumeId;
}
