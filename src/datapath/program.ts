import { closeSync } from 'node:fs';
import { unlessAborted } from '#base/aborted.ts';
import type { Clock } from '#base/clock.ts';
import type { Log } from '#base/log.ts';
import { header } from '#wire/fuse/message.ts';
import { createBudget, maxUnwritten } from './budget.ts';
import { createConnections, type ServerLease, type SocketHolder } from './connections.ts';
import { createDataLossLog } from './data-loss-log.ts';
import { type FileSystemOptions, openFileSystem } from './file-system.ts';
import { fuseInitOptions, refuseLocks } from './fuse-init-options.ts';
import { holdUntilDrained } from './hold-until-drained.ts';
import { formatJournal, openJournal } from './journal/memory.ts';
import { createMountRows } from './journal/mounts.ts';
import { createNodeTable } from './journal/nodes.ts';
import { createRequests, type UnfinishedRequest } from './journal/requests.ts';
import { createMountJournal } from './mount-journal.ts';
import { type MountSpec, readSpec } from './mount-spec.ts';
import { createPoisonRequests } from './poison-requests.ts';
import { createPredecessorConnections, type OldConnection } from './predecessor-connections.ts';
import { createMountQuota, type MountQuotaParts } from './quota/mount-quota.ts';
import type { Quota } from './quota/quota.ts';
import { type ServedMount, serveMount } from './served-mount.ts';
import { createSharedCaches } from './shared-caches.ts';
import { withSoftDeadline } from './soft-deadline.ts';
import type { UncommittedWrites } from './writes.ts';

