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
  at(path: string): MountEntry | undefined;
  /** The mount through which the path is seen. */
  holding(path: string): MountEntry | undefined;
  below(path: string): readonly MountEntry[];
  /** What a bind mount of the path would show. */
  shown(path: string): BindIdentity | undefined;
  /** What its mount point shows on the parent mount: equal for the copies that propagation makes of one mount. */
  place(entry: MountEntry): BindIdentity | undefined;
}

const sizeLimit = 64 * 1024 * 1024;

export async function readMountTable(file = '/proc/self/mountinfo'): Promise<MountTable> {
  return mountTable(parseMountinfo(await readBounded(file, sizeLimit)));
}

/**
 * A reader for frequent use; one mount operation reads the table about ten times. Reads synchronously, since no disk is involved. A table
 * that was read in this turn of the event loop is read again only if the kernel reports that a mount was added or removed. Across turns it
 * is always read: a renamed folder moves the mounts in it, and the kernel does not report that.
 *
 * After a change the table is read at the end of the turn, once for all callers. Of many concurrent mounts each changes the table, which
 * grows with them: reading it for each took a third of the time of fifty mounts.
 */
export function createTableReader(file = '/proc/self/mountinfo'): () => Promise<MountTable> {
  let into = Buffer.allocUnsafe(65_536);
  let last: MountTable | undefined;
  const parse = createLineParser(parseLine);
  let isOfThisTurn = false;
  let watched: MountWatch | undefined;
  let coming: Promise<MountTable> | undefined;

  const endTurn = (): void => {
    isOfThisTurn = false;
  };

  function read(): Buffer {
    const fd = openSync(file, 'r');
    try {
      let size = 0;
      for (let count = -1; count !== 0; size += count) {
        if (size === into.length) into = larger(into, file);
        count = readSync(fd, into, size, into.length - size, null);
      }
      return into.subarray(0, size);
    } finally {
      closeSync(fd);
    }
  }

  /** If the table cannot be read, drop the cached one: the kernel reports each change only once. */
  function readOrForget(): Buffer {
    try {
      return read();
    } catch (thrown) {
      last = undefined;
      throw thrown;
    }
  }

  function readNow(): MountTable {
    if (!isOfThisTurn) setImmediate(endTurn);
    isOfThisTurn = true;
    const entries = parse(readOrForget());
    if (last?.entries !== entries) last = mountTable(entries);
    return last;
  }

  async function readSoon(watch: MountWatch): Promise<MountTable> {
    await nextTurn();
    // Later callers expect later changes too, so they start a new read.
    coming = undefined;
    watch.isChanged();
    return readNow();
  }

  return async () => {
    if (coming !== undefined) return await coming;
    watched ??= watchMounts(file);
    // Poll before reading: a change in between is then reported the next time.
    const isChanged = watched.isChanged();
    if (last === undefined || !isOfThisTurn) return readNow();
    if (!isChanged) return last;
    coming = readSoon(watched);
    return await coming;
  };
}

function larger(full: Buffer, file: string): Buffer<ArrayBuffer> {
  if (full.length >= sizeLimit) throw tooLarge(file, sizeLimit);
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
  const own = options.split(',');
  const ofFileSystem = (superOptions ?? '').split(',');
  return {
    id: Number(id),
    parent: Number(parent),
    device,
    root: unescaped(root),
    at: unescaped(at),
    type: unescaped(type),
    source: unescaped(source),
    options: own,
    superOptions: ofFileSystem,
    propagation: fields.slice(6, dash),
    mountReadOnly: own.includes('ro'),
    readOnly: own.includes('ro') || ofFileSystem.includes('ro'),
  };
}

/** The kernel writes space, tab, newline, backslash (and # in sources) as three octal digits. */
function unescaped(field: string): string {
  return field.replace(/\\([0-7]{3})/g, (_, digits: string) => String.fromCharCode(Number.parseInt(digits, 8)));
}

export function mountTable(entries: readonly MountEntry[]): MountTable {
  const byId = new Map(entries.map((entry) => [entry.id, entry]));
  const over = new Map<number, Map<string, MountEntry>>();
  for (const entry of entries) {
    if (entry.parent === entry.id) continue;
    const mounts = over.get(entry.parent) ?? new Map<string, MountEntry>();
    over.set(entry.parent, mounts.set(entry.at, entry));
  }
  const start = entries.find((entry) => entry.at === '/' && (entry.parent === entry.id || !byId.has(entry.parent)));

  // Walks a path as the kernel does: from the root mount to the first mount on the path, and on from there. A mount
  // whose parent was mounted over later is hidden, and the walk does not reach it.
  function holding(path: string): MountEntry | undefined {
    let here = start;
    // The kernel's table is a tree; the bound prevents an endless loop on a table that is not.
    for (let step = 0; step < entries.length; step++) {
      const mounts = here && over.get(here.id);
      const next = mounts && firstOn(path, mounts);
      if (next === undefined) return here;
      here = next;
    }
    return here;
  }

  let visible: readonly MountEntry[] | undefined;
  return {
    entries,
    visible: () => {
      visible ??= entries.filter((entry) => holding(entry.at) === entry);
      return visible;
    },
    holding,
    at: (path) => {
      const entry = holding(path);
      return entry?.at === path ? entry : undefined;
    },
    below: (path) => entries.filter((entry) => entry.at !== path && isAtOrBelow(entry.at, path)),
    shown: (path) => shownThrough(holding(path), path),
    place: (entry) => shownThrough(byId.get(entry.parent), entry.at),
  };
}

function shownThrough(entry: MountEntry | undefined, path: string): BindIdentity | undefined {
  if (entry === undefined) return undefined;
  const rest = path === entry.at ? '' : path.slice(entry.at === '/' ? 0 : entry.at.length);
  return { device: entry.device, root: `${entry.root === '/' ? '' : entry.root}${rest}` || '/' };
}

/** Tries `/`, `/a` and `/a/b` for `/a/b`. */
function firstOn(path: string, mounts: ReadonlyMap<string, MountEntry>): MountEntry | undefined {
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

export const same = (one: BindIdentity, other: BindIdentity | undefined): boolean =>
  one.device === other?.device && one.root === other.root;

export function isAtOrBelow(path: string, folder: string): boolean {
  return path === folder || path.startsWith(folder === '/' ? '/' : `${folder}/`);
}
