import { type BigIntStats, opendirSync } from 'node:fs';
import { setImmediate as nextTurn } from 'node:timers/promises';
import type { Clock } from '#base/clock.ts';
import { errnoOf } from '#base/errno.ts';
import { type ExportedTree, FileMoved, isSameFile } from './exported-tree.ts';
import { type HandleContents, maxParentHashes, parentHash } from './handles.ts';
import type { ByteString } from './names.ts';
import { createNode, type Node } from './nodes.ts';
import { Refusal, refuse } from './refusal.ts';

/** Others are served in between. */
const sliceMs = 4;
/** Of directories that could be the right one, at one depth. */
const maxCandidates = 64;
/** Those who come one after the other, as after a restart, are looked for together. */
const gatherMs = 50;
/** Rest after a search through everything, as a multiple of it: so handles of files long gone cannot keep the server busy. */
const restFactor = 4;

export interface SearchLimits {
  /** Names that a search through everything looks at before it gives up. */
  readonly maxVisits: number;
}

export interface FileSearch {
  /**
   * Finds a file whose handle is good, after a restart or because somebody moved it. Its directories are followed first;
   * then everything is looked through. Undefined: it is gone. Refuses with JUKEBOX ("later") what comes too often.
   */
  find(origin: HandleContents): Promise<Node | undefined>;
}

interface Found {
  readonly directory: Node;
  readonly name: ByteString;
  readonly stats: BigIntStats;
}

type Visit = (found: Found) => boolean;

interface WantedFile {
  readonly origin: HandleContents;
  found: Found | undefined;
}

export function createFileSearch(
  tree: ExportedTree,
  clock: Clock,
  closing: AbortSignal,
  limits: SearchLimits,
): FileSearch {
  const { elapsed } = clock;
  let slice = elapsed();
  let gathering: { readonly wanted: Map<bigint, WantedFile>; readonly walked: Promise<void> } | undefined;
  let isWalking = false;
  let restUntil = 0;

  async function yieldIfDue(): Promise<void> {
    if (elapsed() - slice < sliceMs) return;
    await nextTurn();
    slice = elapsed();
  }

  /** Shows everything in a directory, until told that it is enough. */
  async function scan(directory: Node, visit: Visit): Promise<boolean> {
    try {
      const { prefix } = tree.directory(directory);
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
      // Moved or removed under us, or not for us to see.
      closing.throwIfAborted();
      if (!(cause instanceof FileMoved || cause instanceof Refusal || errnoOf(cause) !== undefined)) throw cause;
    }
    return false;
  }

  const nodeFor = ({ directory, name, stats }: Found): Node =>
    createNode(stats.ino, stats.birthtimeNs, directory, name);

  async function followParentHashes(origin: HandleContents): Promise<Found | undefined> {
    let found: Found | undefined;
    let level = [tree.root];
    for (let depth = 0; depth <= origin.parentHashes.length && found === undefined; depth++) {
      const next: Node[] = [];
      for (const directory of level) {
        const isFound = await scan(directory, (here) => {
          if (isSameFile(here.stats, origin)) found = here;
          else if (
            next.length < maxCandidates &&
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

  /** Looks for all that are wanted at once. */
  async function searchWholeTree(wanted: ReadonlyMap<bigint, WantedFile>): Promise<void> {
    const started = elapsed();
    let visits = 0;
    let missing = wanted.size;
    const todo = [tree.root];
    for (let directory = todo.pop(); directory !== undefined; directory = todo.pop()) {
      const isDone = await scan(directory, (here) => {
        const one = wanted.get(here.stats.ino);
        if (one !== undefined && one.found === undefined && isSameFile(here.stats, one.origin)) {
          one.found = here;
          missing--;
        }
        if (here.stats.isDirectory()) todo.push(nodeFor(here));
        return missing === 0 || ++visits > limits.maxVisits;
      });
      if (isDone) break;
    }
    const ended = elapsed();
    restUntil = ended + (ended - started) * restFactor;
  }

  async function gatherAndSearch(wanted: ReadonlyMap<bigint, WantedFile>): Promise<void> {
    await clock.sleep(gatherMs, closing);
    gathering = undefined;
    isWalking = true;
    try {
      await searchWholeTree(wanted);
    } finally {
      isWalking = false;
    }
  }

  async function joinTreeSearch(origin: HandleContents): Promise<Found | undefined> {
    if (gathering === undefined) {
      if (isWalking || elapsed() < restUntil) refuse('JUKEBOX');
      const wanted = new Map<bigint, WantedFile>();
      gathering = { wanted, walked: gatherAndSearch(wanted) };
    }
    const { wanted, walked } = gathering;
    const one = wanted.get(origin.ino) ?? { origin, found: undefined };
    // An inode number is one file's; of two that had it, one is gone for certain, and asks again.
    if (one.origin.birth !== origin.birth) refuse('JUKEBOX');
    wanted.set(origin.ino, one);
    await walked;
    return one.found;
  }

  return {
    find: async (origin) => {
      const isDeep = origin.parentHashes.length >= maxParentHashes;
      const found = (isDeep ? undefined : await followParentHashes(origin)) ?? (await joinTreeSearch(origin));
      return found && tree.nodeFor(found.directory, found.name, found.stats);
    },
  };
}
