import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Victim } from './victim.ts';

/** What we were told there is, by the answers we got. */
export interface Known {
  readonly id: string;
  readonly store: string;
  name: string;
  bytes: bigint | undefined;
  /** Written into the volume when it was mounted; must be there ever after. */
  marker: string | undefined;
  mountedAt: string | undefined;
}

export interface Model {
  readonly volumes: Map<string, Known>;
  readonly trash: Map<string, Known>;
}

export interface Store {
  readonly name: string;
  readonly root: string;
  readonly layout: 'directory' | 'image';
  readonly archive: boolean;
}

const MiB = 1024n * 1024n;

/** A source of chance that can be repeated from its seed (mulberry32). */
export function chance(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

/** One client with volumes of its own: does a random thing, checks the answer, repeats what a kill interrupted. */
export function createWorker(about: {
  readonly name: string;
  readonly victim: Victim;
  readonly stores: readonly Store[];
  readonly mounts: string;
  readonly random: () => number;
}) {
  const { victim, random } = about;
  const model: Model = { volumes: new Map(), trash: new Map() };
  let count = 0;

  const pick = <T>(from: readonly T[]): T | undefined => from[Math.floor(random() * from.length)];
  const unmounted = (): Known[] => [...model.volumes.values()].filter((volume) => volume.mountedAt === undefined);
  const freshName = (): string => `${about.name}-${count++}`;
  const storeOf = (name: string): Store => {
    const store = about.stores.find((one) => one.name === name);
    if (store === undefined) throw new Error(`no store ${name}`);
    return store;
  };

  async function call(
    method: string,
    path: string,
    body: unknown,
    allowed: readonly number[],
  ): Promise<{ status: number; body: Record<string, unknown>; repeated: boolean }> {
    const key = `${about.name}-${Math.floor(random() * 1e15)}`;
    const answer = await victim.call(method, path, body, key);
    if (!allowed.includes(answer.status) && !(answer.repeated && answer.status === 404 && allowed.includes(-404))) {
      throw new Error(
        `${method} ${path} ${JSON.stringify(body)} gave ${answer.status}${answer.repeated ? ' when repeated' : ''}: ${JSON.stringify(answer.body)}`,
      );
    }
    return { status: answer.status, body: (answer.body ?? {}) as Record<string, unknown>, repeated: answer.repeated };
  }

  /** Each says whether there was anything to do. */
  const actions: Record<string, () => Promise<boolean>> = {
    create: async () => {
      const store = pick(about.stores);
      if (store === undefined) return false;
      const name = freshName();
      const bytes = store.layout === 'image' ? (random() < 0.3 ? 300n : 16n) * MiB : undefined;
      const { body } = await call(
        'POST',
        '/v1/volumes',
        { store: store.name, name, ...(bytes && { bytes: String(bytes) }) },
        [201],
      );
      model.volumes.set(String(body['id']), {
        id: String(body['id']),
        store: store.name,
        name,
        bytes,
        marker: undefined,
        mountedAt: undefined,
      });
      return true;
    },
    expand: async () => {
      // ext4 cannot grow while mounted on every kernel; that has a test of its own.
      const volume = pick(
        [...model.volumes.values()].filter((one) => one.mountedAt === undefined || (one.bytes ?? 0n) >= 300n * MiB),
      );
      if (volume === undefined) return false;
      const bytes = (volume.bytes ?? 16n * MiB) + 16n * MiB;
      await call('POST', `/v1/volumes/${volume.id}/expand`, { bytes: String(bytes) }, [200]);
      volume.bytes = bytes;
      return true;
    },
    rename: async () => {
      const volume = pick(unmounted());
      if (volume === undefined) return false;
      const name = freshName();
      await call('POST', `/v1/volumes/${volume.id}/rename`, { name }, [200]);
      volume.name = name;
      return true;
    },
    label: async () => {
      const volume = pick([...model.volumes.values()]);
      if (volume === undefined) return false;
      await call('PATCH', `/v1/volumes/${volume.id}`, { labels: { step: String(count) } }, [200]);
      return true;
    },
    remove: async () => {
      const volume = pick(unmounted());
      if (volume === undefined) return false;
      await call('DELETE', `/v1/volumes/${volume.id}`, undefined, [200, -404]);
      model.volumes.delete(volume.id);
      if (storeOf(volume.store).archive) model.trash.set(volume.id, volume);
      return true;
    },
    restore: async () => {
      const volume = pick([...model.trash.values()]);
      if (volume === undefined) return false;
      const name = random() < 0.5 ? volume.name : freshName();
      await call('POST', `/v1/trash/${volume.id}/restore`, { name }, [200]);
      model.trash.delete(volume.id);
      volume.name = name;
      model.volumes.set(volume.id, volume);
      return true;
    },
    purge: async () => {
      const volume = pick([...model.trash.values()]);
      if (volume === undefined) return false;
      await call('DELETE', `/v1/trash/${volume.id}`, undefined, [204, -404]);
      model.trash.delete(volume.id);
      return true;
    },
    adopt: async () => {
      const store = pick(about.stores.filter((one) => one.layout === 'directory'));
      if (store === undefined) return false;
      const name = freshName();
      await mkdir(join(store.root, name));
      await writeFile(join(store.root, name, 'marker'), name);
      await call('POST', `/v1/stores/${store.name}/adopt`, {}, [200]);
      const { body } = await call('GET', `/v1/volumes/${store.name}..${name}`, undefined, [200]);
      model.volumes.set(String(body['id']), {
        id: String(body['id']),
        store: store.name,
        name,
        bytes: undefined,
        marker: name,
        mountedAt: undefined,
      });
      return true;
    },
    mount: async () => {
      const volume = pick(unmounted());
      if (volume === undefined) return false;
      const target = join(about.mounts, `${about.name}-${count++}`);
      await call('POST', `/v1/volumes/${volume.id}/mount`, { target }, [200]);
      volume.mountedAt = target;
      if (volume.marker !== undefined) await checkMarker(volume);
      volume.marker ??= `of ${volume.id}`;
      await writeFile(join(target, 'marker'), volume.marker);
      return true;
    },
    unmount: async () => {
      const volume = pick([...model.volumes.values()].filter((one) => one.mountedAt !== undefined));
      if (volume?.mountedAt === undefined) return false;
      await checkMarker(volume);
      await call('POST', `/v1/volumes/${volume.id}/unmount`, { target: volume.mountedAt }, [204, -404]);
      volume.mountedAt = undefined;
      return true;
    },
  };

  const weights: readonly (keyof typeof actions)[] = [
    'create',
    'create',
    'create',
    'create',
    'expand',
    'rename',
    'label',
    'remove',
    'remove',
    'restore',
    'purge',
    'adopt',
    'mount',
    'mount',
    'unmount',
    'unmount',
  ];

  return {
    model,
    /** Does one thing that changes something, and says what it was. */
    step: async (): Promise<string> => {
      for (;;) {
        const kind = pick(weights) ?? 'create';
        if (await actions[kind]?.()) return kind;
      }
    },
    unmountAll: async (): Promise<void> => {
      while ([...model.volumes.values()].some((volume) => volume.mountedAt !== undefined)) await actions['unmount']?.();
    },
  };
}

async function checkMarker(volume: Known): Promise<void> {
  const found = await readFile(join(volume.mountedAt ?? '', 'marker'), 'utf8');
  if (found !== volume.marker) throw new Error(`volume ${volume.name} holds '${found}', not '${volume.marker}'`);
}
