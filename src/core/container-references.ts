import type { Clock } from '#base/clock.ts';
import type { Log, Scope } from '#base/log.ts';
import { patiently } from '#base/wait.ts';
import {
  type ContainerEngine,
  type EngineKind,
  type PluginName,
  pluginNames,
  type Reference,
  type SeenContainer,
} from './containers.ts';
import { stowageError } from './errors.ts';
import type { Volume, VolumeId } from './model.ts';
import { qualified } from './names.ts';
import type { PluginNames } from './plugin-names.ts';
import type { Records } from './ports.ts';

/**
 * Which containers of this node name a volume, running or stopped. The engines are asked; what they last said is on record, for
 * when they do not answer, and for the stores, which are told who uses what.
 */
export interface ContainerReferences extends AsyncDisposable {
  /** Asked now. Of a volume that is gone, its id is all there is. */
  of(volume: Volume | VolumeId, scope: Scope): Promise<ReferenceReport>;
  /** As they were last seen. */
  known(volume: VolumeId): readonly Reference[];
  /** When its engine was last looked at, a container had it mounted. */
  isLive(volume: VolumeId): boolean;
  /** Looks at the engine, and tells of every volume whose containers are not the same as before. */
  refresh(engine: ContainerEngine, scope: Scope): Promise<void>;
  /** When an engine of that kind was last found, by this process's clock: what it forgot it forgot before. Undefined: never. */
  foundAt(kind: EngineKind): number | undefined;
  /** At all of them; gives those that answered. */
  refreshAll(scope: Scope): Promise<readonly ContainerEngine[]>;
  /** From now on, and whenever containers change. */
  follow(scope: Scope): void;
}

export interface ReferenceReport {
  readonly references: readonly Reference[];
  /** The kinds of engines that answered, each of them. What others say of these is as it was. */
  readonly answered: ReadonlySet<EngineKind>;
  /** Those that are followed, and gave no answer that can be used. */
  readonly silent: readonly SilentEngine[];
}

export interface SilentEngine {
  readonly kind: EngineKind;
  readonly why: string;
}

export interface ContainerReferencesParts {
  readonly records: Records;
  readonly engines: readonly ContainerEngine[];
  readonly names: Pick<PluginNames, 'resolve'>;
  readonly clock: Clock;
  readonly log: Log;
  /** The containers that name it, or whether they run, are not those that did. */
  readonly changed: (volumes: readonly VolumeId[], engine: ContainerEngine) => void;
}

const askMs = 5_000;
const unending = new AbortController().signal;
/** A store that is silent must not make the engine look so. */
const resolveMs = 1_000;

