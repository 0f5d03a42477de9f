import { constants } from 'node:fs';
import { openFlag } from '#wire/fuse/abi.ts';
import { Errno } from '#wire/fuse/errno.ts';
import { invalidateInode } from '#wire/fuse/notify.ts';
import type { OpenReply, Operations, Request } from '#wire/fuse/operations.ts';
import type { CreateOperations } from './create.ts';
import type { Entries } from './entries.ts';
import { areSameRights, needsGroup } from './identity.ts';
import type { MountContext } from './mount-context.ts';
import { keyOf } from './name-cache.ts';
import { createOpenFiles, isOpenForWriting } from './open-files.ts';
import { createRead } from './read.ts';
import type { ReadBuffers } from './read-buffers.ts';
import type { UnlinkOperations } from './unlink.ts';
import type { Writes } from './writes.ts';

export type FileOperations = Pick<Operations, 'open' | 'create' | 'read' | 'write' | 'flush' | 'fsync' | 'release'> & {
  /** The kernel has forgotten the node. */
  forget(id: number): void;
};

export interface FileParts {
  readonly context: MountContext;
  readonly entries: Entries;
  readonly createOperations: CreateOperations;
  readonly unlinkOperations: UnlinkOperations;
  readonly writes: Writes;
  readonly readBuffers: ReadBuffers;
  readonly maxRead: number;
}

/** After ESTALE the kernel retries within this time. */
const relookupMs = 1_000;
const allPermissions = 7;

export function createFiles(parts: FileParts): FileOperations {
  const { context, entries, createOperations, unlinkOperations, writes, readBuffers, maxRead } = parts;
  const { nodes, server, attributes, clock, sequence, releases, notify } = context;
  const openFiles = createOpenFiles();
  const read = createRead(context, { writes, readBuffers, maxRead });
  /** The epoch of the file content that the kernel has cached. */
  const kernelEpochs = new Map<number, number>();
  const relookups = new Map<number, number>();

  /** On ESTALE the kernel looks the name up again by itself and retries. */
  function forceRelookup(id: number): void {
    const now = clock.elapsed();
    const before = relookups.get(id);
    relookups.delete(id);
    if (before !== undefined && now - before < relookupMs) return;
    relookups.set(id, now);
    throw new Errno('ESTALE');
  }

  async function refresh(id: number, flags: number, request: Request): Promise<void> {
    await writes.waitUntilAnswered(id, request);
    const known = sequence.wasJustLookedUp(id, request) ? attributes.lastSeen(id) : undefined;
    const found = known ?? (await server.getattr(request, id));
    const { size, rights, isCurrent: isAll } = attributes.kernelView(id);
    const areRightsOutdated = rights !== undefined && !areSameRights(rights, found);
    // The kernel's attributes are outdated by another client's change.
    if (!isAll || areRightsOutdated) notify(invalidateInode(id));
    // The kernel permitted this open by outdated rights. After a crash its rights are unknown: it may have permitted
    // this by an earlier group of the file.
    if (areRightsOutdated) throw new Errno('ESTALE');
    const isDoubtful = rights === undefined && needsGroup(request, allPermissions, found);
    // The kernel appends at the size that it knows.
    const isSizeOutdated = size !== attributes.size(id);
    if (isDoubtful || (isSizeOutdated && (flags & constants.O_APPEND) !== 0)) forceRelookup(id);
    else if (!isSizeOutdated) relookups.delete(id);
  }

  function recordOpen(id: number, flags: number, request: Request): OpenReply {
    const canWrite = (flags & (constants.O_WRONLY | constants.O_RDWR)) !== 0;
    const fh = openFiles.open(request.uid, canWrite);
    const epoch = attributes.epoch(id);
    const isSame = kernelEpochs.get(id) === epoch;
    kernelEpochs.set(id, epoch);
    nodes.addOpen(id, request.slot);
    writes.recordOpen(id, fh);
    // Readers need no FLUSH on close.
    return { fh, flags: (isSame ? openFlag.keepCache : 0) | (canWrite ? 0 : openFlag.noflush) };
  }

  return {
    open: (id, flags, request) =>
      unlinkOperations.runOpen(id, request, async () => {
        await refresh(id, flags, request);
        return recordOpen(id, flags, request);
      }),
    create: async (parent, name, how, request) => {
      const made = await createOperations.create(parent, name, how, request);
      const entry = await entries.entry(parent, keyOf(name), made, request);
      return { entry, opened: recordOpen(entry.node, how.flags, request) };
    },
    read: (id, { fh, offset, size }, request) => read(id, fh, offset, size, request),
    write: (id, offset, data, request) => writes.write(id, offset, data, request),
    flush: (id, fh, request) => (isOpenForWriting(fh) ? writes.flushAndReport(id, fh, request) : undefined),
    fsync: (id, { fh }, request) => writes.flushAndReport(id, fh, request),
    forget: (id) => {
      kernelEpochs.delete(id);
      relookups.delete(id);
      writes.forget(id);
      unlinkOperations.forget(id);
    },
    release: (id, { fh }, request) => {
      const finishClose = (): Promise<void> | undefined => {
        nodes.removeOpen(id, request.slot);
        return nodes.get(id)?.opens === 0 ? unlinkOperations.removeAfterLastClose(id, request) : undefined;
      };
      // Flush data from memory maps, or of a process that did not wait for close: the kernel forgets the file
      // afterwards.
      const flushed = writes.flushOnClose(id, fh);
      const removed = flushed === undefined ? finishClose() : flushed.then(finishClose);
      if (removed !== undefined) releases.add(id, removed);
      return removed;
    },
  };
}
