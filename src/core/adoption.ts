import type { Scope } from '#base/log.ts';
import { errorCodes } from './error-codes.ts';
import { stowageError } from './errors.ts';
import { adoptKey, nameKey } from './lock-keys.ts';
import type { Orphan, Volume, VolumeName, VolumeSpec } from './model.ts';
import { isVolumeName, newVolumeId } from './names.ts';
import type { Work } from './operation-work.ts';
import type { Call } from './operations.ts';
import type { Store } from './ports.ts';
import { facetOf } from './store-facets.ts';
import { storeReadOnly } from './volume-errors.ts';
import type { Step } from './volume-steps.ts';
import type { VolumeParts } from './volumes.ts';

export interface Adoption {
  readonly adopted: readonly AdoptedVolume[];
  readonly skipped: readonly { readonly name: string; readonly reason: string }[];
}

interface AdoptedVolume {
  readonly name: string;
  readonly id: string | undefined;
  readonly how: 'record' | 'data';
}

export interface AdoptOptions {
  /** Only report what would be adopted. */
  readonly dryRun: boolean;
  /** Also adopt data that has no record. */
  readonly data: boolean;
  /** Undefined: adopt all volumes. */
  readonly names?: readonly string[] | undefined;
}

export interface Adoptions {
  /** Rebuilds the catalogue from the store's records, and turns existing data into volumes without copying it. */
  adopt(store: string, options: AdoptOptions, call: Call): Promise<Adoption>;
  orphans(store: string, scope: Scope): Promise<readonly Orphan[]>;
  readonly steps: Readonly<Record<string, Step>>;
}

interface AdoptSelection {
  readonly dryRun: boolean;
  readonly isWanted: (name: string) => boolean;
  /** The caller listed the names. */
  readonly isByName: boolean;
}

const notAdoptableReason = 'it is already a volume, or nothing has this name';
/** Adoption can take hours: directories may have millions of files, and each image is inspected. */
export const adoptDeadlineMs = 24 * 3_600_000;

export function createAdoptions(parts: VolumeParts): Adoptions {
  const { stores, operations } = parts;
  const adoptRecorded = createAdoptRecorded(parts);
  const adoptData = createAdoptData(parts);

  const adoptStep: Step<Adoption> = async (store, _config, params, work) => {
    const dryRun = params['dryRun'] === true;
    const names = params['names'] as readonly string[] | undefined;
    const isByName = names !== undefined;
    const selection: AdoptSelection = { dryRun, isByName, isWanted: (name) => !isByName || names.includes(name) };
    const recorded = await adoptRecorded(store, selection, work);
    const data = params['data'] === true ? await adoptData(store, selection, work) : { adopted: [], skipped: [] };
    const adopted = [...recorded.adopted, ...data.adopted];
    const skipped = [...recorded.skipped, ...data.skipped];
    const handledNames = new Set([...adopted, ...skipped].map(({ name }) => name));
    const absent = (names ?? [])
      .filter((name) => !handledNames.has(name))
      .map((name) => ({ name, reason: notAdoptableReason }));
    return { value: { adopted, skipped: [...skipped, ...absent] } };
  };

  return {
    adopt: async (name, options, call) => {
      // Adopting from this directory confirms that it is the store, even if its identity differs.
      if (!options.dryRun) await stores.accept(name, call);
      return await stores.use(name, async (store, config) => {
        if (config.policy.readOnly) throw storeReadOnly(store.name);
        facetOf(store, 'adoption');
        using _ = await operations.lock([adoptKey(store.name)], call.signal);
        const params = { ...options };
        const about = { kind: 'store.adopt', store: store.name, subject: store.name };
        const intent = { ...about, params, deadlineMs: adoptDeadlineMs };
        return await operations.run(intent, call, (work) => adoptStep(store, config, params, work));
      });
    },
    orphans: (name, scope) => stores.use(name, async (store) => (await store.housekeeping?.orphans(scope)) ?? []),
    steps: { 'store.adopt': adoptStep },
  };
}

function createVolumeRecorder({ records, events }: VolumeParts): (volume: Volume) => void {
  return (volume) => {
    records.volumes.put(volume);
    events.publish('volume.created', volume.id, volume.store, { volume });
  };
}