export function createContainerReferences(parts: ContainerReferencesParts): ContainerReferences {
  const { records, engines, names, clock, log } = parts;
  const following = new AsyncDisposableStack();
  /** By engine, the containers that have their volumes mounted. */
  const live = new Map<string, ReadonlySet<string>>();
  /** Named by containers, and nothing is known by that name yet: as engine and name, with who names it. */
  const unresolved = new Map<string, readonly { readonly container: SeenContainer; readonly name: string }[]>();

  async function resolved(engine: ContainerEngine, seen: readonly SeenContainer[], scope: Scope): Promise<Reference[]> {
    const found: Reference[] = [];
    const missing: { container: SeenContainer; name: string }[] = [];
    // For all of them together.
    using limit = clock.deadline(resolveMs, scope.signal);
    const within = { ...scope, signal: limit.signal };
    for (const container of seen) {
      for (const { plugin, name } of container.volumes) {
        const ids = plugin === undefined ? askedFor(name) : await meant(plugin, name, within);
        scope.signal.throwIfAborted();
        if (ids.length === 0) missing.push({ container, name });
        for (const volumeId of ids) found.push({ ...of(engine, container), volumeId });
      }
    }
    unresolved.set(engine.name, missing);
    live.set(engine.name, new Set(seen.filter((one) => one.live).map(({ id }) => id)));
    return found;
  }

  async function meant(plugin: PluginName, name: string, scope: Scope): Promise<readonly VolumeId[]> {
    const known = records.engineNames.get(plugin, name);
    if (known !== undefined) return [known];
    if (scope.signal.aborted) return [];
    return await names.resolve(plugin, name, scope).then(
      ({ id }) => [id],
      () => [],
    );
  }

  /** Of a plugin that may be ours under another name, no store is asked: what it was asked for by an engine is on record. */
  const askedFor = (name: string): readonly VolumeId[] =>
    pluginNames.flatMap((plugin) => records.engineNames.get(plugin, name) ?? []);

  const found = new Map<EngineKind, number>();
  const looks = new Map<ContainerEngine, () => Promise<void>>();

  /** Of two lists the older must not replace the younger: one after the other, and who waits for the next shares it. */
  const look: ContainerReferences['refresh'] = async (engine, scope) => {
    const next = looks.get(engine) ?? inTurn(() => lookNow(engine, { signal: unending, log }));
    looks.set(engine, next);
    await patiently(next(), scope.signal, clock);
  };

  async function lookNow(engine: ContainerEngine, scope: Scope): Promise<void> {
    using limit = clock.deadline(askMs, scope.signal);
    const within = { ...scope, signal: limit.signal };
    const now = await resolved(engine, await engine.containers(within), within);
    const before = records.references.list().filter((one) => one.engine === engine.name);
    records.references.replace(engine.name, now);
    const different = differing(before, now);
    if (different.length > 0) parts.changed(different, engine);
  }

  const lookEach = (scope: Scope): Promise<readonly { engine: ContainerEngine; why: string | undefined }[]> =>
    Promise.all(
      engines.map(async (engine) => {
        try {
          await look(engine, scope);
          return { engine, why: undefined };
        } catch (thrown) {
          scope.signal.throwIfAborted();
          const { message: why, action } = stowageError(thrown);
          log.warn('a container engine did not answer', { engine: engine.name, why, action });
          return { engine, why };
        }
      }),
    );

  return {
    refresh: look,
    refreshAll: async (scope) =>
      (await lookEach(scope)).flatMap(({ engine, why }) => (why === undefined ? [engine] : [])),
    known: (volume) => records.references.of(volume),
    isLive: (volume) =>
      records.references
        .of(volume)
        .some(({ engine, container, running }) => live.get(engine)?.has(container) ?? running),
    foundAt: (kind) => found.get(kind),
    of: async (volume, scope) => {
      const silent = (await lookEach(scope)).flatMap(({ engine: { kind }, why }) =>
        why === undefined ? [] : [{ kind, why }],
      );
      const isSilent = (kind: EngineKind): boolean => silent.some((one) => one.kind === kind);
      const id = typeof volume === 'string' ? volume : volume.id;
      // A name that could not be looked up may well be this volume's.
      const called: readonly string[] =
        typeof volume === 'string' ? [] : [volume.name, qualified(volume.store, volume.name)];
      const perhaps = engines.flatMap((engine) =>
        (unresolved.get(engine.name) ?? [])
          .filter(({ name }) => called.includes(name))
          .map(({ container }) => ({ ...of(engine, container), volumeId: id })),
      );
      return {
        references: [...records.references.of(id), ...perhaps],
        answered: new Set(engines.map(({ kind }) => kind).filter((kind) => !isSilent(kind))),
        silent,
      };
    },
    follow: (scope) => {
      for (const engine of engines)
        following.use(
          engine.follow(createLooking(engine, look, scope, log), () => found.set(engine.kind, clock.elapsed())),
        );
    },
    [Symbol.asyncDispose]: () => following.disposeAsync(),
  };
}

/** Whoever asks while one runs gets the next, which begins when that has ended: it sees what was so when they asked. */
function inTurn(work: () => Promise<void>): () => Promise<void> {
  let running: Promise<void> | undefined;
  let next: Promise<void> | undefined;
  const begin = (): Promise<void> => {
    const begun = work().finally(() => {
      if (running === begun) running = undefined;
    });
    running = begun;
    return begun;
  };
  return () => {
    if (running === undefined) return begin();
    next ??= running
      .catch(() => undefined)
      .then(() => {
        next = undefined;
        return begin();
      });
    return next;
  };
}

const of = ({ name: engine }: ContainerEngine, { id, name, running }: SeenContainer): Omit<Reference, 'volumeId'> => ({
  engine,
  container: id,
  name,
  running,
});

/** However many events there are, one look at a time; what happens during one is seen by the next. */
function createLooking(
  engine: ContainerEngine,
  look: ContainerReferences['refresh'],
  scope: Scope,
  log: Log,
): () => void {
  let isLooking = false;
  let isDue = false;
  const run = async (): Promise<void> => {
    isLooking = true;
    while (isDue && !scope.signal.aborted) {
      isDue = false;
      await look(engine, scope).catch((thrown: unknown) => {
        // Its next event, or the look that is taken now and then, makes up for it.
        log.info('a container engine did not answer', { engine: engine.name, why: stowageError(thrown).message });
      });
    }
    isLooking = false;
  };
  return () => {
    isDue = true;
    if (!isLooking) void run();
  };
}

function differing(before: readonly Reference[], now: readonly Reference[]): readonly VolumeId[] {
  const keyOf = ({ container, name, volumeId, running }: Reference): string =>
    JSON.stringify([container, name, volumeId, running]);
  const [old, fresh] = [new Map(before.map((one) => [keyOf(one), one])), new Map(now.map((one) => [keyOf(one), one]))];
  const gone = [...old].filter(([key]) => !fresh.has(key));
  const come = [...fresh].filter(([key]) => !old.has(key));
  return [...new Set([...gone, ...come].map(([, { volumeId }]) => volumeId))];
}
