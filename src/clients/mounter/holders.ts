import { readdir, readFile, readlink } from 'node:fs/promises';
import type { Clock } from '#base/clock.ts';
import type { Scope } from '#base/log.ts';
import { isAtOrBelow, readBounded } from './mountinfo.ts';
import { readProcess } from './read-process.ts';

const ownPid = process.pid;

export interface Holder {
  readonly pid: number;
  readonly command: string;
}

export interface HolderSearch {
  /** Undefined: everything at or below the path. */
  readonly exactPath?: boolean;
  /** A descriptor of this process that does not count. */
  readonly exceptFd?: number | undefined;
  readonly maxHolders?: number;
  readonly timeoutMs?: number;
  readonly proc?: string;
}

/**
 * Finds processes that use the path or something below it: as an open file, working directory, root, program or mapping. Returns at most
 * `maxHolders` processes and only those found in time, so use it for messages only. Processes of other pid namespaces are not visible.
 */
export async function findHolders(
  path: string,
  clock: Clock,
  scope: Scope,
  search?: HolderSearch,
): Promise<readonly Holder[]> {
  return (await searchHolders(path, clock, scope, search)).holders;
}

/** As `findHolders`, but for decisions: if `isComplete` and there are no holders, no process of this pid namespace uses the path. */
export async function searchHolders(
  path: string,
  clock: Clock,
  scope: Scope,
  search: HolderSearch = {},
): Promise<{ readonly holders: readonly Holder[]; readonly isComplete: boolean }> {
  const { proc = '/proc', maxHolders = 8, timeoutMs = 2_000 } = search;
  using limit = clock.deadline(timeoutMs, scope.signal);
  const holds = (target: string): boolean => (search.exactPath === true ? target === path : isAtOrBelow(target, path));
  const pids = (await readdir(proc)).filter((name) => /^\d+$/.test(name)).map(Number);
  const found: Holder[] = [];
  let isComplete = true;
  const onUnknown = (): void => {
    isComplete = false;
  };
  // Read mappings only if nothing else was found: they are long, and most mapped files are open as well.
  for (const listTargets of [linkTargets, mappedFiles]) {
    for (const pid of pids) {
      if (found.length >= maxHolders || limit.signal.aborted) return { holders: found, isComplete: false };
      const process: InspectedProcess = {
        folder: `${proc}/${pid}`,
        except: pid === ownPid ? String(search.exceptFd) : undefined,
        read: (work) => readProcess(`${proc}/${pid}`, work, clock, onUnknown),
      };
      if (await holdsAny(listTargets(process), holds)) found.push({ pid, command: await commandOf(process) });
    }
    if (found.length > 0) break;
  }
  return { holders: found, isComplete };
}

async function holdsAny(targets: AsyncIterable<string>, holds: (target: string) => boolean): Promise<boolean> {
  for await (const target of targets) if (holds(target)) return true;
  return false;
}

interface InspectedProcess {
  readonly folder: string;
  readonly except: string | undefined;
  /** A process that ends during the search holds nothing. If a process does not answer or may not be read, the search is incomplete. */
  read<T>(work: () => Promise<T>): Promise<T | undefined>;
}

async function* linkTargets({ folder, except, read }: InspectedProcess): AsyncIterable<string> {
  for (const name of ['cwd', 'root', 'exe']) yield (await read(() => readlink(`${folder}/${name}`))) ?? '';
  for (const fd of (await read(() => readdir(`${folder}/fd`))) ?? []) {
    if (fd !== except) yield (await read(() => readlink(`${folder}/fd/${fd}`))) ?? '';
  }
}

async function* mappedFiles({ folder, read }: InspectedProcess): AsyncIterable<string> {
  const maps = (await read(() => readBounded(`${folder}/maps`, 4 * 1024 * 1024))) ?? '';
  for (const line of maps.split('\n')) {
    const slash = line.indexOf('/');
    if (slash !== -1) yield line.slice(slash);
  }
}

async function commandOf({ folder, read }: InspectedProcess): Promise<string> {
  const name = (await read(() => readFile(`${folder}/comm`, 'utf8'))) ?? '';
  // A process chooses its own name, which must not inject terminal escapes into a message.
  return name.trim().replace(/[^\x20-\x7e]/g, '?') || 'unknown';
}
