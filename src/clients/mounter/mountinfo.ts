import { closeSync, openSync, readSync } from 'node:fs';
import { open } from 'node:fs/promises';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { StowageError } from '#core/errors.ts';
import type { MountPoint } from '#core/ports.ts';
import { createLineParser } from './line-parser.ts';
import { type MountWatch, watchMounts } from './mount-watch.ts';

/** One line of /proc/self/mountinfo (proc_pid_mountinfo(5)). */
export interface MountEntry extends MountPoint {
  readonly id: number;
  readonly parent: number;
  /** The options of this mount; those of the file system are in `superOptions`. */
  readonly options: readonly string[];
  readonly superOptions: readonly string[];
  /** `shared:N`, `master:N`, `propagate_from:N`, `unbindable`. */
  readonly propagation: readonly string[];
  /** This mount is read-only, whatever the file system is. `readOnly` is true when either is. */
  readonly mountReadOnly: boolean;
}

/** What a path shows: equal for all bind mounts of the same file or folder. */
export type BindIdentity = Pick<MountPoint, 'device' | 'root'>;

export interface MountTable {
  /** All mounts, including those hidden by others. */
  readonly entries: readonly MountEntry[];
  /** The mounts that a path leads to. */
  visible(): readonly MountEntry[];
  /** The mount at exactly this path, unless another mount hides it. */
  mountAt(path: string): MountEntry | undefined;
  /** The mount through which the path is seen. */
  mountContaining(path: string): MountEntry | undefined;
  mountsBelow(path: string): readonly MountEntry[];
  /** What a bind mount of the path would show. */
  bindIdentity(path: string): BindIdentity | undefined;
  /** The file or folder of the parent mount on which the entry is mounted: equal for all copies that propagation makes of one mount. */
  mountPointIdentity(entry: MountEntry): BindIdentity | undefined;
}

const maxTableBytes = 64 * 1024 * 1024;

export async function readMountTable(file = '/proc/self/mountinfo'): Promise<MountTable> {
  return mountTable(parseMountinfo(await readBounded(file, maxTableBytes)));
}

/**
 * A reader for frequent use; one mount operation reads the table about ten times. Reads synchronously, since no disk is involved. A table
 * that was read in this turn of the event loop is read again only if the kernel reports that a mount was added or removed. Across turns it
 * is always read: a renamed folder moves the mounts in it, and the kernel does not report that.
 *
 * After a change the table is read at the end of the turn, once for all callers. Each of many concurrent mounts changes the table:
 * reading it for each took a third of the time of fifty mounts.
 */
export function createTableReader(file = '/proc/self/mountinfo'): () => Promise<MountTable> {
  let buffer = Buffer.allocUnsafe(65_536);
  let lastTable: MountTable | undefined;
  const parse = createLineParser(parseLine);
  let isFromThisTurn = false;
  let tableWatch: MountWatch | undefined;
  let pendingRead: Promise<MountTable> | undefined;

  const endTurn = (): void => {
    isFromThisTurn = false;
  };

  function readBytes(): Buffer {
    const fd = openSync(file, 'r');
    try {
      let size = 0;
      for (let count = -1; count !== 0; size += count) {
        if (size === buffer.length) buffer = doubleBuffer(buffer, file);
        count = readSync(fd, buffer, size, buffer.length - size, null);
      }
      return buffer.subarray(0, size);
    } finally {
      closeSync(fd);
    }
  }

  /** If the table cannot be read, drop the cached one: the kernel reports each change only once. */
  function readOrDropCache(): Buffer {
    try {
      return readBytes();
    } catch (thrown) {
      lastTable = undefined;
      throw thrown;
    }
  }

  function readNow(): MountTable {
    if (!isFromThisTurn) setImmediate(endTurn);
    isFromThisTurn = true;
    const entries = parse(readOrDropCache());
    if (lastTable?.entries !== entries) lastTable = mountTable(entries);
    return lastTable;
  }

  async function readAtTurnEnd(watch: MountWatch): Promise<MountTable> {
    await nextTurn();
    // Later callers expect later changes too, so they start a new read.
    pendingRead = undefined;
    watch.isChanged();
    return readNow();
  }

  return async () => {
    if (pendingRead !== undefined) return await pendingRead;
    tableWatch ??= watchMounts(file);
    // Poll before reading: a change in between is then reported the next time.
    const isChanged = tableWatch.isChanged();
    if (lastTable === undefined || !isFromThisTurn) return readNow();
    if (!isChanged) return lastTable;
    pendingRead = readAtTurnEnd(tableWatch);
    return await pendingRead;
  };
}

function doubleBuffer(full: Buffer, file: string): Buffer<ArrayBuffer> {
  if (full.length >= maxTableBytes) throw tooLarge(file, maxTableBytes);
  const next = Buffer.allocUnsafe(2 * full.length);
  full.copy(next);
  return next;
}

