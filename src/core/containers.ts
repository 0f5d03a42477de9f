import type { Scope } from '#base/log.ts';
import type { VolumeId } from './model.ts';

/** The plugin names of Stowage in container engines. The store of a volume decides which plugin shows it. */
export const pluginNames = ['stowage', 'stowage-local'] as const;
export type PluginName = (typeof pluginNames)[number];

export type EngineKind = 'docker' | 'podman';

/** A mount that an engine requested and has not released. Engines do not say which container it is for. */
export interface EngineMount {
  readonly volumeId: VolumeId;
  readonly plugin: PluginName;
  /** The engine's id of the mount. */
  readonly id: string;
  /** How many times the engine requested it under this id: `docker cp` mounts the volumes of a running container again. */
  readonly count: number;
  readonly since: number;
}

export interface HeldTargets {
  /** True if `target` is the volume's engine target and an engine has it mounted. */
  isHeld(volume: VolumeId, target: string): boolean;
}

/** Podman mounts a volume once for all its containers, always under this id. Docker's ids are random. */
const podmanMountId = '2f73349cfc4630255319c6c8dfc1b46a8996ace9d14d8e07563b165915918ec2';

export const engineKindOf = ({ id }: Pick<EngineMount, 'id'>): EngineKind =>
  id === podmanMountId ? 'podman' : 'docker';

/** A container, running or stopped, that references a volume. */
export interface ContainerReference {
  readonly engine: string;
  /** The engine's id of the container. */
  readonly container: string;
  readonly name: string;
  readonly volumeId: VolumeId;
  /** The container runs or may be starting. */
  readonly running: boolean;
}

export interface SeenContainer {
  readonly id: string;
  readonly name: string;
  /** Running, paused, restarting, or never started yet: it may be starting. */
  readonly running: boolean;
  /** The container was started and has not exited, so it has its volumes mounted. */
  readonly live: boolean;
  /**
   * The container's volumes of our plugins, by the engine's names. `plugin` undefined: the plugin may be Stowage, installed under another
   * alias.
   */
  readonly volumes: readonly { readonly plugin: PluginName | undefined; readonly name: string }[];
}

/** A Docker or Podman engine of this node. */
export interface ContainerEngine {
  /** The name for users, stable across restarts. */
  readonly name: string;
  readonly kind: EngineKind;
  /** All containers that reference volumes that may be ours, except containers that are being removed. */
  containers(scope: Scope): Promise<readonly SeenContainer[]>;
  /**
   * Calls `changed` when containers may have changed: at the start, at each event, and after a reconnect. Calls `found` at each
   * connect, before the first `changed`: another engine may listen there now.
   */
  follow(changed: () => void, found?: () => void): AsyncDisposable;
  /** The engine uses user namespaces: UIDs in its containers are other UIDs on the host. */
  remapsUsers(scope: Scope): Promise<boolean>;
}

/** Persistent records about container engines. */
export interface ContainerRecords {
  /** Which volume an engine's name refers to, for as long as the volume exists. */
  readonly engineNames: {
    get(plugin: PluginName, name: string): VolumeId | undefined;
    put(plugin: PluginName, name: string, id: VolumeId): void;
    remove(plugin: PluginName, name: string): void;
    list(plugin: PluginName): readonly { readonly name: string; readonly id: VolumeId }[];
  };
  readonly engineMounts: {
    /** Increments the count if the mount is already recorded. */
    add(hold: Omit<EngineMount, 'count'>): void;
    /** Decrements the count and removes the record at zero. Succeeds if there is no record. */
    release(volume: VolumeId, plugin: PluginName, id: string): void;
    clear(volume: VolumeId): void;
    byVolume(volume: VolumeId): readonly EngineMount[];
    list(): readonly EngineMount[];
  };
  readonly references: {
    /** Replaces all references of the engine. */
    replace(engine: string, references: readonly ContainerReference[]): void;
    byVolume(volume: VolumeId): readonly ContainerReference[];
    list(): readonly ContainerReference[];
  };
}
