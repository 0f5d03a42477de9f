import type { Clock } from '#base/clock.ts';
import type { Log } from '#base/log.ts';
import {
  type ContainerEngine,
  type EngineKind,
  type PluginName,
  pluginNames,
  type SeenContainer,
} from '#core/containers.ts';
import { createDockerClient } from '#wire/docker/client.ts';
import type { ListedContainer } from '#wire/docker/containers.ts';
import { followContainers } from './container-events.ts';
import { engineFailure } from './engine-errors.ts';

export interface ContainerEngineParts {
  /** The engine's name for people. It must not change between starts. */
  readonly name: string;
  readonly kind: EngineKind;
  /** The socket of its Docker API. */
  readonly socket: string;
  readonly clock: Clock;
  readonly log: Log;
}

export function createContainerEngine(parts: ContainerEngineParts): ContainerEngine & Disposable {
  const { name, kind, socket, clock, log } = parts;
  const client = createDockerClient({ socket, clock });
  async function withEngineErrors<T>(answer: Promise<T>): Promise<T> {
    try {
      return await answer;
    } catch (thrown) {
      throw engineFailure(thrown, name);
    }
  }
  let cachedRemapping: boolean | undefined;
  const queryRemapping = async (signal: AbortSignal): Promise<boolean> =>
    (await withEngineErrors(client.info(signal))).securityOptions.some(isRemapping);
  // Needed when a volume is mounted, but Podman answers nothing while it waits for a mount, so query it in advance. It cannot
  // change unless the engine restarts.
  const cacheRemapping = async (signal: AbortSignal): Promise<void> => {
    cachedRemapping = await queryRemapping(signal).catch(() => cachedRemapping);
  };
  return {
    name,
    kind,
    containers: async ({ signal }) => (await withEngineErrors(client.containers(signal))).flatMap(toSeenContainers),
    follow: (changed, found) =>
      followContainers({
        name,
        client,
        clock,
        log,
        changed,
        opened: (signal) => {
          found?.();
          void cacheRemapping(signal);
        },
      }),
    remapsUsers: async ({ signal }) => cachedRemapping ?? (await queryRemapping(signal)),
    [Symbol.dispose]: () => client[Symbol.dispose](),
  };
}

/** `docker rm -v` removes the volumes after the container; a container whose removal failed (`dead`) is never started again. */
const leavingStates: readonly string[] = ['removing', 'dead'];
/** Podman's `stopped` means that a container ended but is not cleaned up yet. Containers in an unknown state count as running. */
const endedStates: readonly string[] = ['exited', 'stopped'];

/** Docker's and Podman's states of a container that was created but not started: it has nothing mounted, or is about to mount. */
const unstartedStates: readonly string[] = ['created', 'configured', 'initialized'];

function toSeenContainers({ id, names: [name = id], state, mounts }: ListedContainer): readonly SeenContainer[] {
  if (leavingStates.includes(state)) return [];
  const pluginVolumes = new Map(
    mounts.flatMap(({ type, driver, name: volume }) => {
      if (type !== 'volume' || driver === builtInDriver) return [];
      const plugin = pluginOf(driver);
      return [[JSON.stringify([plugin, volume]), { plugin, name: volume }] as const];
    }),
  );
  const running = !endedStates.includes(state);
  const live = running && !unstartedStates.includes(state);
  // Each volume once, however often the container mounts it.
  return pluginVolumes.size === 0 ? [] : [{ id, name, running, live, volumes: [...pluginVolumes.values()] }];
}

/** The engine's built-in driver, whose volumes are never ours. */
const builtInDriver = 'local';

/**
 * A managed plugin has the name of its image: `registry.example/team/stowage:1.2`. Undefined: the plugin has another name, given by
 * `docker plugin install --alias`, a `.spec` file or Podman's configuration; or it is another plugin.
 */
function pluginOf(driver: string): PluginName | undefined {
  const base = driver.slice(driver.lastIndexOf('/') + 1).replace(/[:@].*$/, '');
  return pluginNames.find((one) => one === base);
}

/** `userns-remap` in Docker. A rootless Docker or Podman runs in a user namespace altogether. */
const isRemapping = (option: string): boolean => /^name=(?:userns|rootless)(?:,|$)/.test(option);
