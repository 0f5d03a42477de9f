import { basename } from 'node:path';
import type { Scope } from '#base/log.ts';
import { createDirectoryClient } from '#clients/kinds/directory.ts';
import { makeStage, removeStage, sourceAt } from '#clients/kinds/staging.ts';
import { locatedOwn } from '#clients/mounter/paths.ts';
import type { Access, VolumeId } from '#core/model.ts';
import type { Client } from '#core/ports.ts';
import { ownSource } from '#core/staging.ts';
import { type FakeMounts, occupied } from './mounts.ts';

export interface FakeClients {
  readonly directory: Client<'directory'>;
  readonly loop: Client<'loop'>;
  readonly nfs: Client<'nfs'> & {
    /** What serves the mount that is at the path now ends. The mount table still shows the mount. */
    kill(at: string): Promise<void>;
  };
}

/** Clients over a mount table in memory. The one of directories is the real one: all that it does to the kernel, a mounter does. */
export function createFakeClients(mounts: FakeMounts): FakeClients {
  return {
    directory: createDirectoryClient({ mounter: mounts.mounter, readTable: mounts.readTable }),
    loop: createFakeLoopClient(mounts),
    nfs: createFakeNfsClient(mounts),
  };
}

/** A mount of an image is a file system whose source is the image's path. */
function createFakeLoopClient({ mounter, mount, readTable }: FakeMounts): Client<'loop'> {
  return {
    kind: 'loop',
    stage: async ({ path, filesystem, readOnly = false }, at) => {
      await sourceAt(path, 'file');
      const access: Access = filesystem === undefined ? 'block' : 'filesystem';
      const place = await makeStage(at, access);
      const there = (await readTable()).at(place);
      if (there?.source === path) return;
      if (there !== undefined) throw occupied(place, there);
      mount(place, { source: path, type: filesystem ?? 'devtmpfs', readOnly });
    },
    unstage: async (_source, at, scope) =>
      await takeAway(locatedOwn(at), scope, (place) => mounter.unmount(place, scope)),
    grow: async () => undefined,
  };
}

/** Each mount is a file system of its own, which something serves until it is killed. */
function createFakeNfsClient({ mounter, mount, readTable }: FakeMounts): FakeClients['nfs'] {
  let count = 0;
  const served = new Set<string>();

  /** What the mount table calls our mount there. Undefined: nothing is mounted there. */
  async function ours(at: string): Promise<string | undefined> {
    const there = (await readTable()).at(at);
    if (there === undefined) return undefined;
    if (!there.source.startsWith(ownSource(basename(at) as VolumeId))) throw occupied(at, there);
    return there.source;
  }

  return {
    kind: 'nfs',
    stage: async (_source, at, scope) => {
      const place = await makeStage(at, 'filesystem');
      const there = await ours(place);
      if (there !== undefined && served.has(there)) return;
      await mounter.detach(place, scope, { abort: true });
      const source = ownSource(basename(place) as VolumeId, `${++count}`);
      served.add(source);
      mount(place, { source, type: 'fuse.stowage' });
    },
    unstage: async (_source, at, scope, how) =>
      await takeAway(locatedOwn(at), scope, (place) =>
        how?.force === true ? mounter.detach(place, scope, { abort: true }) : mounter.unmount(place, scope),
      ),
    grow: async () => undefined,
    dead: async (staged) => {
      const table = await readTable();
      const isServed = (at: string): boolean => served.has(table.at(locatedOwn(at) ?? at)?.source ?? '');
      return staged.map(({ at }) => at).filter((at) => !isServed(at));
    },
    kill: async (at) => void served.delete((await ours(locatedOwn(at) ?? at)) ?? ''),
  };
}

async function takeAway(
  place: string | undefined,
  scope: Scope,
  unmount: (place: string) => Promise<void>,
): Promise<void> {
  if (place === undefined) return;
  await unmount(place);
  await removeStage(place, scope);
}
