import { unlessAborted } from '#base/aborted.ts';
import type { Clock } from '#base/clock.ts';
import type { Log } from '#base/log.ts';
import { header } from '#wire/fuse/message.ts';
import { createBudget, maxUnwrittenBytes } from './budget.ts';
import { createConnections, type ServerLease, type SocketHolder } from './connections.ts';
import { formatJournal, openJournal } from './journal/memory.ts';
import { createMountRows } from './journal/mounts.ts';
import { createNodeTable } from './journal/nodes.ts';
import { createRequests, type UnfinishedRequest } from './journal/requests.ts';
import { createPoisonRequests } from './poison-requests.ts';
import { createPredecessorConnections, type OldConnection } from './predecessor-connections.ts';
import { createSharedCaches } from './shared-caches.ts';
import { type ProcessResources, type RunningMount, startMount } from './start-mount.ts';

export interface ProgramParts {
  readonly clock: Clock;
  readonly log: Log;
  readonly holder: SocketHolder;
  /** A message for users, shown by the agent. */
  readonly report: (text: string) => void;
  /** The kernel has ended the mount. */
  readonly reportEnded: (mount: string) => void;
  /** The mount cannot be served. Its journal entries stay until it is removed: another program may handle it. */
  readonly reportUnserved: (mount: string) => void;
  readonly signal: AbortSignal;
}

/** A mount from the keeper. The callee owns the descriptor. */
export interface ReceivedMount {
  readonly id: string;
  readonly spec: unknown;
  readonly fd: number;
}

export interface ProgramInput {
  readonly journal: number;
  readonly mounts: readonly ReceivedMount[];
  /** A predecessor's connections. */
  readonly sockets: readonly OldConnection[];
}

/** Serves all mounts of a keeper, continuing where a predecessor stopped. */
export interface Program {
  add(mount: ReceivedMount): Promise<void>;
  remove(id: string): void;
  /** Commits written data; returns the number of files still incomplete after at most `ms`. */
  flush(id: string, ms: number): Promise<number>;
  /**
   * Stops reading. Resolves when everything read is answered, or after a second: requests to a silent server must not
   * delay all others. The process must exit then; its successor does the rest, as after a crash.
   */
  stop(): Promise<void>;
}

const maxStopMs = 1_000;

export async function startProgram(input: ProgramInput, parts: ProgramParts): Promise<Program> {
  const { clock, log, holder, signal } = parts;
  formatJournal(input.journal);
  const memory = openJournal(input.journal);
  const [rows, requests, nodes] = [createMountRows(memory), createRequests(memory, clock), createNodeTable(memory)];
  const connections = createConnections(clock, holder);
  const pausedMounts = new Set<() => void>();
  const running = new Map<string, RunningMount>();
  const unfinished = Map.groupBy(requests.restoreUnfinished().toSorted(byUnique), ({ mount }) => mount);
  const leases = new Set<ServerLease>();
  const predecessorConnections = createPredecessorConnections(input.sockets, {
    clock,
    log,
    release: (id) => holder.release(id),
    clientsOf: (about) => [...leases].filter((server) => server.serverAddress === about).map(({ nfs }) => nfs),
  });
  const resources: ProcessResources = {
    journal: { rows, requests, nodes },
    connections,
    predecessorConnections,
    leases,
    caches: createSharedCaches(),
    budget: createBudget(maxUnwrittenBytes),
    pausedMounts,
    poisonRequests: createPoisonRequests(clock, requests.setSuspect),
    unfinished,
    running,
  };

  function freeMount(index: number): void {
    requests.freeAll(index);
    nodes.drop(index);
    rows.remove(index);
    for (const wake of Array.from(pausedMounts)) wake();
  }

  /** By id. Adds of one id run one after the other, since they share a row of the journal. */
  const pendingAdds = new Map<string, Promise<void>>();

  async function add(mount: ReceivedMount): Promise<void> {
    const { id } = mount;
    const start = (): Promise<void> => startMount(mount, resources, parts);
    const serving = pendingAdds.get(id)?.then(start) ?? start();
    const settled = serving.then(
      () => undefined,
      () => undefined,
    );
    pendingAdds.set(id, settled);
    try {
      await serving;
    } catch (cause) {
      log.error('failed to serve a mount', { mount: id, cause: String(cause) });
      parts.reportUnserved(id);
      throw cause;
    } finally {
      if (pendingAdds.get(id) === settled) pendingAdds.delete(id);
    }
  }

  function removeMount(id: string): void {
    const known = running.get(id);
    if (known === undefined) {
      removeUnserved(id);
      return;
    }
    running.delete(id);
    if (known.uncommitted.files > 0)
      log.warn('unmounted with unwritten data', { mount: id, files: known.uncommitted.files });
    known[Symbol.dispose]();
    freeMount(known.index);
  }

  function removeUnserved(id: string): void {
    const index = rows.all().find((row) => row.id === id)?.index;
    if (index === undefined) return;
    const files = countUnwrittenFiles(unfinished.get(index) ?? []);
    if (files > 0) log.warn('unmounted with unwritten data', { mount: id, files });
    unfinished.delete(index);
    freeMount(index);
  }

  for (const { id, index } of rows.all()) if (!input.mounts.some((mount) => mount.id === id)) freeMount(index);
  // One bad mount must not stop the others.
  const adding = input.mounts.map((mount) => add(mount).catch(() => undefined));
  predecessorConnections.begin(signal);
  await Promise.all(adding);
  return {
    add,
    remove: (id) => {
      const pendingAdd = pendingAdds.get(id);
      if (pendingAdd === undefined) removeMount(id);
      else void pendingAdd.then(() => removeMount(id));
    },
    flush: async (id, ms) => {
      const known = running.get(id);
      if (known === undefined)
        return countUnwrittenFiles(unfinished.get(rows.all().find((row) => row.id === id)?.index ?? -1) ?? []);
      using limit = clock.deadline(ms, signal);
      await unlessAborted(known.uncommitted.flush(), limit.signal).catch(() => undefined);
      return known.uncommitted.files;
    },
    stop: async () => {
      requests.markStopping();
      await stopMounts([...running.values()], clock, signal);
    },
  };
}

async function stopMounts(mounts: readonly RunningMount[], clock: Clock, signal: AbortSignal): Promise<void> {
  const stopAll = async (): Promise<void> => {
    await Promise.all(mounts.map(({ served }) => served.stop()));
    await Promise.all(mounts.map(({ uncommitted: behind }) => behind.stop()));
  };
  using limit = clock.deadline(maxStopMs, signal);
  await unlessAborted(stopAll(), limit.signal).catch(() => undefined);
}

/** For a mount that could not be served. */
const countUnwrittenFiles = (unfinished: readonly UnfinishedRequest[]): number =>
  new Set(unfinished.filter(({ phase }) => phase === 'behind').map(({ message }) => header.node(message))).size;

/** The kernel numbers requests in order: the oldest comes first. */
function byUnique(one: UnfinishedRequest, other: UnfinishedRequest): number {
  const unique = ({ message: { view } }: UnfinishedRequest): number =>
    (view.getUint32(12, true) & 0x7fff_ffff) * 0x1_0000_0000 + view.getUint32(8, true);
  return unique(one) - unique(other);
}
