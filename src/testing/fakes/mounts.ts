import { existsSync, lstatSync, readdirSync, realpathSync, rmSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { unlessAborted } from '#base/aborted.ts';
import type { Scope } from '#base/log.ts';
import { isSameBind, type MountEntry, type MountTable, mountTable } from '#clients/mounter/mountinfo.ts';
import { reap } from '#clients/mounter/reap.ts';
import { createTargets } from '#clients/mounter/targets.ts';
import { type ReasonWith, StowageError } from '#core/errors.ts';
import type { Mounter } from '#core/ports.ts';

/** A file system that a test mounts. */
export interface FileSystem {
  /** The source in the mount table. */
  readonly source: string;
  readonly type: string;
  readonly readOnly?: boolean;
}

/**
 * A mount table in memory over real folders. It records which file system is mounted where, but a path below a mount
 * point still shows the folder on the disk. Tests that read files of a mounted volume need real mounts.
 */
export interface FakeMounts {
  readonly mounter: Mounter;
  readTable(): Promise<MountTable>;
  /** Mounts a new file system and returns its device, like a client or a user. */
  mount(at: string, what: FileSystem): string;
  /** Unmounts the file system at that path, like another program, even if it is in use. */
  remove(at: string): void;
  /** Works in the mount that is now at the path, like a program, until the returned object is disposed of. */
  use(at: string): Disposable;
  /** Blocks calls on that path until the returned object is disposed of or their signal is aborted. */
  stall(at: string): StalledCall;
}

export interface StalledCall extends Disposable {
  /** Resolves when the first call waits. */
  readonly reached: Promise<void>;
}

export interface FakeMountsOptions {
  /** Paths where mounting is forbidden. */
  readonly forbidden?: () => readonly string[];
  /** The folder inside one of those paths where container engines find volumes. Mounting is allowed there. */
  readonly published?: string;
}

/** The root file system. Its device and type differ from those of every file system that a test mounts. */
const rootFileSystem: MountEntry = {
  id: 1,
  parent: 1,
  device: '0:1',
  root: '/',
  at: '/',
  source: '/dev/root',
  type: 'ext4',
  options: ['rw'],
  superOptions: ['rw'],
  propagation: [],
  mountReadOnly: false,
  readOnly: false,
};

/** The fake has no loop devices. */
const loops = {
  sysBlock: '/nowhere',
  findLoops: async () => [],
  backingFile: async () => undefined,
  loopDevices: { detach: async () => false },
};

export function createFakeMounts({ forbidden = () => [], published }: FakeMountsOptions = {}): FakeMounts {
  let entries: readonly MountEntry[] = [rootFileSystem];
  let count = 1;
  const users = new Map<number, number>();
  const stalls = new Map<string, (scope: Scope) => Promise<void>>();
  const table = (): MountTable => mountTable(entries);
  const readTable = async (): Promise<MountTable> => table();

  function add(
    at: string,
    about: Pick<MountEntry, 'device' | 'root' | 'source' | 'type'>,
    flags: readonly string[],
  ): void {
    const mountReadOnly = flags.includes('ro');
    const entry: MountEntry = {
      ...about,
      at,
      id: ++count,
      parent: table().mountContaining(at)?.id ?? 1,
      options: flags,
      superOptions: [],
      propagation: [],
      mountReadOnly,
      readOnly: mountReadOnly,
    };
    entries = [...entries, entry];
  }

  /** Removes the entry and all mounts inside. */
  function drop(entry: MountEntry): void {
    for (const child of entries.filter(({ parent, id }) => parent === entry.id && id !== parent)) drop(child);
    entries = entries.filter((one) => one !== entry);
  }

  const isBusy = ({ id }: MountEntry): boolean =>
    (users.get(id) ?? 0) > 0 || entries.some((one) => one.parent === id && one.id !== id);

  async function bind(from: string, at: string, { readOnly }: { readonly readOnly: boolean }): Promise<void> {
    const path = existing(from, located(from) ?? from);
    const there = table().mountAt(at);
    const shown = table().bindIdentity(path);
    const isFolder = lstatSync(path).isDirectory();
    const flags = [readOnly ? 'ro' : 'rw', ...(isFolder ? ['nosuid', 'nodev'] : [])];
    if (there !== undefined) {
      if (!isSameBind(there, shown)) throw occupied(at, there);
      if (there.mountReadOnly && !readOnly)
        throw conflict('mounted-read-only', `the volume is already mounted read-only at ${at}`, 'Unmount it first.');
      if (flags.every((flag) => there.options.includes(flag))) return;
      await unmount(at);
    }
    const source = table().mountContaining(path);
    if (source?.readOnly === true && !readOnly)
      throw conflict('source-read-only', `${from} is on a read-only file system`, 'Mount the volume read-only.');
    if (existing(at, located(at) ?? at) !== at || lstatSync(at).isSymbolicLink())
      throw conflict('path-moved', `${at} now leads elsewhere`, 'Repeat it.');
    if (lstatSync(at).isDirectory() !== isFolder)
      throw conflict('target-kind', `${from} cannot be mounted at ${at}`, 'Give a path of the same kind.');
    if (shown === undefined || source === undefined) throw new Error(`nothing is seen at ${from}`);
    add(at, { ...shown, source: source.source, type: source.type }, flags);
  }

  async function unmount(at: string): Promise<void> {
    const there = table().mountAt(at);
    if (there === undefined) return;
    if (isBusy(there)) {
      throw new StowageError(`${at} cannot be unmounted: it is in use`, {
        code: 'in-use',
        reason: 'mount-busy',
        action: 'End what uses it, then repeat.',
      });
    }
    drop(there);
  }

  async function detach(at: string): Promise<void> {
    const there = table().mountAt(at);
    if (there !== undefined) drop(there);
  }

  async function closeShared(folder: string): Promise<void> {
    if (table().mountAt(folder)?.source !== 'stowage' || table().mountsBelow(folder).length > 0) return;
    await unmount(folder);
    // The files of a tmpfs disappear with it.
    for (const name of readdirSync(folder)) rmSync(join(folder, name), { recursive: true });
  }

  const targets = createTargets({
    accessPath: (_at, work) => work(),
    holdLocal: () => undefined,
    readTable,
    forbiddenFolders: forbidden,
    publishedFolder: published,
  });
  const verbs: Omit<Mounter, 'unable'> = {
    bind,
    unmount,
    detach,
    openShared: async (folder) => {
      if (table().mountAt(folder) === undefined) fakes.mount(folder, { source: 'stowage', type: 'tmpfs' });
    },
    closeShared,
    list: async () => table().visible(),
    isMounted: async (at) => table().mountAt(at) !== undefined,
    ...targets,
    reap: async (mountsFolder, known, scope) =>
      await reap(
        { ...loops, readTable, unmount, removeTarget: targets.removeTarget, storeRoots: () => [] },
        mountsFolder,
        known,
        scope,
      ),
  };

  /** The path is the first or the second argument. The scope follows it. */
  async function stalled(args: readonly unknown[]): Promise<void> {
    const scope = args.find(isScope);
    scope?.signal.throwIfAborted();
    for (const given of args) if (typeof given === 'string' && scope) await stalls.get(given)?.(scope);
  }

  const mounter = {
    unable: undefined,
    ...Object.fromEntries(
      Object.entries(verbs).map(([name, verb]) => [
        name,
        async (...args: readonly unknown[]): Promise<unknown> => {
          await stalled(args);
          return await (verb as (...given: readonly unknown[]) => Promise<unknown>)(...args);
        },
      ]),
    ),
  } as Mounter;

  const fakes: FakeMounts = {
    mounter,
    readTable,
    mount: (at, { source, type, readOnly = false }) => {
      const device = `0:${count + 100}`;
      add(at, { device, root: '/', source, type }, [readOnly ? 'ro' : 'rw', 'nosuid', 'nodev']);
      return device;
    },
    remove: (at) => {
      const there = table().mountAt(at);
      if (there === undefined) throw new Error(`nothing is mounted at ${at}`);
      drop(there);
    },
    use: (at) => {
      const id = table().mountAt(at)?.id;
      if (id === undefined) throw new Error(`nothing is mounted at ${at}`);
      users.set(id, (users.get(id) ?? 0) + 1);
      return { [Symbol.dispose]: () => users.set(id, (users.get(id) ?? 0) - 1) };
    },
    stall: (at) => {
      const [reached, over] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
      stalls.set(at, async ({ signal }) => {
        reached.resolve();
        await unlessAborted(over.promise, signal);
      });
      return {
        reached: reached.promise,
        [Symbol.dispose]: () => {
          stalls.delete(at);
          over.resolve();
        },
      };
    },
  };
  return fakes;
}

const isScope = (given: unknown): given is Scope => typeof given === 'object' && given !== null && 'signal' in given;

/** The path with the symbolic links of its parent resolved, as in the kernel's mount table. */
function located(path: string): string | undefined {
  try {
    return join(realpathSync(dirname(path)), basename(path));
  } catch {
    return undefined;
  }
}

function existing(path: string, place: string): string {
  if (existsSync(place)) return place;
  throw new StowageError(`${path} does not exist`, {
    code: 'not-found',
    reason: 'path-missing',
    action: 'Give a path that exists.',
  });
}

const conflict = (reason: ReasonWith<'conflict'>, message: string, action: string): StowageError =>
  new StowageError(message, { code: 'conflict', reason, action });

/** Fake clients throw this error, too. */
export function occupied(place: string, { source, type }: Pick<MountEntry, 'source' | 'type'>): StowageError {
  const what = `something else is mounted at ${place}: ${source} (${type})`;
  return conflict('mount-occupied', what, `Unmount it: umount ${place}`);
}
