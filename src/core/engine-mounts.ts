import { isDeepStrictEqual } from 'node:util';
import type { Clock } from '#base/clock.ts';
import { eachBounded } from '#base/each-bounded.ts';
import type { Log, Scope } from '#base/log.ts';
import type { ContainerReferences, ReferenceReport } from './container-references.ts';
import { type EngineMount, engineKindOf, type PluginName } from './containers.ts';
import { stowageError } from './errors.ts';
import { createFairPass } from './fair-pass.ts';
import { engineMountKey } from './lock-keys.ts';
import type { NodeName, Volume, VolumeId } from './model.ts';
import type { Mounts } from './mounts.ts';
import type { Call, Operations } from './operations.ts';
import type { Mounter, Records } from './ports.ts';
import type { RemappedUsers } from './remapped-users.ts';

/**
 * Mounts that container engines asked for. All of a volume share one target: the first hold publishes it, the last one takes it
 * away. Counts go wrong when either side dies between doing and answering; what is true then is asked of the engines.
 */
export interface EngineMounts {
  /** Gives the path of the volume's files. The same id again is to be let go of once more, too; but Podman's, which is always the same. */
  mount(volume: Volume, plugin: PluginName, id: string, call: Call): Promise<string>;
  /** What is not held is success. A server that does not answer does not keep it: the mount goes when it does. */
  unmount(volume: VolumeId, plugin: PluginName, id: string, call: Call): Promise<void>;
  /** Undefined: it is not published for engines. */
  pathOf(volume: VolumeId): string | undefined;
  /** Whether it is that mount, and an engine wants it. */
  isHeld(volume: VolumeId, target: string): boolean;
  /**
   * Before it is asked whether anybody uses the volume: drops what certainly nobody needs, since its engines answered and no
   * container names it. Call it before any of the volume's locks is taken.
   */
  dropStale(volume: Volume, scope: Scope): Promise<void>;
  /** The same for all, and for volumes of which no container has run for a while. Also retries unmounts that failed. */
  reconcile(scope: Scope): Promise<void>;
  /** Containers of these volumes are not what they were: what was kept for one that ran may go. Never throws. */
  changed(volumes: readonly VolumeId[], scope: Scope): Promise<void>;
  /** When Stowage stops: leaves nothing where no engine has anything. */
  close(scope: Scope): Promise<void>;
}

export interface EngineMountsParts {
  readonly records: Records;
  readonly mounts: () => Pick<Mounts, 'publish' | 'unpublish' | 'isDead' | 'mountsOf'>;
  readonly mounter: Pick<Mounter, 'openShared' | 'closeShared' | 'unable'>;
  readonly operations: Operations;
  readonly references: () => Pick<ContainerReferences, 'of' | 'known' | 'isLive' | 'refreshAll' | 'foundAt'>;
  readonly remapped: RemappedUsers;
  /** Where engines find volumes: `<folder>/<volume id>`. */
  readonly folder: string;
  readonly stageOf: (volume: VolumeId) => string;
  readonly node: NodeName;
  readonly clock: Clock;
  readonly log: Log;
}

/** A container that was stopped may be about to start: its engine mounts first, and says so only when it runs. */
const startingMs = 60_000;
/**
 * Docker mounts a new volume before it lists the container, to fill it from the image, and may take its time. Only for what
 * neither side can have forgotten in a crash.
 */
const fillingMs = 600_000;

/** For one volume; a server that is silent takes about 20 s. */
const settleMs = 60_000;
const inParallel = 4;

/** Docker says that a container has ended before its list does; then it says nothing more. */
const endingMs = [50, 150, 300, 500, 1_000, 3_000];

