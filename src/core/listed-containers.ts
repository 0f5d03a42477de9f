import type { Clock } from '#base/clock.ts';
import type { Scope } from '#base/log.ts';
import {
  type ContainerEngine,
  type ContainerReference,
  type PluginName,
  pluginNames,
  type SeenContainer,
} from './containers.ts';
import type { VolumeId } from './model.ts';
import type { PluginNames } from './plugin-names.ts';
import type { Records } from './ports.ts';

/** The containers that the engines listed, and which volumes the names in their lists refer to. */
export interface ListedContainers {
  /** The references of the containers that the engine has just listed. Replaces its earlier list. */
  replace(
    engine: ContainerEngine,
    seen: readonly SeenContainer[],
    scope: Scope,
  ): Promise<readonly ContainerReference[]>;
  /** Whether the container has its volumes mounted. Undefined: this process has no list of the engine. */
  isLive(engine: string, container: string): boolean | undefined;
  /** The containers with a volume of one of these names that could not be resolved. */
  findUnresolved(engine: ContainerEngine, names: readonly string[]): readonly Omit<ContainerReference, 'volumeId'>[];
}

export interface ListedContainersParts {
  readonly records: Pick<Records, 'engineNames'>;
  readonly names: Pick<PluginNames, 'resolve'>;
  readonly clock: Clock;
}

/** A store that does not answer must not make the engine appear unresponsive. */
const resolveTimeoutMs = 1_000;

export function createListedContainers({ records, names, clock }: ListedContainersParts): ListedContainers {
  /** Per engine name: the ids of containers that have their volumes mounted. */
  const liveContainers = new Map<string, ReadonlySet<string>>();
  /** Per engine name: volume names that could not be resolved, with the container that references each. */
  const unresolvedNames = new Map<string, readonly { readonly container: SeenContainer; readonly name: string }[]>();

  const replace: ListedContainers['replace'] = async (engine, seen, scope) => {
    const references: ContainerReference[] = [];
    const unresolved: { container: SeenContainer; name: string }[] = [];
    // One deadline for all names together.
    using limit = clock.deadline(resolveTimeoutMs, scope.signal);
    const limitedScope = { ...scope, signal: limit.signal };
    for (const container of seen) {
      for (const { plugin, name } of container.volumes) {
        const ids = plugin === undefined ? recordedIds(name) : await resolveIds(plugin, name, limitedScope);
        scope.signal.throwIfAborted();
        if (ids.length === 0) unresolved.push({ container, name });
        for (const volumeId of ids) references.push({ ...referenceTo(engine, container), volumeId });
      }
    }
    unresolvedNames.set(engine.name, unresolved);
    liveContainers.set(engine.name, new Set(seen.filter((one) => one.live).map(({ id }) => id)));
    return references;
  };

  async function resolveIds(plugin: PluginName, name: string, scope: Scope): Promise<readonly VolumeId[]> {
    const known = records.engineNames.get(plugin, name);
    if (known !== undefined) return [known];
    if (scope.signal.aborted) return [];
    return await names.resolve(plugin, name, scope).then(
      ({ id }) => [id],
      () => [],
    );
  }

  /**
   * Volumes of a plugin that may be Stowage under another name. Our records suffice, without asking stores: they have every name that an
   * engine used.
   */
  const recordedIds = (name: string): readonly VolumeId[] =>
    pluginNames.flatMap((plugin) => records.engineNames.get(plugin, name) ?? []);

  return {
    replace,
    isLive: (engine, container) => liveContainers.get(engine)?.has(container),
    findUnresolved: (engine, wanted) =>
      (unresolvedNames.get(engine.name) ?? [])
        .filter(({ name }) => wanted.includes(name))
        .map(({ container }) => referenceTo(engine, container)),
  };
}

const referenceTo = (
  { name: engine }: ContainerEngine,
  { id, name, running }: SeenContainer,
): Omit<ContainerReference, 'volumeId'> => ({
  engine,
  container: id,
  name,
  running,
});
