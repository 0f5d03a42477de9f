import { constants } from 'node:fs';
import { openFlag } from '#wire/fuse/abi.ts';
import { Errno } from '#wire/fuse/errno.ts';
import { invalidateInode } from '#wire/fuse/notify.ts';
import type { OpenReply, Operations, Request } from '#wire/fuse/operations.ts';
import type { Context } from './context.ts';
import type { CreateOperations } from './create.ts';
import type { Entries } from './entries.ts';
import { areSameRights, needsGroup } from './identity.ts';
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
  readonly context: Context;
  readonly entries: Entries;
  readonly creating: CreateOperations;
  readonly unlinking: UnlinkOperations;
  readonly writes: Writes;
  readonly memory: ReadBuffers;
  readonly maxRead: number;
}

/** After ESTALE the kernel retries within this time. */
const relookupMs = 1_000;
const anything = 7;

export function createFiles(parts: FileParts): FileOperations {
  const { context, entries, creating, unlinking, writes, memory, maxRead } = parts;
  const { nodes, server, attributes, clock, sequence, releases, notify } = context;
  const openFiles = createOpenFiles();
  const read = createRead(context, { writes, memory, maxRead });
  /** The epoch of the file content that the kernel has cached. */
  const cached = new Map<number, number>();
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
    await writes.settled(id, request);
    const known = sequence.wasJustLookedUp(id, request) ? attributes.last(id) : undefined;
    const found = known ?? (await server.getattr(request, id));
    const { size, rights, isAll } = attributes.kernelView(id);
    const isOld = rights !== undefined && !areSameRights(rights, found);
    // The kernel's attributes are outdated by another client's change.
    if (!isAll || isOld) notify(invalidateInode(id));
    // The kernel permitted this open by outdated rights. After a crash its rights are unknown: it may have permitted
    // this by an earlier group of the file.
    if (isOld) throw new Errno('ESTALE');
    const isDoubtful = rights === undefined && needsGroup(request, anything, found);
    // The kernel appends at the size that it knows.
    const isMoved = size !== attributes.size(id);
    if (isDoubtful || (isMoved && (flags & constants.O_APPEND) !== 0)) forceRelookup(id);
    else if (!isMoved) relookups.delete(id);
  }

  function opened(id: number, flags: number, request: Request): OpenReply {
    const canWrite = (flags & (constants.O_WRONLY | constants.O_RDWR)) !== 0;
    const fh = openFiles.open(request.uid, canWrite);
    const epoch = attributes.epoch(id);
    const isSame = cached.get(id) === epoch;
    cached.set(id, epoch);
    nodes.opened(id, request.slot);
    writes.opened(id, fh);
    // Readers need no FLUSH on close.
    return { fh, flags: (isSame ? openFlag.keepCache : 0) | (canWrite ? 0 : openFlag.noflush) };
  }

  return {
    open: (id, flags, request) =>
      unlinking.opening(id, request, async () => {
        await refresh(id, flags, request);
        return opened(id, flags, request);
      }),
    create: async (parent, name, how, request) => {
      const made = await creating.create(parent, name, how, request);
      const entry = await entries.entry(parent, keyOf(name), made, request);
      return { entry, opened: opened(entry.node, how.flags, request) };
    },
    read: (id, { fh, offset, size }, request) => read(id, fh, offset, size, request),
    write: (id, at, data, request) => writes.write(id, at, data, request),
    flush: (id, fh, request) => (isOpenForWriting(fh) ? writes.settle(id, fh, request) : undefined),
    fsync: (id, { fh }, request) => writes.settle(id, fh, request),
    forget: (id) => {
      cached.delete(id);
      relookups.delete(id);
      writes.forget(id);
      unlinking.forget(id);
    },
    release: (id, { fh }, request) => {
      const closed = (): Promise<void> | undefined => {
        nodes.closed(id, request.slot);
        return nodes.get(id)?.opens === 0 ? unlinking.closed(id, request) : undefined;
      };
      // Data from memory maps, or of a process that did not wait for close: the kernel forgets the file after this.
      const left = writes.closed(id, fh);
      const end = left === undefined ? closed() : left.then(closed);
      if (end !== undefined) releases.add(id, end);
      return end;
    },
  };
}