function createAdoptRecorded(
  parts: VolumeParts,
): (store: Store, selection: AdoptSelection, scope: Scope) => Promise<Adoption> {
  const { records, stores, operations, instance } = parts;
  const recordVolume = createVolumeRecorder(parts);

  function isKnown(volume: Volume): boolean {
    const known = records.volumes.byId(volume.id);
    return known?.name === volume.name && known.store === volume.store && volume.instance === instance;
  }

  /** A copy of a store has the same volume ids as the original. The volumes must stay with the original. */
  function originalVolume(volume: Volume): string | undefined {
    const known = records.volumes.byId(volume.id);
    if (known === undefined || known.store === volume.store) return undefined;
    const isStore = stores.list().some((view) => view.config.name === known.store);
    return isStore ? `${known.store}/${known.name}` : undefined;
  }

  /** Locks the name, so a create or delete that is in progress finishes first. */
  async function adoptRecord(store: Store, listedVolume: Volume, scope: Scope): Promise<Volume | undefined> {
    using _ = await operations.lock([nameKey(store.name, listedVolume.name)], scope.signal);
    const volume = (await store.get(listedVolume.name, scope))?.volume;
    if (volume === undefined || isKnown(volume)) return undefined;
    const claimed =
      volume.instance === instance ? volume : await facetOf(store, 'adoption').claim(volume, instance, scope);
    recordVolume(claimed);
    return claimed;
  }

  return async (store, { dryRun, isWanted, isByName }, scope) => {
    const adopted: AdoptedVolume[] = [];
    const skipped: Adoption['skipped'][number][] = [];
    for await (const listedVolume of store.list(scope)) {
      if (isKnown(listedVolume) || !isWanted(listedVolume.name)) continue;
      // Volumes of a shared store are visible without adoption. Only a person knows which of them belong to a host that is gone.
      if (store.changedByOthers !== undefined && !isByName) continue;
      const original = originalVolume(listedVolume);
      if (original !== undefined) {
        skipped.push({
          name: listedVolume.name,
          reason: 'it is a copy of a volume of another store, and has the same id',
        });
        continue;
      }
      try {
        const volume = dryRun ? listedVolume : await adoptRecord(store, listedVolume, scope);
        if (volume !== undefined) adopted.push({ name: volume.name, id: volume.id, how: 'record' });
      } catch (thrown) {
        if (!isPending(thrown)) throw thrown;
        skipped.push({ name: listedVolume.name, reason: stowageError(thrown).message });
      }
    }
    return { adopted, skipped };
  };
}

/** An interrupted operation on this volume cannot finish yet. It must not block the adoption of other volumes. */
const isPending = (thrown: unknown): boolean => stowageError(thrown).reason === 'operation-pending';

function createAdoptData(
  parts: VolumeParts,
): (store: Store, selection: AdoptSelection, work: Work) => Promise<Adoption> {
  const { operations, clock, instance } = parts;
  const recordVolume = createVolumeRecorder(parts);

  async function adoptDirectory(store: Store, name: VolumeName, work: Work): Promise<Volume> {
    using _ = await operations.lock([nameKey(store.name, name)], work.signal);
    const spec: VolumeSpec = {
      id: newVolumeId(),
      name,
      bytes: undefined,
      enforce: false,
      access: 'filesystem',
      labels: {},
      requestId: work.operation,
      createdAt: clock.now(),
      instance,
    };
    const volume = await facetOf(store, 'adoption').adopt(name, spec, work);
    recordVolume(volume);
    return volume;
  }

  return async (store, { dryRun, isWanted }, work) => {
    const adopted: AdoptedVolume[] = [];
    const skipped: Adoption['skipped'][number][] = [];
    const candidates = (await facetOf(store, 'adoption').adoptable(work)).filter(({ name }) => isWanted(name));
    for (const [index, { name, reason }] of candidates.entries()) {
      work.progress({ done: index, total: candidates.length, unit: 'directories' });
      if (reason !== undefined || !isVolumeName(name)) {
        skipped.push({ name, reason: reason ?? 'the name cannot be a volume name' });
        continue;
      }
      try {
        const volume = dryRun ? undefined : await adoptDirectory(store, name, work);
        adopted.push({ name, id: volume?.id, how: 'data' });
      } catch (thrown) {
        // A directory that changed in the meantime is skipped; a store that does not answer fails the adoption.
        const { code, message } = stowageError(thrown);
        const isFatal = code === 'internal' || errorCodes[code].retry;
        if (work.signal.aborted || (isFatal && !isPending(thrown))) throw thrown;
        skipped.push({ name, reason: message });
      }
    }
    return { adopted, skipped };
  };
}