export function createEngineMounts(parts: EngineMountsParts): EngineMounts {
  const { records, operations, clock, log, node } = parts;
  const targetOf = (id: VolumeId): string => `${parts.folder}/${id}`;
  const pathOf = (id: VolumeId): string | undefined => records.mounts.at(targetOf(id))?.target;
  /** When an engine last asked for it, and since when no container has been seen running; by this process's clock. */
  const asked = new Map<VolumeId, number>();
  const idle = new Map<VolumeId, number>();
  /** Of which it was said that no container is known that has it. */
  const unlisted = new Set<VolumeId>();
  const closing = new AbortController();
  const lookAfter = createFairPass<VolumeId>(clock, { inParallel, itemMs: settleMs });
  /** When each was asked for; what is not in it an earlier process was asked for. */
  const since = new Map<string, number>();

  /** Call it with the lock held. */
  async function takeAway(id: VolumeId, call: Call): Promise<boolean> {
    if (pathOf(id) === undefined) return true;
    try {
      await parts.mounts().unpublish(targetOf(id), id, call, { force: false, unheld: true });
      return true;
    } catch (thrown) {
      call.signal.throwIfAborted();
      // No engine asks again. What was written is in the keeper's memory, and the mount stays until it is on the server.
      const { message } = stowageError(thrown);
      log.warn('a volume that no container uses stays mounted for now', { volume: id, why: message });
      return false;
    }
  }

  async function drop(id: VolumeId, why: string, scope: Scope): Promise<void> {
    for (const { plugin } of records.engineMounts.of(id))
      log.info('a mount that no container uses is dropped', { volume: id, plugin, why });
    // What could not be taken away is still held, and dropped another time.
    if (!(await takeAway(id, { ...scope, requestId: `holds:${id}` }))) return;
    records.engineMounts.clear(id);
    idle.delete(id);
  }

  /** Neither we nor its engine were started since it was asked for: what we say of it is what the engine knows. */
  function isCertain(hold: EngineMount): boolean {
    const at = since.get(keyOf(hold));
    return at !== undefined && at >= (parts.references().foundAt(engineKindOf(hold)) ?? Number.POSITIVE_INFINITY);
  }

  const areKnown = (holds: readonly EngineMount[], { answered }: ReferenceReport): boolean =>
    holds.every((hold) => answered.has(engineKindOf(hold)));

  /** Binds that engines, or others, have of it in this mount namespace. */
  async function boundElsewhere(id: VolumeId, scope: Scope): Promise<boolean> {
    const mount = records.mounts.at(targetOf(id));
    if (mount === undefined) return false;
    const ours = new Set([parts.stageOf(id), ...records.mounts.of(id).map(({ target }) => target)]);
    const seen = await parts.mounts().mountsOf(mount.source, id, scope);
    // Keep the mount if its source kind is unknown: no client can tell where it is bound.
    return seen === undefined || seen.some((at) => !ours.has(at));
  }

  async function settleOne(id: VolumeId, scope: Scope): Promise<void> {
    const volume = records.volumes.byId(id);
    // Before the lock is taken: Podman answers nothing while it waits for a mount, which waits for the lock.
    const referring = await parts.references().of(volume ?? id, scope);
    using _ = await operations.lock([engineMountKey(id)], scope.signal);
    const holds = records.engineMounts.of(id);
    if (pathOf(id) === undefined) return await drop(id, 'it is not mounted', scope);
    if (holds.length === 0) return await releaseOne(id, scope);
    // Podman remembers by itself that it has it mounted, and asks no second time.
    if (holds.some((hold) => engineKindOf(hold) === 'podman')) return;
    if (!areKnown(holds, referring) || referring.references.some(({ running }) => running)) {
      idle.delete(id);
      return;
    }
    // Destroyed elsewhere: Docker does not ask to unmount what it cannot get, and nothing fills it any more.
    if (volume === undefined && referring.references.length === 0)
      return await drop(id, 'it is gone, and no container names it', scope);
    const now = clock.elapsed();
    const begun = idle.get(id) ?? now;
    idle.set(id, begun);
    if (referring.references.length === 0 && now - begun >= startingMs) warnUnlisted(id, holds);
    const patience = holds.some(isCertain) ? fillingMs : startingMs;
    if (now - Math.max(begun, asked.get(id) ?? begun) < patience) return;
    if (await boundElsewhere(id, scope)) return;
    await drop(id, 'none of its containers runs', scope);
  }

  async function settleOrComplain(id: VolumeId, scope: Scope): Promise<void> {
    // Most of them run. What is done about the others is decided by what is asked with the lock held.
    const runs = parts
      .references()
      .known(id)
      .some(({ running }) => running);
    if (runs && pathOf(id) !== undefined && records.engineMounts.of(id).length > 0) {
      idle.delete(id);
      return;
    }
    try {
      await settleOne(id, scope);
    } catch (thrown) {
      const why = stowageError(thrown).message;
      if (!closing.signal.aborted) log.warn('a mount for containers could not be looked after', { volume: id, why });
    }
  }

  /** Let go of, and kept while a container seemed to run that had it. Call it with the lock held. */
  async function releaseOne(id: VolumeId, scope: Scope): Promise<void> {
    if (!parts.references().isLive(id)) await drop(id, 'none of its containers runs', scope);
  }

  /** Nobody waits for it. What is seen to have ended is taken away by `changed`. */
  async function lookUntilEnded(id: VolumeId): Promise<void> {
    const { signal } = closing;
    try {
      for (const ms of endingMs) {
        await clock.sleep(ms, signal);
        if (records.engineMounts.of(id).length > 0 || !parts.references().isLive(id)) return;
        await parts.references().refreshAll({ signal, log });
      }
    } catch (thrown) {
      if (!signal.aborted)
        log.info('a volume stays mounted for now', { volume: id, why: stowageError(thrown).message });
    }
  }

  /** A container that is being made is not listed yet, but soon is. */
  function warnUnlisted(id: VolumeId, holds: readonly EngineMount[]): void {
    if (unlisted.has(id)) return;
    unlisted.add(id);
    const [{ plugin } = { plugin: undefined }] = holds;
    const action =
      'It is being filled from an image, or an engine forgot it in a crash: then it is dropped by itself. Or a second engine uses Stowage, whose containers are not known here: it needs a Stowage of its own.';
    log.warn('a volume is mounted for a container that its engine does not list', { volume: id, plugin, action });
  }

  return {
    pathOf,
    isHeld: (id, target) => target === targetOf(id) && records.engineMounts.of(id).length > 0,
    mount: async (volume, plugin, id, call) => {
      await parts.remapped.refuse(volume, id, call);
      using _ = await operations.lock([engineMountKey(volume.id)], call.signal);
      asked.set(volume.id, clock.elapsed());
      idle.delete(volume.id);
      // Left from a container that ended just now, perhaps since nobody serves it any more.
      const isLeft = pathOf(volume.id) !== undefined && records.engineMounts.of(volume.id).length === 0;
      if (isLeft && (await parts.mounts().isDead(volume.id, call))) await takeAway(volume.id, call);
      // First: of what is mounted and not held, a start after a crash would make an end.
      const hold = { volumeId: volume.id, plugin, id, since: clock.now() };
      const before = records.engineMounts.of(volume.id).some((one) => keyOf(one) === keyOf(hold));
      const isThere = before && engineKindOf(hold) === 'podman';
      if (!isThere) records.engineMounts.add(hold);
      // Docker keeps the id through a crash, and not how often it has asked: what was not certain does not become so.
      if (!before) since.set(keyOf(hold), clock.elapsed());
      try {
        const user = { kind: 'container', name: plugin, node } as const;
        const how = { readOnly: false, user, ownTarget: true };
        if (parts.mounter.unable === undefined) await parts.mounter.openShared(parts.folder, call);
        return (await parts.mounts().publish(volume.id, targetOf(volume.id), how, call)).target;
      } catch (thrown) {
        if (!isThere) records.engineMounts.release(volume.id, plugin, id);
        throw thrown;
      }
    },
    unmount: async (id, plugin, hold, call) => {
      using _ = await operations.lock([engineMountKey(id)], call.signal);
      records.engineMounts.release(id, plugin, hold);
      if (records.engineMounts.of(id).length > 0) return;
      // Docker lets go of it before its list says that the container has ended; and where counts went wrong, one may go on
      // running that has it. What is taken away under that is soon destroyed.
      if (parts.references().isLive(id)) void lookUntilEnded(id);
      else await takeAway(id, call);
    },
    changed: async (ids, scope) => {
      const isOver = (id: VolumeId): boolean =>
        records.engineMounts.of(id).length === 0 && !parts.references().isLive(id);
      const over = ids.filter((id) => pathOf(id) !== undefined && isOver(id));
      await eachBounded(over, inParallel, async (id) => {
        using limit = clock.deadline(settleMs, scope.signal);
        const own = { ...scope, signal: limit.signal };
        try {
          using _ = await operations.lock([engineMountKey(id)], own.signal);
          if (isOver(id)) await takeAway(id, { ...own, requestId: `holds:${id}` });
        } catch (thrown) {
          log.info('a volume stays mounted for now', { volume: id, why: stowageError(thrown).message });
        }
      });
    },
    dropStale: async (volume, scope) => {
      if (records.engineMounts.of(volume.id).length === 0 && pathOf(volume.id) === undefined) return;
      const before = records.engineMounts.of(volume.id);
      // Before the lock is taken, as above.
      const referring = await parts.references().of(volume, scope);
      using _ = await operations.lock([engineMountKey(volume.id)], scope.signal);
      const holds = records.engineMounts.of(volume.id);
      if (!isDeepStrictEqual(holds, before)) return;
      // What its engine certainly knows of may be a volume that is being filled for a container to come.
      if (referring.references.length === 0 && areKnown(holds, referring) && !holds.some(isCertain))
        await drop(volume.id, 'no container names it', scope);
    },
    close: async (scope) => {
      closing.abort();
      if (parts.mounter.unable === undefined && records.engineMounts.list().length === 0)
        await parts.mounter.closeShared(parts.folder, scope);
    },
    reconcile: async (scope) => {
      await parts.remapped.look(scope);
      const published = records.mounts.list().filter(({ volumeId, target }) => target === targetOf(volumeId));
      const all = new Set([...records.engineMounts.list(), ...published].map(({ volumeId }) => volumeId));
      for (const known of [asked, idle, unlisted]) for (const id of known.keys()) if (!all.has(id)) known.delete(id);
      const keys = new Set(records.engineMounts.list().map(keyOf));
      for (const key of since.keys()) if (!keys.has(key)) since.delete(key);
      // Also where nothing is mounted: what stopped containers name is to be known.
      await parts.references().refreshAll(scope);
      await lookAfter(all, scope, settleOrComplain);
    },
  };
}

const keyOf = ({ volumeId, plugin, id }: Pick<EngineMount, 'volumeId' | 'plugin' | 'id'>): string =>
  JSON.stringify([volumeId, plugin, id]);
