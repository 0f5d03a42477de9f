import type { Scope } from '#base/log.ts';
import type { VolumeId } from './model.ts';

/** The names by which container engines know Stowage. Which of them shows a volume is decided by its store. */
export const pluginNames = ['stowage', 'stowage-local'] as const;
export type PluginName = (typeof pluginNames)[number];

export type EngineKind = 'docker' | 'podman';

/** A mount that an engine asked for and has not taken back. Which container it is for, no engine says. */
export interface EngineMount {
  readonly volumeId: VolumeId;
  readonly plugin: PluginName;
  /** The engine's own id of it. */
  readonly id: string;
  /** How often it was asked for under that id: Docker's `cp` mounts what a running container has once more. */
  readonly count: number;
  readonly since: number;
}

/** Podman mounts a volume once, however many containers use it, and always under this id; Docker's ids are random. */
const podmanMountId = '2f73349cfc4630255319c6c8dfc1b46a8996ace9d14d8e07563b165915918ec2';

export const engineKindOf = ({ id }: Pick<EngineMount, 'id'>): EngineKind =>
  id === podmanMountId ? 'podman' : 'docker';

/** A container, running or stopped, that names a volume. */
export interface Reference {
  readonly engine: string;
  /** The engine's id of the container. */
  readonly container: string;
  readonly name: string;
  readonly volumeId: VolumeId;
  /** It runs, or may be about to. */
  readonly running: boolean;
}

export interface SeenContainer {
  readonly id: string;
  readonly name: string;
  /** Running, paused, restarting, or never started yet: it may be starting. */
  readonly running: boolean;
  /** It was started, and has not ended: it has its volumes mounted. */
  readonly live: boolean;
  /**
   * Those that it has through one of our plugins, by the names that the engine knows them by. Without a plugin: through one
   * that is called otherwise there, and may be ours.
   */
  readonly volumes: readonly { readonly plugin: PluginName | undefined; readonly name: string }[];
}

/** A Docker or Podman engine of this node. */
export interface ContainerEngine {
  /** What people call it, the same at each start. */
  readonly name: string;
  readonly kind: EngineKind;
  /** All containers that name volumes that may be ours, but those that are being removed. */
  containers(scope: Scope): Promise<readonly SeenContainer[]>;
  /**
   * Says when containers may have changed: at the beginning, with each event, and when it was lost and is there again.
   * Found: it is there, and may be another one than before; comes before the first change that is told of it.
   */
  follow(changed: () => void, found?: () => void): AsyncDisposable;
  /** Users of its containers are not who they are on the host. */
  remapsUsers(scope: Scope): Promise<boolean>;
}

/** What outlives the process of what engines know. */
export interface ContainerRecords {
  /** What a name means to engines, for as long as that volume exists. */
  readonly engineNames: {
    get(plugin: PluginName, name: string): VolumeId | undefined;
    put(plugin: PluginName, name: string, id: VolumeId): void;
    remove(plugin: PluginName, name: string): void;
    list(plugin: PluginName): readonly { readonly name: string; readonly id: VolumeId }[];
  };
  readonly engineMounts: {
    /** Once more, where it is there. */
    add(hold: Omit<EngineMount, 'count'>): void;
    /** Once less; the last one is gone. Absent is success. */
    release(volume: VolumeId, plugin: PluginName, id: string): void;
    clear(volume: VolumeId): void;
    of(volume: VolumeId): readonly EngineMount[];
    list(): readonly EngineMount[];
  };
  readonly references: {
    /** All that the engine's containers name, in the place of what was known of it. */
    replace(engine: string, references: readonly Reference[]): void;
    of(volume: VolumeId): readonly Reference[];
    list(): readonly Reference[];
  };
}
