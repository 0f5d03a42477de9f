import type { ContainerEngine, EngineKind, PluginName, SeenContainer } from '#core/containers.ts';

/** An engine whose containers a test defines. */
export interface FakeEngine extends ContainerEngine {
  /** Runs a container. Replaces a container of the same name. */
  run(
    container: string,
    volumes: Readonly<Record<string, PluginName | undefined>>,
    running?: boolean,
    live?: boolean,
  ): void;
  remove(container: string): void;
  isDown: boolean;
  /** If true, the engine sends no change events. */
  isQuiet: boolean;
  /** Restarts the engine as after a crash. */
  restart(): void;
  asked: number;
}

export function createFakeEngine(kind: EngineKind = 'docker'): FakeEngine {
  const all = new Map<string, SeenContainer>();
  const followers = new Set<() => void>();
  const finders = new Set<() => void>();
  const tell = (): void => {
    for (const changed of engine.isQuiet ? [] : followers) changed();
  };
  const engine: FakeEngine = {
    name: kind,
    kind,
    isDown: false,
    isQuiet: false,
    asked: 0,
    run: (name, volumes, running = true, live = running) => {
      const named = Object.entries(volumes).map(([volume, plugin]) => ({ name: volume, plugin }));
      all.set(name, { id: `id-of-${name}`, name, running, live, volumes: named });
      tell();
    },
    restart: () => {
      for (const found of finders) found();
      tell();
    },
    remove: (name) => {
      all.delete(name);
      tell();
    },
    containers: async () => {
      engine.asked++;
      if (engine.isDown) throw new Error('connect ECONNREFUSED');
      return [...all.values()];
    },
    follow: (changed, found = () => undefined) => {
      followers.add(changed);
      finders.add(found);
      found();
      changed();
      return {
        [Symbol.asyncDispose]: async () => {
          followers.delete(changed);
          finders.delete(found);
        },
      };
    },
    remapsUsers: async () => false,
  };
  return engine;
}
