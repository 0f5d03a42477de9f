import type { Clock } from '#base/clock.ts';
import type { Log, Scope } from '#base/log.ts';
import type { ContainerEngine, EngineKind, Reference, SeenContainer } from './containers.ts';
import type { EngineNames } from './engine-names.ts';
import { stowageError } from './errors.ts';
import type { Volume, VolumeId } from './model.ts';
import { qualified } from './names.ts';
import type { Records } from './ports.ts';

/**
 * Which containers of this node name a volume, running or stopped. The engines are asked; what they last said is on record, for
 * when they do not answer, and for the stores, which are told who uses what.
 */
export interface References extends AsyncDisposable {
  /** Asked now. */
  of(volume: Volume, scope: Scope): Promise<Referring>;
  /** As they were last seen. */
  known(volume: VolumeId): readonly Reference[];
  /** Looks at the engine, and tells of every volume whose containers are not the same as before. */
  look(engine: ContainerEngine, scope: Scope): Promise<void>;
  /** At all of them; gives those that answered. */
  lookAll(scope: Scope): Promise<readonly ContainerEngine[]>;
  /** From now on, and whenever containers change. */
  follow(scope: Scope): void;
}

export interface Referring {
  readonly references: readonly Reference[];
  /** The kinds of engines that answered, each of them. What others say of these is as it was. */
  readonly answered: ReadonlySet<EngineKind>;
}

export interface ReferencesParts {
  readonly records: Records;
  readonly engines: readonly ContainerEngine[];
  readonly names: Pick<EngineNames, 'resolve'>;
  readonly clock: Clock;
  readonly log: Log;
  /** The containers that name it, or whether they run, are not those that did. */
  readonly changed: (volumes: readonly VolumeId[], engine: ContainerEngine) => void;
}

const askMs = 5_000;

export function createReferences(parts: ReferencesParts): References {
  const { records, engines, names, clock, log } = parts;
  const following = new AsyncDisposableStack();
  /** Named by containers, and nothing is known by that name yet: as engine and name, with who names it. */
  const unresolved = new Map<string, readonly { readonly container: SeenContainer; readonly name: string }[]>();

  async function resolved(engine: ContainerEngine, seen: readonly SeenContainer[], scope: Scope): Promise<Reference[]> {
    const found: Reference[] = [];
    const missing: { container: SeenContainer; name: string }[] = [];
    for (const container of seen) {
      for (const { plugin, name } of container.volumes) {
        const volumeId =
          records.engineNames.get(plugin, name) ??
          (await names.resolve(plugin, name, scope).then(
            ({ id }) => id,
            () => undefined,
          ));
        scope.signal.throwIfAborted();
        if (volumeId === undefined) missing.push({ container, name });
        else found.push({ ...of(engine, container), volumeId });
      }
    }
    unresolved.set(engine.name, missing);
    return found;
  }

  async function look(engine: ContainerEngine, scope: Scope): Promise<void> {
    using limit = clock.deadline(askMs, scope.signal);
    const within = { ...scope, signal: limit.signal };
    const now = await resolved(engine, await engine.containers(within), within);
    const before = records.references.list().filter((one) => one.engine === engine.name);
    records.references.replace(engine.name, now);
    const different = differing(before, now);
    if (different.length > 0) parts.changed(different, engine);
  }

  const lookAll: References['lookAll'] = async (scope) => {
    const answered = engines.map(async (engine) => {
      try {
        await look(engine, scope);
        return [engine];
      } catch (thrown) {
        scope.signal.throwIfAborted();
        log.warn('a container engine did not answer', { engine: engine.name, why: stowageError(thrown).message });
        return [];
      }
    });
    return (await Promise.all(answered)).flat();
  };

  return {
    ...{ look, lookAll },
    known: (volume) => records.references.of(volume),
    of: async (volume, scope) => {
      const answering = await lookAll(scope);
      const silent = new Set(engines.filter((engine) => !answering.includes(engine)).map(({ kind }) => kind));
      // A name that could not be looked up may well be this volume's.
      const called: readonly string[] = [volume.name, qualified(volume.store, volume.name)];
      const perhaps = engines.flatMap((engine) =>
        (unresolved.get(engine.name) ?? [])
          .filter(({ name }) => called.includes(name))
          .map(({ container }) => ({ ...of(engine, container), volumeId: volume.id })),
      );
      return {
        references: [...records.references.of(volume.id), ...perhaps],
        answered: new Set(engines.map(({ kind }) => kind).filter((kind) => !silent.has(kind))),
      };
    },
    follow: (scope) => {
      for (const engine of engines) following.use(engine.follow(createLooking(engine, look, scope, log)));
    },
    [Symbol.asyncDispose]: () => following.disposeAsync(),
  };
}

const of = ({ name: engine }: ContainerEngine, { id, name, running }: SeenContainer): Omit<Reference, 'volumeId'> => ({
  ...{ engine, container: id, name, running },
});

/** However many events there are, one look at a time; what happens during one is seen by the next. */
function createLooking(engine: ContainerEngine, look: References['look'], scope: Scope, log: Log): () => void {
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
