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
import { engineFailure } from './errors.ts';
import { followContainers } from './following.ts';

export interface ContainerEngineParts {
  /** What people call it, the same at each start. */
  readonly name: string;
  readonly kind: EngineKind;
  /** Where it serves the Docker API. */
  readonly socket: string;
  readonly clock: Clock;
  readonly log: Log;
}

export function createContainerEngine(parts: ContainerEngineParts): ContainerEngine & Disposable {
  const { name, kind, socket, clock, log } = parts;
  const client = createDockerClient({ socket, clock });
  async function asked<T>(answer: Promise<T>): Promise<T> {
    try {
      return await answer;
    } catch (thrown) {
      throw engineFailure(thrown, name);
    }
  }
  let remaps: boolean | undefined;
  const learnRemaps = async (signal: AbortSignal): Promise<boolean> =>
    (await asked(client.info(signal))).securityOptions.some(isRemapping);
  // It is wanted when a volume is mounted, and while Podman waits for that it answers nothing: so it is asked for before. It
  // cannot change without the engine being started again.
  const learn = async (signal: AbortSignal): Promise<void> => {
    remaps = await learnRemaps(signal).catch(() => remaps);
  };
  return {
    name,
    kind,
    containers: async ({ signal }) => (await asked(client.containers(signal))).flatMap(seen),
    follow: (changed, found) =>
      followContainers({
        name,
        client,
        clock,
        log,
        changed,
        opened: (signal) => {
          found?.();
          void learn(signal);
        },
      }),
    remapsUsers: async ({ signal }) => remaps ?? (await learnRemaps(signal)),
    [Symbol.dispose]: () => client[Symbol.dispose](),
  };
}

/** `docker rm -v` removes the volume after it; and one that could not be removed whole is never started again. */
const leaving: readonly string[] = ['removing', 'dead'];
/** Podman's word for one that ended and was not cleaned up after yet is `stopped`. What is not known may well run. */
const ended: readonly string[] = ['exited', 'stopped'];

/** Podman's words, too, for one that was made, and has nothing mounted or is about to. */
const unstarted: readonly string[] = ['created', 'configured', 'initialized'];

function seen({ id, names: [name = id], state, mounts }: ListedContainer): readonly SeenContainer[] {
  if (leaving.includes(state)) return [];
  const named = new Map(
    mounts.flatMap(({ type, driver, name: volume }) => {
      if (type !== 'volume' || driver === enginesOwn) return [];
      const plugin = pluginOf(driver);
      return [[JSON.stringify([plugin, volume]), { plugin, name: volume }] as const];
    }),
  );
  const running = !ended.includes(state);
  const live = running && !unstarted.includes(state);
  // Once each, however often it is mounted.
  return named.size === 0 ? [] : [{ id, name, running, live, volumes: [...named.values()] }];
}

/** The driver of volumes that are certainly not ours. */
const enginesOwn = 'local';

/**
 * A managed plugin is called as its image is: `registry.example/team/stowage:1.2`. Undefined: as somebody chose to, by
 * `docker plugin install --alias`, a `.spec` file or Podman's configuration; or it is another one.
 */
function pluginOf(driver: string): PluginName | undefined {
  const base = driver.slice(driver.lastIndexOf('/') + 1).replace(/[:@].*$/, '');
  return pluginNames.find((one) => one === base);
}

/** `userns-remap` in Docker; an engine of an ordinary user, with Docker and Podman, lives in a user namespace altogether. */
const isRemapping = (option: string): boolean => /^name=(?:userns|rootless)(?:,|$)/.test(option);
