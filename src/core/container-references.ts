import type { Clock } from '#base/clock.ts';
import type { Log, Scope } from '#base/log.ts';
import { waitWithGrace } from '#base/wait.ts';
import type { ContainerEngine, ContainerReference, EngineKind } from './containers.ts';
import { stowageError } from './errors.ts';
import { createListedContainers } from './listed-containers.ts';
import type { Volume, VolumeId } from './model.ts';
import { qualified } from './names.ts';
import type { PluginNames } from './plugin-names.ts';
import type { Records } from './ports.ts';

/**
 * The containers of this node that reference a volume, running or stopped, as listed by the container engines. The last list of each
 * engine is recorded: it is used while the engine does not answer, and published on stores as use records.
 */
export interface ContainerReferences extends AsyncDisposable {
  /** Asks the engines now. Pass the id if the volume no longer exists. */
  query(volume: Volume | VolumeId, scope: Scope): Promise<ReferenceReport>;
  /** The references of the last refresh. */
  lastKnown(volume: VolumeId): readonly ContainerReference[];
  /** True if a container had the volume mounted at the engine's last refresh. */
  isLive(volume: VolumeId): boolean;
  /** Lists the engine's containers and reports the volumes whose containers changed to `changed`. */
  refresh(engine: ContainerEngine, scope: Scope): Promise<void>;
  /**
   * When this process last connected to an engine of this kind, by its own clock. State that the engine lost in a crash was lost before
   * this time. Undefined: never connected.
   */
  lastConnectedAt(kind: EngineKind): number | undefined;
  /** Refreshes all engines and returns those that answered. */
  refreshAll(scope: Scope): Promise<readonly ContainerEngine[]>;
  /** Refreshes each engine now and whenever its containers change. */
  follow(scope: Scope): void;
}

export interface ReferenceReport {
  readonly references: readonly ContainerReference[];
  /** The engine kinds of which every engine answered. References of the other engines are from an earlier refresh. */
  readonly answered: ReadonlySet<EngineKind>;
  /** The configured engines that gave no usable answer. */
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
  /** Called with volumes whose set of containers, or their running state, changed. */
  readonly changed: (volumes: readonly VolumeId[], engine: ContainerEngine) => void;
}

const listTimeoutMs = 5_000;
const unending = new AbortController().signal;

