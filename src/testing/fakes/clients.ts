import type { Scope } from '#base/log.ts';
import { createDirectoryClient } from '#clients/kinds/directory.ts';
import { loopSources } from '#clients/kinds/loop-sources.ts';
import { nfsMountsOf } from '#clients/kinds/nfs-mounts.ts';
import { nfsSources } from '#clients/kinds/nfs-sharing.ts';
import { locateSource, makeStage, removeStage } from '#clients/kinds/staging.ts';
import { resolveOwnParents } from '#clients/mounter/paths.ts';
import type { ClientTable } from '#core/clients.ts';
import { StowageError } from '#core/errors.ts';
import type { Access, VolumeId } from '#core/model.ts';
import type { Client } from '#core/ports.ts';
import { ownSource } from '#core/volume-staging.ts';
import { type FakeMounts, occupied } from './mounts.ts';

export interface FakeClients extends ClientTable {
  readonly nfs: Client<'nfs'> & {
    /** Kills the process that serves the mount at the path. The mount table still shows the mount. */
    kill(at: string): Promise<void>;
    /** Gives the mount at the path dirty data that no server accepts, until the returned object is disposed of. */
    hang(at: string): Promise<AsyncDisposable>;
    /** Keeps the mount at the path served after an unmount, until the returned object is disposed of. */
    copy(at: string): Promise<AsyncDisposable>;
  };
}

/**
 * Fake clients on a mount table in memory. The directory client is the real one: it changes mounts only through its
 * mounter.
 */
export function createFakeClients(mounts: FakeMounts): FakeClients {
  return {
    directory: createDirectoryClient({ mounter: mounts.mounter, readTable: mounts.readTable }),
    loop: createFakeLoopClient(mounts),
    nfs: createFakeNfsClient(mounts),
  };
}

/** Each image is a file system whose source in the mount table is the path of the image. */
function createFakeLoopClient({ mounter, mount, readTable }: FakeMounts): Client<'loop'> {
  return {
    kind: 'loop',
    nodeLocal: true,
    outlivesMount: true,
    sourceFixedWhileStaged: false,
    ...loopSources,
    stage: async ({ path, filesystem, readOnly = false }, { path: at }, { signal }) => {
      signal.throwIfAborted();
      await locateSource(path, 'file');
      const access: Access = filesystem === undefined ? 'block' : 'filesystem';
      const place = await makeStage(at, access);
      const there = (await readTable()).mountAt(place);
      if (there?.source === path) return;
      if (there !== undefined) throw occupied(place, there);
      mount(place, { source: path, type: filesystem ?? 'devtmpfs', readOnly });
    },
    unstage: async (_source, target, scope) =>
      await removeMount(resolveOwnParents(target.path), scope, (place) => mounter.unmount(place, scope)),
    mountsOf: async ({ path }) => {
      const { entries } = await readTable();
      const devices = new Set(entries.filter((entry) => entry.source === path).map(({ device }) => device));
      return entries.filter(({ device }) => devices.has(device)).map(({ at }) => at);
    },
    grow: async () => undefined,
  };
}

/** Each mount is a file system of its own. It is served until a test kills its process. */
function createFakeNfsClient({ mounter, mount, readTable }: FakeMounts): FakeClients['nfs'] {
  let count = 0;
  const served = new Set<string>();
  const [hung, copied] = [new Set<string>(), new Set<string>()];

  const sourceOf = async (at: string): Promise<string> =>
    (await readTable()).mountAt(resolveOwnParents(at) ?? at)?.source ?? '';

  async function whileIn(marked: Set<string>, at: string): Promise<AsyncDisposable> {
    const source = await sourceOf(at);
    marked.add(source);
    return { [Symbol.asyncDispose]: async () => void marked.delete(source) };
  }

  /** The source of the volume's mount in the mount table. Undefined: nothing is mounted there. */
  async function ours(at: string, volumeId: VolumeId): Promise<string | undefined> {
    const there = (await readTable()).mountAt(at);
    if (there === undefined) return undefined;
    if (!there.source.startsWith(ownSource(volumeId))) throw occupied(at, there);
    return there.source;
  }

  return {
    kind: 'nfs',
    nodeLocal: false,
    outlivesMount: false,
    sourceFixedWhileStaged: false,
    ...nfsSources,
    stage: async (_source, { path, volumeId }, scope) => {
      scope.signal.throwIfAborted();
      const place = await makeStage(path, 'filesystem');
      const there = await ours(place, volumeId);
      if (there !== undefined && served.has(there)) return;
      await mounter.detach(place, scope, { abort: true });
      const source = ownSource(volumeId, `${++count}`);
      served.add(source);
      mount(place, { source, type: 'fuse.stowage' });
    },
    unstage: async (_source, target, scope, how) =>
      await removeMount(resolveOwnParents(target.path), scope, (place) =>
        how?.force === true ? mounter.detach(place, scope, { abort: true }) : mounter.unmount(place, scope),
      ),
    findDeadMounts: async (staged) => {
      const table = await readTable();
      const isServed = (at: string): boolean => served.has(table.mountAt(resolveOwnParents(at) ?? at)?.source ?? '');
      return staged.map(({ target }) => target.path).filter((at) => !isServed(at));
    },
    mountsOf: async (source, { path }) => nfsMountsOf(source, path, await readTable()),
    flush: async (_source, { path }) => {
      if (hung.has(await sourceOf(path))) throw unwritten;
    },
    isServedElsewhere: async (_source, { path, volumeId }) => {
      const here = await sourceOf(path);
      return [...copied].some((source) => source.startsWith(ownSource(volumeId)) && source !== here);
    },
    daemon: { key: () => '', findProblem: async () => undefined },
    kill: async (at) => void served.delete(await sourceOf(at)),
    hang: (at) => whileIn(hung, at),
    copy: (at) => whileIn(copied, at),
  };
}

const unwritten = new StowageError('a file has unwritten data that the server does not accept', {
  code: 'busy',
  reason: 'data-unwritten',
  action: 'Wait until the server answers again.',
});

async function removeMount(
  place: string | undefined,
  scope: Scope,
  unmount: (place: string) => Promise<void>,
): Promise<void> {
  if (place === undefined) return;
  await unmount(place);
  await removeStage(place, scope);
}
