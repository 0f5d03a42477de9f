import { type BigIntStats, opendirSync } from 'node:fs';
import { setImmediate as nextTurn } from 'node:timers/promises';
import type { Clock } from '#base/clock.ts';
import { errnoOf } from '#base/errno.ts';
import { type ExportedTree, FileMoved, isSameFile } from './exported-tree.ts';
import { type HandleContents, maxParentHashes, parentHash } from './handles.ts';
import type { ByteString } from './names.ts';
import { createNode, type Node } from './nodes.ts';
import { Refusal, refuse } from './refusal.ts';

/** The time after which a search lets other calls run. */
const turnMs = 4;
/** The limit on directories with a matching hash at one depth. */
const maxCandidatesPerDepth = 64;
/** Searches that start within this time, as after a restart, share one walk. */
const collectMs = 50;
/**
 * The pause after a search of the whole tree, as a multiple of its duration: handles of deleted files must not keep the server
 * busy.
 */
const pauseFactor = 4;

export interface SearchLimits {
  /** The number of names after which a search of the whole tree stops. */
  readonly maxVisits: number;
}

export interface FileSearch {
  /**
   * Finds a file with a valid handle after a restart, or after another process moved it. First follows the parent hashes, then
   * searches the whole tree. Undefined: the file is gone. Refuses with JUKEBOX (try later) if searches are too frequent.
   */
  find(origin: HandleContents): Promise<Node | undefined>;
}

interface FoundEntry {
  readonly directory: Node;
  readonly name: ByteString;
  readonly stats: BigIntStats;
}

type Visit = (found: FoundEntry) => boolean;

interface WantedFile {
  readonly contents: HandleContents;
  found: FoundEntry | undefined;
}

/** Visits the entries of a directory until `visit` returns true. */
type Scan = (directory: Node, visit: Visit) => Promise<boolean>;

/** Lets other calls run every few milliseconds. */
function createScan(tree: ExportedTree, { elapsed }: Clock, closing: AbortSignal): Scan {
  let turnStartedAt = elapsed();

  async function yieldIfDue(): Promise<void> {
    if (elapsed() - turnStartedAt < turnMs) return;
    await nextTurn();
    turnStartedAt = elapsed();
  }

  return async (directory, visit) => {
    try {
      const { prefix } = tree.openDirectory(directory);
      const names = opendirSync(prefix, { encoding: 'latin1', bufferSize: 256 });
      try {
        for (let entry = names.readSync(); entry !== null; entry = names.readSync()) {
          closing.throwIfAborted();
          const stats = tree.lookup(directory, entry.name);
          if (stats !== undefined && visit({ directory, name: entry.name, stats })) return true;
          await yieldIfDue();
        }
      } finally {
        names.closeSync();
      }
    } catch (cause) {
      // The directory was moved or removed meanwhile, or is not readable.
      closing.throwIfAborted();
      if (!(cause instanceof FileMoved || cause instanceof Refusal || errnoOf(cause) !== undefined)) throw cause;
    }
    return false;
  };
}

const nodeFor = ({ directory, name, stats }: FoundEntry): Node =>
  createNode(stats.ino, stats.birthtimeNs, directory, name);

async function followParentHashes(scan: Scan, root: Node, origin: HandleContents): Promise<FoundEntry | undefined> {
  let found: FoundEntry | undefined;
  let level = [root];
  for (let depth = 0; depth <= origin.parentHashes.length && found === undefined; depth++) {
    const next: Node[] = [];
    for (const directory of level) {
      const isFound = await scan(directory, (here) => {
        if (isSameFile(here.stats, origin)) found = here;
        else if (
          next.length < maxCandidatesPerDepth &&
          here.stats.isDirectory() &&
          parentHash(here.stats.ino) === origin.parentHashes[depth]
        )
          next.push(nodeFor(here));
        return found !== undefined;
      });
      if (isFound) break;
    }
    level = next;
  }
  return found;
}

/** Searches for all wanted files in one walk. */
async function searchWholeTree(
  scan: Scan,
  root: Node,
  wanted: ReadonlyMap<bigint, WantedFile>,
  { maxVisits }: SearchLimits,
): Promise<void> {
  let visits = 0;
  let missing = wanted.size;
  const pendingDirectories = [root];
  for (let directory = pendingDirectories.pop(); directory !== undefined; directory = pendingDirectories.pop()) {
    const isDone = await scan(directory, (here) => {
      const one = wanted.get(here.stats.ino);
      if (one !== undefined && one.found === undefined && isSameFile(here.stats, one.contents)) {
        one.found = here;
        missing--;
      }
      if (here.stats.isDirectory()) pendingDirectories.push(nodeFor(here));
      return missing === 0 || ++visits > maxVisits;
    });
    if (isDone) return;
  }
}

export function createFileSearch(
  tree: ExportedTree,
  clock: Clock,
  closing: AbortSignal,
  limits: SearchLimits,
): FileSearch {
  const { elapsed } = clock;
  const scan = createScan(tree, clock, closing);
  let nextSearch: { readonly wanted: Map<bigint, WantedFile>; readonly done: Promise<void> } | undefined;
  let isWalking = false;
  let pausedUntil = 0;

  async function collectAndSearch(wanted: ReadonlyMap<bigint, WantedFile>): Promise<void> {
    await clock.sleep(collectMs, closing);
    nextSearch = undefined;
    isWalking = true;
    const started = elapsed();
    try {
      await searchWholeTree(scan, tree.root, wanted, limits);
      const ended = elapsed();
      pausedUntil = ended + (ended - started) * pauseFactor;
    } finally {
      isWalking = false;
    }
  }

  async function joinTreeSearch(origin: HandleContents): Promise<FoundEntry | undefined> {
    if (nextSearch === undefined) {
      if (isWalking || elapsed() < pausedUntil) refuse('JUKEBOX');
      const wanted = new Map<bigint, WantedFile>();
      nextSearch = { wanted, done: collectAndSearch(wanted) };
    }
    const { wanted, done: walked } = nextSearch;
    const one = wanted.get(origin.ino) ?? { contents: origin, found: undefined };
    // Two files cannot have the same inode number, so one of them is deleted. The client has to retry.
    if (one.contents.birth !== origin.birth) refuse('JUKEBOX');
    wanted.set(origin.ino, one);
    await walked;
    return one.found;
  }

  return {
    find: async (origin) => {
      const isDeep = origin.parentHashes.length >= maxParentHashes;
      const found =
        (isDeep ? undefined : await followParentHashes(scan, tree.root, origin)) ?? (await joinTreeSearch(origin));
      return found && tree.nodeFor(found.directory, found.name, found.stats);
    },
  };
}