export function createContainerReferences(parts: ContainerReferencesParts): ContainerReferences {
  const { records, engines, clock, log } = parts;
  const eventStreams = new AsyncDisposableStack();
  const listedContainers = createListedContainers(parts);
  const connectedAt = new Map<EngineKind, number>();
  const refreshes = new Map<ContainerEngine, () => Promise<void>>();

  /** Refreshes of one engine run one after the other, so an older list never replaces a newer one. Waiting callers share the next run. */
  const refresh: ContainerReferences['refresh'] = async (engine, scope) => {
    const refreshSoon = refreshes.get(engine) ?? coalesced(() => refreshNow(engine, { signal: unending, log }));
    refreshes.set(engine, refreshSoon);
    await waitWithGrace(refreshSoon(), scope.signal, clock);
  };

  async function refreshNow(engine: ContainerEngine, scope: Scope): Promise<void> {
    using limit = clock.deadline(listTimeoutMs, scope.signal);
    const limitedScope = { ...scope, signal: limit.signal };
    const current = await listedContainers.replace(engine, await engine.containers(limitedScope), limitedScope);
    const previous = records.references.list().filter((one) => one.engine === engine.name);
    records.references.replace(engine.name, current);
    const changedVolumes = volumesThatDiffer(previous, current);
    if (changedVolumes.length > 0) parts.changed(changedVolumes, engine);
  }

  const refreshEach = (scope: Scope): Promise<readonly { engine: ContainerEngine; why: string | undefined }[]> =>
    Promise.all(
      engines.map(async (engine) => {
        try {
          await refresh(engine, scope);
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
    refresh,
    refreshAll: async (scope) =>
      (await refreshEach(scope)).flatMap(({ engine, why }) => (why === undefined ? [engine] : [])),
    lastKnown: (volume) => records.references.byVolume(volume),
    isLive: (volume) =>
      records.references
        .byVolume(volume)
        .some(({ engine, container, running }) => listedContainers.isLive(engine, container) ?? running),
    lastConnectedAt: (kind) => connectedAt.get(kind),
    query: async (volume, scope) => {
      const silent = (await refreshEach(scope)).flatMap(({ engine: { kind }, why }) =>
        why === undefined ? [] : [{ kind, why }],
      );
      const isSilent = (kind: EngineKind): boolean => silent.some((one) => one.kind === kind);
      const id = typeof volume === 'string' ? volume : volume.id;
      // An unresolved name may belong to this volume.
      const namesOfVolume: readonly string[] =
        typeof volume === 'string' ? [] : [volume.name, qualified(volume.store, volume.name)];
      const possible = engines.flatMap((engine) =>
        listedContainers.findUnresolved(engine, namesOfVolume).map((one) => ({ ...one, volumeId: id })),
      );
      return {
        references: [...records.references.byVolume(id), ...possible],
        answered: new Set(engines.map(({ kind }) => kind).filter((kind) => !isSilent(kind))),
        silent,
      };
    },
    follow: (scope) => {
      for (const engine of engines)
        eventStreams.use(
          engine.follow(createCoalescedRefresh(engine, refresh, scope, log), () =>
            connectedAt.set(engine.kind, clock.elapsed()),
          ),
        );
    },
    [Symbol.asyncDispose]: () => eventStreams.disposeAsync(),
  };
}

/** A call during a run waits for the next run, which starts after the call and so sees everything that was true at the time of the call. */
function coalesced(work: () => Promise<void>): () => Promise<void> {
  let running: Promise<void> | undefined;
  let nextRun: Promise<void> | undefined;
  const start = (): Promise<void> => {
    const thisRun = work().finally(() => {
      if (running === thisRun) running = undefined;
    });
    running = thisRun;
    return thisRun;
  };
  return () => {
    if (running === undefined) return start();
    nextRun ??= running
      .catch(() => undefined)
      .then(() => {
        nextRun = undefined;
        return start();
      });
    return nextRun;
  };
}

/** Coalesces events: one refresh at a time, and another one after it if events arrived meanwhile. */
function createCoalescedRefresh(
  engine: ContainerEngine,
  refresh: ContainerReferences['refresh'],
  scope: Scope,
  log: Log,
): () => void {
  let isRunning = false;
  let isDue = false;
  const refreshWhileDue = async (): Promise<void> => {
    isRunning = true;
    while (isDue && !scope.signal.aborted) {
      isDue = false;
      await refresh(engine, scope).catch((thrown: unknown) => {
        // The next event, or the periodic refresh, retries.
        log.info('a container engine did not answer', { engine: engine.name, why: stowageError(thrown).message });
      });
    }
    isRunning = false;
  };
  return () => {
    isDue = true;
    if (!isRunning) void refreshWhileDue();
  };
}

function volumesThatDiffer(
  previous: readonly ContainerReference[],
  current: readonly ContainerReference[],
): readonly VolumeId[] {
  const keyOf = ({ container, name, volumeId, running }: ContainerReference): string =>
    JSON.stringify([container, name, volumeId, running]);
  const [oldByKey, newByKey] = [
    new Map(previous.map((one) => [keyOf(one), one])),
    new Map(current.map((one) => [keyOf(one), one])),
  ];
  const removed = [...oldByKey].filter(([key]) => !newByKey.has(key));
  const added = [...newByKey].filter(([key]) => !oldByKey.has(key));
  return [...new Set([...removed, ...added].map(([, { volumeId }]) => volumeId))];
}
