import { copyFile, mkdir, rename, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { type CheckedCall, createCheckedCall, hasStatus, orNotFoundOnRetry } from './checked-call.ts';
import { createExtraStore } from './extra-store.ts';
import type { KilledServer } from './killed-server.ts';
import { pick, shuffled } from './seeded-random.ts';
import { checkContents, contents, expectReadOnly, type KnownVolume, writeContents } from './volume-contents.ts';

interface Model {
  readonly volumes: Map<string, KnownVolume>;
  readonly trash: Map<string, KnownVolume>;
  /** Deleted volumes whose data stay on the store. */
  readonly retained: Map<string, KnownVolume>;
}

export interface Store {
  readonly name: string;
  readonly root: string;
  readonly layout: 'directory' | 'image';
  readonly onDelete: 'delete' | 'archive' | 'retain';
  /** The store is on an NFS server that the test runs; `root` is the exported directory. */
  readonly isRemote: boolean;
}

interface WorkerParts {
  readonly name: string;
  readonly stowage: KilledServer;
  readonly stores: readonly Store[];
  readonly mounts: string;
  /** The folder for stores that the worker adds itself. */
  readonly extras: string;
  /** An image with a file system that has the contents of `template`. */
  readonly template: string;
  readonly random: () => number;
}

/** The state that all actions of a worker share. */
export interface WorkerState extends WorkerParts {
  readonly ask: CheckedCall;
  readonly model: Model;
  readonly freshName: () => string;
}

/** Each action returns false if there was nothing to do. */
export type Actions = Readonly<Record<string, () => Promise<boolean>>>;

const MiB = 1024n * 1024n;

/**
 * A client with volumes of its own. It does random actions, checks the answers, and retries calls that a kill
 * interrupted.
 */
export function createWorker(about: WorkerParts) {
  const { random } = about;
  const model: Model = { volumes: new Map(), trash: new Map(), retained: new Map() };
  let count = 0;
  const ask = createCheckedCall(about.name, about.stowage, random);
  const workerState: WorkerState = { ...about, ask, model, freshName: () => `${about.name}-${count++}` };
  const mounting = createMountActions(workerState);
  const extra = createExtraStore(workerState);
  const actions: Actions = {
    ...changeActions(workerState),
    ...deleteActions(workerState),
    ...mounting.actions,
    ...extra.actions,
  };
  // Actions that are listed twice run twice as often. Each action of the list runs once, in random order, before the
  // list starts again.
  const allActions = [...Object.keys(actions), 'create', 'create', 'create', 'remove', 'remove', 'mount', 'unmount'];
  const remainingActions: string[] = [];

  return {
    model,
    kinds: Object.keys(actions),
    extraVolumes: extra.volumes,
    /** Does one action that changes something, and returns the name of the action. */
    step: async (): Promise<string> => {
      for (;;) {
        for (const kind of shuffled(remainingActions, random)) {
          if (!(await actions[kind]?.())) continue;
          remainingActions.splice(remainingActions.indexOf(kind), 1);
          return kind;
        }
        remainingActions.push(...allActions);
      }
    },
    unmountAll: mounting.unmountAll,
    checkImages: mounting.checkImages,
  };
}

const unmountedVolumes = ({ volumes }: Model): KnownVolume[] =>
  [...volumes.values()].filter((volume) => volume.mountedAt === undefined);

function changeActions({ ask, model, freshName, random, stores, template, extras }: WorkerState): Actions {
  const randomSize = (store: Store): { readonly access?: 'block'; readonly bytes?: string } => {
    if (store.layout === 'directory') return {};
    if (random() < 0.3) return { access: 'block', bytes: String(16n * MiB) };
    return { bytes: String((random() < 0.3 ? 300n : 16n) * MiB) };
  };
  const recordVolume = (
    store: Store,
    name: string,
    body: Readonly<Record<string, unknown>>,
    marker?: string,
  ): boolean => {
    const [id, access] = [String(body['id']), body['access'] as KnownVolume['access']];
    const bytes = typeof body['bytes'] === 'string' ? BigInt(body['bytes']) : undefined;
    model.volumes.set(id, {
      id,
      store: store.name,
      layout: store.layout,
      name,
      access,
      bytes,
      marker,
      mountedAt: undefined,
    });
    return true;
  };

  return {
    create: async () => {
      const store = pick(stores, random);
      if (store === undefined) return false;
      const [name, size] = [freshName(), randomSize(store)];
      const { body } = await ask('POST', '/v1/volumes', { store: store.name, name, ...size }, hasStatus(201));
      return recordVolume(store, name, body);
    },
    expand: async () => {
      // Not every kernel can grow a mounted ext4 file system. Other tests cover that.
      const mayGrow = ({ mountedAt, access, bytes }: KnownVolume): boolean =>
        mountedAt === undefined || access === 'block' || (bytes ?? 0n) >= 300n * MiB;
      const volume = pick([...model.volumes.values()].filter(mayGrow), random);
      if (volume === undefined) return false;
      const bytes = (volume.bytes ?? 16n * MiB) + 16n * MiB;
      await ask('POST', `/v1/volumes/${volume.id}/expand`, { bytes: String(bytes) }, hasStatus(200));
      volume.bytes = bytes;
      return true;
    },
    rename: async () => {
      const volume = pick(unmountedVolumes(model), random);
      if (volume === undefined) return false;
      const name = freshName();
      await ask('POST', `/v1/volumes/${volume.id}/rename`, { name }, hasStatus(200));
      volume.name = name;
      return true;
    },
    label: async () => {
      const volume = pick([...model.volumes.values()], random);
      if (volume === undefined) return false;
      await ask('PATCH', `/v1/volumes/${volume.id}`, { labels: { step: freshName() } }, hasStatus(200));
      return true;
    },
    adopt: async () => {
      const store = pick(stores, random);
      if (store === undefined) return false;
      const name = freshName();
      if (store.layout === 'image') {
        await copyFile(template, join(extras, name));
        await rename(join(extras, name), join(store.root, `${name}.img`));
      } else {
        await mkdir(join(store.root, name));
        await writeFile(join(store.root, name, 'marker'), contents(name));
      }
      await ask('POST', `/v1/stores/${store.name}/adopt`, { names: [name] }, hasStatus(200));
      const { body } = await ask('GET', `/v1/volumes/${store.name}..${name}`, undefined, hasStatus(200));
      return recordVolume(store, name, body, store.layout === 'image' ? 'template' : name);
    },
  };
}

function deleteActions({ ask, model, freshName, random, stores }: WorkerState): Actions {
  const remove = async (): Promise<boolean> => {
    const volume = pick(unmountedVolumes(model), random);
    if (volume === undefined) return false;
    await ask('DELETE', `/v1/volumes/${volume.id}`, undefined, orNotFoundOnRetry(200));
    model.volumes.delete(volume.id);
    const onDelete = stores.find((store) => store.name === volume.store)?.onDelete;
    if (onDelete === 'archive') model.trash.set(volume.id, volume);
    if (onDelete === 'retain') model.retained.set(volume.id, volume);
    return true;
  };
  return {
    remove,
    restore: async () => {
      const volume = pick([...model.trash.values()], random);
      if (volume === undefined) return false;
      const name = random() < 0.5 ? volume.name : freshName();
      await ask('POST', `/v1/trash/${volume.id}/restore`, { name }, hasStatus(200));
      model.trash.delete(volume.id);
      volume.name = name;
      model.volumes.set(volume.id, volume);
      return true;
    },
    purge: async () => {
      const volume = pick([...model.trash.values()], random);
      if (volume === undefined) return false;
      await ask('DELETE', `/v1/trash/${volume.id}`, undefined, orNotFoundOnRetry(204));
      model.trash.delete(volume.id);
      return true;
    },
    readopt: async () => {
      const volume = pick([...model.retained.values()], random);
      if (volume === undefined) return false;
      await ask('POST', `/v1/stores/${volume.store}/adopt`, { names: [volume.name] }, hasStatus(200));
      const { body } = await ask('GET', `/v1/volumes/${volume.store}..${volume.name}`, undefined, hasStatus(200));
      if (body['id'] !== volume.id) throw new Error(`${volume.name} was ${volume.id} and came back as ${body['id']}`);
      model.retained.delete(volume.id);
      model.volumes.set(volume.id, volume);
      return true;
    },
  };
}

function createMountActions({ ask, model, freshName, random, mounts }: WorkerState) {
  const mountedVolumes = (): KnownVolume[] =>
    [...model.volumes.values()].filter((volume) => volume.mountedAt !== undefined);
  async function mount(volume: KnownVolume, readOnly: boolean): Promise<void> {
    const target = join(mounts, freshName());
    await ask('POST', `/v1/volumes/${volume.id}/mount`, { target, readOnly }, hasStatus(200));
    volume.mountedAt = target;
    await checkContents(volume);
    if (readOnly) return await expectReadOnly(target);
    volume.marker ??= `of ${volume.id}`;
    await writeContents(volume);
  }
  async function unmount(volume: KnownVolume): Promise<void> {
    await checkContents(volume);
    await ask('POST', `/v1/volumes/${volume.id}/unmount`, { target: volume.mountedAt }, orNotFoundOnRetry(204));
    volume.mountedAt = undefined;
  }
  const actions: Actions = {
    mount: async () => {
      const volume = pick(unmountedVolumes(model), random);
      if (volume === undefined) return false;
      await mount(volume, volume.access === 'filesystem' && random() < 0.3);
      return true;
    },
    unmount: async () => {
      const volume = pick(mountedVolumes(), random);
      if (volume === undefined) return false;
      await unmount(volume);
      return true;
    },
  };
  return {
    actions,
    unmountAll: async (): Promise<void> => {
      for (const volume of mountedVolumes()) await unmount(volume);
    },
    /** The contents of an image are readable only through a mount. */
    checkImages: async (): Promise<void> => {
      for (const volume of unmountedVolumes(model).filter(
        (candidate) => candidate.layout === 'image' && candidate.marker !== undefined,
      )) {
        await mount(volume, volume.access === 'filesystem');
        await unmount(volume);
      }
    },
  };
}
