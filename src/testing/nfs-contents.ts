import {
  existsSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  utimesSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

// Reads the folder of an NFS store on the disk, for tests that write the volume's id into a file `file` in each
// volume's data.

/** A folder on a tmpfs, if there is one, so that tests with thousands of small files don't wait for a disk. */
export const quickFolder = (what: string): string =>
  mkdtempSync(join(existsSync('/dev/shm') ? '/dev/shm' : tmpdir(), `stowage-${what}-`));

const pathsIn = (folder: string): string[] => readdirSync(folder, { recursive: true, encoding: 'utf8' }).sort();

/** Saves the present contents. The returned function restores them. */
export function snapshotOf(folder: string): () => void {
  const texts = pathsIn(folder).map((path) => {
    const at = join(folder, path);
    const about = lstatSync(at);
    // Rounded down, never up: the seconds identify the owner.
    const changed = Math.floor(about.mtimeMs) / 1000;
    return [at, about.isDirectory() ? undefined : readFileSync(at, 'utf8'), changed] as const;
  });
  return () => {
    const kept = new Set(texts.map(([at]) => at));
    for (const path of pathsIn(folder))
      if (!kept.has(join(folder, path))) rmSync(join(folder, path), { recursive: true, force: true });
    for (const [at, text, changed] of texts) {
      if (text === undefined) mkdirSync(at, { recursive: true });
      else writeFileSync(at, text);
      // An empty file is a process mark, and its time of change identifies the creator.
      if (text === '') utimesSync(at, changed, changed);
    }
  };
}

export interface Recorded {
  /** `name.meta`, `trash` or `retained`. */
  readonly at: string;
  /** 'torn': the record cannot be read. */
  readonly id: string;
  /** The contents of `file` in the volume's data. Undefined: the data do not exist. */
  readonly data: string | undefined;
}

interface Meta {
  readonly id: string;
  readonly name: string;
  readonly path?: string;
}

export function contentsOf(folder: string) {
  const at = (...path: readonly string[]): string => join(folder, ...path);
  const own = (part: string): string[] => readdirSync(at('.stowage', part)).sort();
  const text = (path: string): string | undefined => (existsSync(path) ? readFileSync(path, 'utf8') : undefined);
  const metaAt = (path: string): Meta | undefined => {
    const found = text(path);
    return found?.startsWith('{') === true ? (JSON.parse(found) as Meta) : undefined;
  };
  const dataAt = (path: string): string | undefined =>
    existsSync(path) ? (text(join(path, 'file')) ?? 'empty') : undefined;
  const isFolder = (entry: string): boolean => existsSync(at(entry, '.stowage-folder'));

  /** All records. */
  function records(): Recorded[] {
    const live = readdirSync(folder).filter((entry) => entry.endsWith('.meta'));
    return [
      ...live.map((file) => {
        const meta = metaAt(at(file));
        return { at: file, id: meta?.id ?? 'torn', data: dataAt(at(meta?.path ?? file.slice(0, -'.meta'.length))) };
      }),
      ...own('trash').map((id) => ({
        at: 'trash',
        id: metaAt(at('.stowage', 'trash', id, 'meta'))?.id ?? 'torn',
        data: dataAt(at('.stowage', 'trash', id, 'data')),
      })),
      ...own('retained').map((file) => {
        const meta = metaAt(at('.stowage', 'retained', file));
        return { at: 'retained', id: meta?.id ?? 'torn', data: dataAt(at(meta?.path ?? meta?.name ?? '')) };
      }),
    ];
  }

  /** Held locks. A released lock file remains with a date of 1970. */
  const heldLocks = (): string[] =>
    own('locks').filter((id) => Math.floor(lstatSync(at('.stowage', 'locks', id)).mtimeMs / 1000) !== 1);

  return {
    records,
    own,
    heldLocks,
    /** Directories in the root that no record refers to, with the contents of their `file`. */
    unrecorded: (): string[] =>
      readdirSync(folder)
        .filter((entry) => !entry.startsWith('.') && !entry.endsWith('.meta') && !existsSync(at(`${entry}.meta`)))
        .filter((entry) => !isFolder(entry))
        .map((entry) => `${entry}: ${dataAt(at(entry))}`),
    /** Whether these data exist anywhere, including data that are being deleted. */
    has: (data: string): boolean => pathsIn(folder).some((path) => path.endsWith('/file') && text(at(path)) === data),
  };
}

/** The errors in the records, as sentences. */
export function wrongRecords(all: readonly Recorded[]): string[] {
  const ids = all.map(({ id }) => id);
  return all.flatMap(({ at, id, data }) => [
    ...(id === 'torn' ? [`${at} is torn`] : []),
    ...(ids.indexOf(id) === ids.lastIndexOf(id) ? [] : [`${id} has two records (${at})`]),
    ...(data === undefined ? [`the record ${at} (${id}) has no data`] : []),
    ...(data === undefined || ['empty', 'planted', id].includes(data)
      ? []
      : [`the record ${at} of ${id} has the data of ${data}`]),
  ]);
}