/** Reads files of /proc, whose size is unknown in advance. */
export async function readBounded(file: string, limit: number): Promise<string> {
  await using handle = await open(file, 'r');
  const chunks: Buffer[] = [];
  for (let size = 0; ; ) {
    const { bytesRead, buffer } = await handle.read(Buffer.allocUnsafe(65_536), 0, 65_536);
    if (bytesRead === 0) return Buffer.concat(chunks).toString();
    size += bytesRead;
    if (size > limit) throw tooLarge(file, limit);
    chunks.push(buffer.subarray(0, bytesRead));
  }
}

function tooLarge(file: string, limit: number): StowageError {
  return new StowageError(`${file} holds more than ${limit} bytes`, {
    code: 'exhausted',
    reason: 'system-table-too-large',
    action: 'A program on this machine keeps creating mounts: find them with findmnt, and stop that program.',
  });
}

export function parseMountinfo(text: string): readonly MountEntry[] {
  return text.split('\n').flatMap((line) => parseLine(line) ?? []);
}

function parseLine(line: string): MountEntry | undefined {
  // Split at single spaces: an empty source is an empty field.
  const fields = line.split(' ');
  const dash = fields.indexOf('-', 6);
  const [id, parent, device, root, at, options] = fields;
  const [type, source, superOptions] = dash === -1 ? [] : fields.slice(dash + 1);
  if (id === undefined || parent === undefined || device === undefined || root === undefined || at === undefined)
    return undefined;
  if (options === undefined || type === undefined || source === undefined) return undefined;
  const mountOptions = options.split(',');
  const fileSystemOptions = (superOptions ?? '').split(',');
  return {
    id: Number(id),
    parent: Number(parent),
    device,
    root: unescaped(root),
    at: unescaped(at),
    type: unescaped(type),
    source: unescaped(source),
    options: mountOptions,
    superOptions: fileSystemOptions,
    propagation: fields.slice(6, dash),
    mountReadOnly: mountOptions.includes('ro'),
    readOnly: mountOptions.includes('ro') || fileSystemOptions.includes('ro'),
  };
}

/** The kernel writes space, tab, newline, backslash (and # in sources) as three octal digits. */
function unescaped(field: string): string {
  return field.replace(/\\([0-7]{3})/g, (_, digits: string) => String.fromCharCode(Number.parseInt(digits, 8)));
}

export function mountTable(entries: readonly MountEntry[]): MountTable {
  const byId = new Map(entries.map((entry) => [entry.id, entry]));
  const mountsByParent = new Map<number, Map<string, MountEntry>>();
  for (const entry of entries) {
    if (entry.parent === entry.id) continue;
    const mounts = mountsByParent.get(entry.parent) ?? new Map<string, MountEntry>();
    mountsByParent.set(entry.parent, mounts.set(entry.at, entry));
  }
  const rootMount = entries.find((entry) => entry.at === '/' && (entry.parent === entry.id || !byId.has(entry.parent)));

  // Walks a path as the kernel does: from the root mount to the first mount on the path, and on from there. A mount
  // whose parent was mounted over later is hidden, and the walk does not reach it.
  function mountContaining(path: string): MountEntry | undefined {
    let current = rootMount;
    // The kernel's table is a tree; the bound prevents an endless loop on a table that is not.
    for (let step = 0; step < entries.length; step++) {
      const mounts = current && mountsByParent.get(current.id);
      const next = mounts && firstMountOn(path, mounts);
      if (next === undefined) return current;
      current = next;
    }
    return current;
  }

  let visible: readonly MountEntry[] | undefined;
  return {
    entries,
    visible: () => {
      visible ??= entries.filter((entry) => mountContaining(entry.at) === entry);
      return visible;
    },
    mountContaining,
    mountAt: (path) => {
      const entry = mountContaining(path);
      return entry?.at === path ? entry : undefined;
    },
    mountsBelow: (path) => entries.filter((entry) => entry.at !== path && isAtOrBelow(entry.at, path)),
    bindIdentity: (path) => identityThrough(mountContaining(path), path),
    mountPointIdentity: (entry) => identityThrough(byId.get(entry.parent), entry.at),
  };
}

function identityThrough(entry: MountEntry | undefined, path: string): BindIdentity | undefined {
  if (entry === undefined) return undefined;
  const rest = path === entry.at ? '' : path.slice(entry.at === '/' ? 0 : entry.at.length);
  return { device: entry.device, root: `${entry.root === '/' ? '' : entry.root}${rest}` || '/' };
}

/** Tries `/`, `/a` and `/a/b` for `/a/b`. */
function firstMountOn(path: string, mounts: ReadonlyMap<string, MountEntry>): MountEntry | undefined {
  const top = mounts.get('/');
  if (top !== undefined) return top;
  for (let end = 0; end !== path.length; ) {
    const slash = path.indexOf('/', end + 1);
    end = slash === -1 ? path.length : slash;
    const found = mounts.get(path.slice(0, end));
    if (found !== undefined) return found;
  }
  return undefined;
}

export const isSameBind = (one: BindIdentity, other: BindIdentity | undefined): boolean =>
  one.device === other?.device && one.root === other.root;

export function isAtOrBelow(path: string, folder: string): boolean {
  return path === folder || path.startsWith(folder === '/' ? '/' : `${folder}/`);
}