export interface ProgramParts {
  readonly clock: Clock;
  readonly log: Log;
  readonly holder: SocketHolder;
  /** A message for users, shown by the agent. */
  readonly report: (text: string) => void;
  /** The kernel has ended the mount. */
  readonly ended: (mount: string) => void;
  /** The mount cannot be served. Its journal entries stay until it is removed: another program may handle it. */
  readonly unserved: (mount: string) => void;
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

const stopMs = 1_000;

interface QuotaRequest extends Pick<MountQuotaParts, 'mount' | 'kept' | 'ready'> {
  readonly spec: MountSpec;
  readonly server: ServerLease;
}

interface MountedQuota extends Disposable {
  readonly quota: Quota | undefined;
}

interface Running extends Disposable {
  readonly index: number;
  readonly served: ServedMount;
  readonly behind: UncommittedWrites;
}

export async function startProgram(given: ProgramInput, parts: ProgramParts): Promise<Program> {
  const { clock, log, holder, signal } = parts;
  formatJournal(given.journal);
  const memory = openJournal(given.journal);
  const [rows, requests, nodes] = [createMountRows(memory), createRequests(memory, clock), createNodeTable(memory)];
  const connections = createConnections(clock, holder);
  const paused = new Set<() => void>();
  const budget = createBudget(maxUnwritten);
  const running = new Map<string, Running>();
  const left = Map.groupBy(requests.left().toSorted(byUnique), ({ mount }) => mount);
  const rented = new Set<ServerLease>();
  const predecessorConnections = createPredecessorConnections(given.sockets, {
    clock,
    log,
    letGo: (id) => holder.letGo(id),
    clientsOf: (about) => [...rented].filter((server) => server.about === about).map(({ nfs }) => nfs),
  });
  const shared = createSharedCaches();
  const poisonRequests = createPoisonRequests(clock, requests.suspect);

  async function serve({ id, spec: told, fd }: ReceivedMount): Promise<void> {
    using cleanup = new DisposableStack();
    let isGiven = false;
    cleanup.defer(() => {
      if (!isGiven) closeSync(fd);
    });
    const spec = readSpec(told);
    const row = rows.of(id);
    const server = connections.acquire(spec);
    const unmounted = new AbortController();
    cleanup.defer(() => unmounted.abort());
    const { signal: ended } = unmounted;
    const journal = createMountJournal({ requests, growth: rows.growth(row.index) }, ended);
    const ready = (): Promise<void> | undefined => predecessorConnections.ready(server.about);
    const quota = quotaOf({ mount: id, spec, server, kept: journal.growth, ready }, parts);
    cleanup.use(quota);
    rented.add(server);
    // It references the whole file system.
    cleanup.defer(() => rented.delete(server));
    const root = Buffer.from(spec.root, 'base64');
    const known = nodes.of(row.index, root);
    const { softMs } = spec;
    const { operations, behind } = cleanup.use(
      openFileSystem({
        nfs: server.nfs,
        nodes: known,
        proofs: journal.proofs,
        clock,
        shared,
        ended,
        quota: quota.quota,
        notify: (bytes) => served.notify(bytes),
        notifyApart: (bytes) => served.notifyApart(bytes),
        behind: {
          kept: { keep: journal.keep, free: (place) => served.committed(place) },
          budget,
          ready,
          onLost: createDataLossLog({ clock, log, mount: id, report: parts.report }),
        },
        options: optionsOf(spec),
      }),
    );
    // Late writes must not overwrite those of another node that mounts the volume now.
    cleanup.defer(() => void behind.stop());
    server.onConnected(behind.revalidate);
    const unanswered = left.get(row.index) ?? [];
    const ages = new Map<number, number>();
    const heldOperations = holdUntilDrained(
      { ...operations, ...(spec.locks === 'refused' ? refuseLocks : {}) },
      { clock, ready, softMs, ended },
    );
    isGiven = true;
    const served = await serveMount({
      fd,
      mount: row.index,
      requests,
      paused,
      left: unanswered,
      clock,
      poisonRequests,
      ages,
      operations: unanswered.length === 0 ? heldOperations : withSoftDeadline(heldOperations, { clock, softMs, ages }),
      onUnreleased: known.closed,
      initOptions: fuseInitOptions(spec),
      onBehind: behind.restore,
      // Another mount may hold the memory that this one waits for.
      onFull: () => {
        for (const one of running.values()) one.behind.commitSoon();
        behind.commitSoon();
      },
      onAgreed: (agreement) => rows.setAgreement(row.index, agreement),
      onFault: (operation, cause) =>
        log.error('a request failed because of a bug', { operation, cause: String(cause) }),
      onEnd: (code) => {
        // Closed by us: the keeper knows, and may already have another mount with that id.
        if (code === 'closed') return;
        log.info('a mount ended', { mount: id, code });
        parts.ended(id);
      },
    });
    left.delete(row.index);
    cleanup.use(served);
    const kept = cleanup.move();
    running.set(id, { index: row.index, served, behind, [Symbol.dispose]: () => kept.dispose() });
  }

  function forget(index: number): void {
    requests.freeAll(index);
    nodes.drop(index);
    rows.remove(index);
    for (const wake of Array.from(paused)) wake();
  }

  /** By id. One after the other: they share the mount's row in the journal. */
  const pendingAdds = new Map<string, Promise<void>>();

  async function add(mount: ReceivedMount): Promise<void> {
    const { id } = mount;
    const serving = pendingAdds.get(id)?.then(() => serve(mount)) ?? serve(mount);
    const settled = serving.then(
      () => undefined,
      () => undefined,
    );
    pendingAdds.set(id, settled);
    try {
      await serving;
    } catch (cause) {
      log.error('failed to serve a mount', { mount: id, cause: String(cause) });
      parts.unserved(id);
      throw cause;
    } finally {
      if (pendingAdds.get(id) === settled) pendingAdds.delete(id);
    }
  }

  function drop(id: string): void {
    const known = running.get(id);
    if (known === undefined) {
      dropUnserved(id);
      return;
    }
    running.delete(id);
    if (known.behind.files > 0) log.warn('unmounted with unwritten data', { mount: id, files: known.behind.files });
    known[Symbol.dispose]();
    forget(known.index);
  }

  function dropUnserved(id: string): void {
    const index = rows.all().find((row) => row.id === id)?.index;
    if (index === undefined) return;
    const files = filesBehind(left.get(index) ?? []);
    if (files > 0) log.warn('unmounted with unwritten data', { mount: id, files });
    left.delete(index);
    forget(index);
  }

  for (const { id, index } of rows.all()) if (!given.mounts.some((mount) => mount.id === id)) forget(index);
  // One bad mount must not stop the others.
  const adding = given.mounts.map((mount) => add(mount).catch(() => undefined));
  predecessorConnections.begin(signal);
  await Promise.all(adding);
  return {
    add,
    remove: (id) => {
      const soon = pendingAdds.get(id);
      if (soon === undefined) drop(id);
      else void soon.then(() => drop(id));
    },
    flush: async (id, ms) => {
      const known = running.get(id);
      if (known === undefined) return filesBehind(left.get(rows.all().find((row) => row.id === id)?.index ?? -1) ?? []);
      using limit = clock.deadline(ms, signal);
      await unlessAborted(known.behind.flush(), limit.signal).catch(() => undefined);
      return known.behind.files;
    },
    stop: async () => {
      requests.stopping();
      const all = [...running.values()];
      const quiet = async (): Promise<void> => {
        await Promise.all(all.map(({ served }) => served.stop()));
        await Promise.all(all.map(({ behind }) => behind.stop()));
      };
      using limit = clock.deadline(stopMs, signal);
      await unlessAborted(quiet(), limit.signal).catch(() => undefined);
    },
  };
}

/** For a mount that could not be served. */
const filesBehind = (left: readonly UnfinishedRequest[]): number =>
  new Set(left.filter(({ phase }) => phase === 'behind').map(({ message }) => header.node(message))).size;

/** The kernel numbers requests in order: the oldest comes first. */
function byUnique(one: UnfinishedRequest, other: UnfinishedRequest): number {
  const unique = ({ message: { view } }: UnfinishedRequest): number =>
    (view.getUint32(12, true) & 0x7fff_ffff) * 0x1_0000_0000 + view.getUint32(8, true);
  return unique(one) - unique(other);
}

/** Also owns the connection, which it needs until unused grants are returned. */
function quotaOf({ spec, server, ...own }: QuotaRequest, { clock, log }: ProgramParts): MountedQuota {
  if (spec.quota === undefined) return { quota: undefined, [Symbol.dispose]: () => server[Symbol.dispose]() };
  const gone = new AbortController();
  const failed = (cause: unknown): void =>
    log.warn('failed to count the volume', { mount: own.mount, cause: String(cause) });
  const quota = createMountQuota({
    nfs: server.nfs,
    spec,
    quota: spec.quota,
    ...own,
    clock,
    signal: gone.signal,
    failed,
  });
  return {
    quota,
    [Symbol.dispose]: () => {
      gone.abort();
      void quota
        .close()
        .catch(failed)
        .finally(() => server[Symbol.dispose]());
    },
  };
}

function optionsOf(spec: MountSpec): FileSystemOptions {
  const { squash, uid, gid, cacheMs, softMs, readOnly, sync, checks, group, maxRead, maxWrite } = spec;
  const identity = { squash, uid, gid, machine: 'stowage' };
  return { identity, cacheMs, softMs, readOnly, sync, checks, group, maxRead, maxWrite };
}
