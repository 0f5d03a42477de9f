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

// What lies in the folder of an NFS store, seen on the disk: for tests that put a file called `file` into each volume's
// data, with the volume's id in it.

/** In memory where there is such a place: tests that make thousands of small files wait for no disk. */
export const quickFolder = (what: string): string =>
  mkdtempSync(join(existsSync('/dev/shm') ? '/dev/shm' : tmpdir(), `stowage-${what}-`));

const pathsIn = (folder: string): string[] => readdirSync(folder, { recursive: true, encoding: 'utf8' }).sort();

/** Remembers what is there now; the result puts it there again. */
export function snapshotOf(folder: string): () => void {
  const texts = pathsIn(folder).map((path) => {
    const at = join(folder, path);
    const about = lstatSync(at);
    // Never rounded up: the seconds tell whose it is.
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
      // The mark of who made it.
      if (text === '') utimesSync(at, changed, changed);
    }
  };
}

export interface Recorded {
  /** `name.meta`, `trash` or `retained`. */
  readonly at: string;
  /** 'torn': the record cannot be read. */
  readonly id: string;
  /** What `file` says in the data that belong to it; undefined: there are no data. */
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

  /** Every record there is. */
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

  /** Locks that somebody holds. A lock file stays when it is released, with a date of 1970. */
  const heldLocks = (): string[] =>
    own('locks').filter((id) => Math.floor(lstatSync(at('.stowage', 'locks', id)).mtimeMs / 1000) !== 1);

  return {
    records,
    own,
    heldLocks,
    /** Directories in the root that no record in the root is for, with what their `file` says. */
    unrecorded: (): string[] =>
      readdirSync(folder)
        .filter((entry) => !entry.startsWith('.') && !entry.endsWith('.meta') && !existsSync(at(`${entry}.meta`)))
        .filter((entry) => !isFolder(entry))
        .map((entry) => `${entry}: ${dataAt(at(entry))}`),
    /** Whether these data are anywhere, also on their way out. */
    has: (data: string): boolean => pathsIn(folder).some((path) => path.endsWith('/file') && text(at(path)) === data),
  };
}

/** What is wrong with the records, in words. */
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
