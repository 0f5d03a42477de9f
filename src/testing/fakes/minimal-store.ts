import { existsSync, mkdirSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { isDeepStrictEqual } from 'node:util';
import type { Scope } from '#base/log.ts';
import { type CodeAndReason, StowageError, stowageError } from '#core/errors.ts';
import type { NodeName, StoreConfig, Volume, VolumeName, VolumeRef, VolumeSpec } from '#core/model.ts';
import type { Store, StoreKind } from '#core/ports.ts';

export interface MinimalStoreKind extends StoreKind {
  /** The volumes of the store at that path. They outlive the store object, like volumes on a server. */
  volumesAt(root: string): Map<VolumeName, Volume>;
}

/**
 * A store with the required members only: `minimal:///folder`. Each volume is a folder below that path. Records are in
 * memory. The store cannot tell whether a volume is empty.
 */
export function createMinimalStoreKind(): MinimalStoreKind {
  const places = new Map<string, Map<VolumeName, Volume>>();
  const volumesAt = (root: string): Map<VolumeName, Volume> => {
    const volumes = places.get(root) ?? new Map<VolumeName, Volume>();
    places.set(root, volumes);
    return volumes;
  };
  return {
    scheme: 'minimal',
    placement: 'node',
    options: {},
    clientName: () => 'bind',
    volumesAt,
    open: async (config, { readOnly }, { node }) => {
      const { pathname: root } = new URL(config.uri);
      return createMinimalStore({ config, root, readOnly, node, volumes: volumesAt(root) });
    },
  };
}

interface MinimalParts {
  readonly config: StoreConfig;
  readonly root: string;
  readonly readOnly: boolean;
  readonly node: NodeName;
  readonly volumes: Map<VolumeName, Volume>;
}

function createMinimalStore({ config, root, readOnly, node, volumes }: MinimalParts): Store {
  const pathOf = ({ id }: Pick<Volume, 'id'>): string => join(root, id);

  function held({ id, name }: VolumeRef): Volume {
    const volume = volumes.get(name);
    if (volume?.id !== id)
      throw failure({ code: 'not-found', reason: 'volume-unknown' }, `there is no volume '${name}'`);
    return volume;
  }

  async function answer<T>({ signal }: Scope, work: () => T): Promise<T> {
    try {
      signal.throwIfAborted();
      return work();
    } catch (thrown) {
      throw stowageError(thrown);
    }
  }

  const change = <T>(scope: Scope, work: () => T): Promise<T> =>
    answer(scope, () => {
      if (readOnly) throw failure({ code: 'denied', reason: 'store-read-only' }, `store '${config.name}' is read-only`);
      return work();
    });

  function create({ enforce = false, ...want }: VolumeSpec): Volume {
    const present = volumes.get(want.name);
    if (present === undefined) {
      const made = { ...want, enforce, store: config.name, revision: 1 };
      mkdirSync(pathOf(made));
      volumes.set(made.name, made);
      return made;
    }
    if (present.requestId !== want.requestId)
      throw failure({ code: 'exists', reason: 'volume-exists' }, `there is a volume '${want.name}' already`);
    const wish = ({ bytes, access, labels }: Pick<Volume, 'bytes' | 'access' | 'labels'>, held: boolean): unknown[] => [
      bytes,
      access,
      labels,
      held,
    ];
    if (!isDeepStrictEqual(wish(present, present.enforce), wish(want, enforce)))
      throw failure(
        { code: 'exists', reason: 'request-differs' },
        `volume '${want.name}' was made with other parameters`,
      );
    return present;
  }

  return {
    name: config.name,
    access: ['filesystem'],
    sources: ['directory'],
    create: (want, scope) => change(scope, () => create(want)),
    get: (name, scope) =>
      answer(scope, () => {
        const volume = volumes.get(name);
        if (volume === undefined) return undefined;
        if (existsSync(pathOf(volume))) return { volume, condition: 'ok' as const };
        return { volume, condition: 'missing' as const, detail: `there is no ${pathOf(volume)}` };
      }),
    list: async function* () {
      yield* Array.from(volumes.values());
    },
    delete: (ref, scope, { onlyIfEmpty = false } = {}) =>
      change(scope, () => {
        const volume = volumes.get(ref.name);
        if (volume?.id !== ref.id) return;
        if (onlyIfEmpty && existsSync(pathOf(volume)))
          throw failure({ code: 'conflict', reason: 'volume-not-empty' }, `volume '${ref.name}' may not be empty`);
        rmSync(pathOf(volume), { recursive: true, force: true });
        volumes.delete(ref.name);
      }),
    label: (ref, labels, scope) =>
      change(scope, () => {
        const volume = held(ref);
        if (isDeepStrictEqual(volume.labels, labels)) return volume;
        const labelled = { ...volume, labels, revision: volume.revision + 1 };
        volumes.set(ref.name, labelled);
        return labelled;
      }),
    source: (ref, scope) =>
      answer(scope, () => {
        const path = pathOf(held(ref));
        if (!existsSync(path))
          throw failure({ code: 'conflict', reason: 'volume-data-unusable' }, `there is no ${path}`);
        return { kind: 'directory' as const, node, path };
      }),
    check: (scope) =>
      answer(scope, () => {
        const isThere = existsSync(root);
        const steps = [{ step: 'directory', ok: isThere, detail: root }];
        return { ok: isThere, steps, totalBytes: 1n, freeBytes: undefined };
      }),
    close: async () => undefined,
  };
}

const failure = (codeAndReason: CodeAndReason, message: string): StowageError =>
  new StowageError(message, { ...codeAndReason, action: 'Look at the test.' });
