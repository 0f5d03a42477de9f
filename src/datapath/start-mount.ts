import { closeSync } from 'node:fs';
import type { Budget } from './budget.ts';
import type { Connections, ServerLease } from './connections.ts';
import { createDataLossLog } from './data-loss-log.ts';
import { type FileSystemOptions, openFileSystem } from './file-system.ts';
import { fuseInitOptions, lockRefusals } from './fuse-init-options.ts';
import { holdUntilDrained } from './hold-until-drained.ts';
import type { MountRows } from './journal/mounts.ts';
import type { NodeTable } from './journal/nodes.ts';
import type { Requests, UnfinishedRequest } from './journal/requests.ts';
import { createMountJournal } from './mount-journal.ts';
import { type MountSpec, readMountSpec } from './mount-spec.ts';
import type { PoisonRequests } from './poison-requests.ts';
import type { PredecessorConnections } from './predecessor-connections.ts';
import type { ProgramParts, ReceivedMount } from './program.ts';
import { createMountQuota, type MountQuotaParts } from './quota/mount-quota.ts';
import type { Quota } from './quota/quota.ts';
import { type ServedMount, serveMount } from './served-mount.ts';
import type { SharedCaches } from './shared-caches.ts';
import { withSoftDeadline } from './soft-deadline.ts';
import type { UncommittedWrites } from './writes.ts';

/** Shared by all mounts of a process. */
export interface ProcessResources {
  readonly journal: {
    readonly rows: MountRows;
    readonly requests: Requests;
    readonly nodes: NodeTable;
  };
  readonly connections: Connections;
  readonly predecessorConnections: PredecessorConnections;
  /** The leases of all mounts. */
  readonly leases: Set<ServerLease>;
  readonly caches: SharedCaches;
  readonly budget: Budget;
  /** Mounts that wait for memory. */
  readonly pausedMounts: Set<() => void>;
  readonly poisonRequests: PoisonRequests;
  /** A predecessor's unfinished requests, by the mount's index in the journal. Removed when their mount is served. */
  readonly unfinished: Map<number, UnfinishedRequest[]>;
  /** By id. */
  readonly running: Map<string, RunningMount>;
}

interface QuotaRequest extends Pick<MountQuotaParts, 'mount' | 'storedGrowth' | 'ready'> {
  readonly spec: MountSpec;
  readonly server: ServerLease;
}

interface MountedQuota extends Disposable {
  readonly quota: Quota | undefined;
}

/** A mount that this process serves. */
export interface RunningMount extends Disposable {
  /** In the journal. */
  readonly index: number;
  readonly served: ServedMount;
  readonly uncommitted: UncommittedWrites;
}

/** Serves one mount and adds it to `running`. */
export async function startMount(
  { id, spec: receivedSpec, fd }: ReceivedMount,
  resources: ProcessResources,
  parts: ProgramParts,
): Promise<void> {
  const {
    journal: { rows, requests, nodes },
    predecessorConnections,
    leases,
    unfinished,
    running,
  } = resources;
  const { clock, log } = parts;
  using cleanup = new DisposableStack();
  let isDescriptorMoved = false;
  cleanup.defer(() => {
    if (!isDescriptorMoved) closeSync(fd);
  });
  const spec = readMountSpec(receivedSpec);
  const row = rows.getOrCreate(id);
  const server = resources.connections.acquire(spec);
  const unmounted = new AbortController();
  cleanup.defer(() => unmounted.abort());
  const { signal: mountEnded } = unmounted;
  const journal = createMountJournal({ requests, growth: rows.storedGrowth(row.index) }, mountEnded);
  const ready = (): Promise<void> | undefined => predecessorConnections.ready(server.serverAddress);
  const quota = openQuota({ mount: id, spec, server, storedGrowth: journal.growth, ready }, parts);
  cleanup.use(quota);
  leases.add(server);
  // The lease references the whole file system.
  cleanup.defer(() => leases.delete(server));
  const root = Buffer.from(spec.root, 'base64');
  const mountNodes = nodes.openMount(row.index, root);
  const { softMs } = spec;
  const { operations, uncommitted } = cleanup.use(
    openFileSystem({
      nfs: server.nfs,
      nodes: mountNodes,
      proofs: journal.proofs,
      clock,
      shared: resources.caches,
      mountEnded,
      quota: quota.quota,
      notify: (bytes) => served.notify(bytes),
      notifyFromThread: (bytes) => served.notifyFromThread(bytes),
      writeBehind: {
        journal: { keep: journal.keep, free: (place) => served.freeWrite(place) },
        budget: resources.budget,
        ready,
        onLost: createDataLossLog({ clock, log, mount: id, report: parts.report }),
      },
      options: optionsOf(spec),
    }),
  );
  // Late writes must not overwrite those of another node that mounts the volume now.
  cleanup.defer(() => void uncommitted.stop());
  server.onConnected(uncommitted.revalidate);
  const unanswered = unfinished.get(row.index) ?? [];
  const requestAges = new Map<number, number>();
  const heldOperations = holdUntilDrained(
    { ...operations, ...(spec.locks === 'refused' ? lockRefusals : {}) },
    { clock, ready, softMs, mountEnded },
  );
  isDescriptorMoved = true;
  const served = await serveMount({
    fd,
    mount: row.index,
    requests,
    pausedMounts: resources.pausedMounts,
    unfinished: unanswered,
    clock,
    poisonRequests: resources.poisonRequests,
    requestAges,
    operations:
      unanswered.length === 0 ? heldOperations : withSoftDeadline(heldOperations, { clock, softMs, requestAges }),
    onUnreleased: mountNodes.removeOpen,
    initOptions: fuseInitOptions(spec),
    onAnsweredWrite: uncommitted.restore,
    // Another mount may hold the memory that this one waits for.
    onFull: () => {
      for (const other of running.values()) other.uncommitted.commitSoon();
      uncommitted.commitSoon();
    },
    onInit: (initResult) => rows.setInitResult(row.index, initResult),
    onFault: (operation, cause) => log.error('a request failed because of a bug', { operation, cause: String(cause) }),
    onEnd: (code) => {
      // Closed by us: the keeper knows, and may already have another mount with that id.
      if (code === 'closed') return;
      log.info('a mount ended', { mount: id, code });
      parts.reportEnded(id);
    },
  });
  unfinished.delete(row.index);
  cleanup.use(served);
  const mountResources = cleanup.move();
  running.set(id, { index: row.index, served, uncommitted, [Symbol.dispose]: () => mountResources.dispose() });
}

/** Also owns the connection, which it needs until unused grants are returned. */
function openQuota({ spec, server, ...quotaParts }: QuotaRequest, { clock, log }: ProgramParts): MountedQuota {
  if (spec.quota === undefined) return { quota: undefined, [Symbol.dispose]: () => server[Symbol.dispose]() };
  const removed = new AbortController();
  const failed = (cause: unknown): void =>
    log.warn('failed to count the volume', { mount: quotaParts.mount, cause: String(cause) });
  const quota = createMountQuota({
    nfs: server.nfs,
    spec,
    quota: spec.quota,
    ...quotaParts,
    clock,
    signal: removed.signal,
    failed,
  });
  return {
    quota,
    [Symbol.dispose]: () => {
      removed.abort();
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
