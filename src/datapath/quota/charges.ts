import { unlessAborted } from '#base/aborted.ts';
import type { Request } from '#wire/fuse/operations.ts';
import { type Attributes, fileType } from '#wire/nfs3/structures.ts';
import type { AttributeCache } from '../attribute-cache.ts';
import type { RequestWait } from '../request-wait.ts';
import type { Quota } from './quota.ts';

/**
 * The space that requests of a mount cost, estimated at the write from the file's known attributes: a file without
 * holes grows only beyond its end; one with holes by at most what is written, and never by more than its holes. The
 * next count corrects wrong estimates, for example with compression on the server.
 */
export interface Charges {
  /**
   * Call before a write. Undefined: it needs no more space; otherwise resolves when there is enough, or rejects with
   * EDQUOT.
   */
  write(id: number, offset: number, length: number, request: Request): Promise<void> | undefined;
  /** A write that a predecessor had charged and answered. */
  restore(place: number, length: number): void;
  /** The write at this place is on the server's disk or lost. Until then, a count may not have seen it. */
  settle(place: number): void;
  /** The write failed or was abandoned while it waited for space. Its charge counts, and its place may be reused. */
  abandon(request: Request): void;
  /**
   * Call before a truncate or the removal of a name: returns the current state. Undefined: unknown, so nothing is
   * credited.
   */
  spaceToFree(id: number | undefined, request: Request): Promise<SpaceToFree | undefined> | undefined;
  /** The file was truncated or extended. */
  recordResize(id: number, before: SpaceToFree | undefined, after: Attributes | undefined): void;
  /** The file lost a name; if it was the last, its space is free. */
  recordRemoval(id: number | undefined, before: SpaceToFree | undefined): void;
  forget(id: number): void;
}

export interface SpaceToFree {
  /** The server's current attributes. */
  readonly attributes: Attributes;
  /** The ledger's epoch. A count in between may already have seen the space as free. */
  readonly epoch: number;
}

export interface ChargesParts {
  readonly quota: Pick<Quota, 'admit' | 'adopt' | 'recordUsage' | 'epoch' | 'epochBeforeFree'>;
  readonly attributes: Pick<AttributeCache, 'lastSeen' | 'epoch' | 'ageMs'>;
  /** Gets the attributes from the server after it has answered all writes. */
  readonly getattr: (id: number, request: Request) => Promise<Attributes>;
  readonly waitFor: RequestWait;
}

/** Charges of a file since its first write, or since another client's last change. */
interface FileCharge {
  readonly id: number;
  /** The attribute cache's epoch; it changes when another client changes the file. */
  readonly contentEpoch: number;
  /** The ledger's epoch. Charges of an earlier epoch were counted since. */
  ledgerEpoch: number | undefined;
  /** Space of the file on the server before these charges. */
  readonly used: number;
  /** The number of bytes, not their extent: there may be holes. */
  bytes: number;
  /** End of the charged range. It says nothing about the space that a removal frees. */
  end: number;
  /** The part of `bytes` that is not on the server's disk. */
  unsettledBytes: number;
}

const blockBytes = 4096;
const roundUp = (bytes: number): number => Math.ceil(bytes / blockBytes) * blockBytes;
/** Credited space must be free even if other nodes write. */
const maxAttributeAgeMs = 1_000;
const emptyFile: Pick<Attributes, 'size' | 'used'> = { size: 0, used: 0 };

export function createCharges({ quota, attributes, getattr, waitFor }: ChargesParts): Charges {
  const files = new Map<number, FileCharge>();
  const unsettled = new Map<number, { bytes: number; readonly file?: FileCharge }>();
  const abandonedRequests = new WeakSet<Request>();

  const isContentUnchanged = ({ id, contentEpoch: content }: FileCharge): boolean => content === attributes.epoch(id);
  const isOfLedgerEpoch = ({ ledgerEpoch: ledger }: FileCharge): boolean =>
    ledger === undefined || ledger === quota.epoch();
  const isCharged = (file: FileCharge): boolean => isContentUnchanged(file) && file.ledgerEpoch === quota.epoch();

  function fileOf(id: number): FileCharge {
    const found = files.get(id);
    if (found !== undefined && isContentUnchanged(found) && isOfLedgerEpoch(found)) return found;
    const { used } = attributes.lastSeen(id) ?? emptyFile;
    const contentEpoch = attributes.epoch(id);
    const end = found?.contentEpoch === contentEpoch ? found.end : 0;
    const made: FileCharge = { id, contentEpoch, used, ledgerEpoch: undefined, bytes: 0, end, unsettledBytes: 0 };
    files.set(id, made);
    return made;
  }

  function charge(id: number, offset: number, length: number, request: Request): Promise<void> | undefined {
    const file = fileOf(id);
    const bytes = costOf(file, attributes.lastSeen(id) ?? emptyFile, offset, length);
    if (bytes === 0) return undefined;
    const [before, end] = [file.end, Math.max(file.end, roundUp(offset + length))];
    // Extend at once: a concurrent write there must not be charged again.
    file.end = end;
    file.bytes += bytes;
    return quota.admit(bytes).then(
      () => {
        file.ledgerEpoch ??= quota.epoch();
        if (abandonedRequests.has(request)) return quota.recordUsage(bytes, bytes);
        file.unsettledBytes += bytes;
        unsettled.set(request.slot, { bytes: bytes + (unsettled.get(request.slot)?.bytes ?? 0), file });
      },
      (cause: unknown) => {
        file.bytes -= bytes;
        if (file.end === end) file.end = before;
        throw cause;
      },
    );
  }

  /** File systems use more space than is written, some much more. */
  function chargeExcess(file: FileCharge): void {
    if (files.get(file.id) !== file || !isCharged(file)) return;
    const excess = (attributes.lastSeen(file.id)?.used ?? 0) - file.used - file.bytes;
    if (excess <= 0) return;
    file.bytes += excess;
    quota.recordUsage(excess);
  }

  const chargedFile = (id: number): FileCharge | undefined => {
    const file = files.get(id);
    return file !== undefined && isCharged(file) ? file : undefined;
  };

  async function stateBefore(id: number, request: Request): Promise<SpaceToFree | undefined> {
    const epoch = await waitFor(request, (signal) => unlessAborted(quota.epochBeforeFree(), signal));
    const known = attributes.ageMs(id) <= maxAttributeAgeMs ? attributes.lastSeen(id) : undefined;
    return epoch === undefined ? undefined : { attributes: known ?? (await getattr(id, request)), epoch };
  }

  function settle(place: number): void {
    const settledCharge = unsettled.get(place);
    if (settledCharge === undefined) return;
    unsettled.delete(place);
    quota.recordUsage(settledCharge.bytes, settledCharge.bytes);
    if (settledCharge.file === undefined) return;
    settledCharge.file.unsettledBytes -= settledCharge.bytes;
    if (settledCharge.file.unsettledBytes === 0) chargeExcess(settledCharge.file);
  }

  function creditFreed(bytes: number, epoch: number): void {
    if (bytes > 0 && epoch === quota.epoch()) quota.recordUsage(-bytes);
  }

  return {
    write: (id, offset, length, request) => {
      if (attributes.lastSeen(id) !== undefined) return charge(id, offset, length, request);
      // After a crash of the predecessor, the whole write may overwrite existing data.
      return getattr(id, request).then(() => charge(id, offset, length, request));
    },
    restore: (place, bytes) => {
      quota.adopt(bytes);
      unsettled.set(place, { bytes });
    },
    settle,
    abandon: (request) => {
      abandonedRequests.add(request);
      settle(request.slot);
    },
    spaceToFree: (id, request) => (id === undefined ? undefined : stateBefore(id, request).catch(() => undefined)),
    recordResize: (id, before, after) => {
      // If either is unknown, the file may have been truncated, and its charges are no longer valid.
      if (before === undefined || after === undefined) return void files.delete(id);
      if (after.size >= before.attributes.size) return;
      const took = spaceOf(chargedFile(id), before.attributes);
      files.delete(id);
      // Space before the new end stays used, even if the server reports it later.
      creditFreed(Math.min(took - after.used, roundUp(before.attributes.size) - roundUp(after.size)), before.epoch);
    },
    recordRemoval: (id, before) => {
      if (id === undefined) return;
      if (before === undefined) return void files.delete(id);
      // Other objects, and files with further links, free nothing.
      if (before.attributes.type !== fileType.regular || before.attributes.links > 1) return;
      const took = spaceOf(chargedFile(id), before.attributes);
      files.delete(id);
      creditFreed(took, before.epoch);
    },
    forget: (id) => void files.delete(id),
  };
}

/** The space freed with the file: what was charged for it, if known; else what the server reports. */
function spaceOf(file: FileCharge | undefined, { size, used }: Attributes): number {
  return file === undefined ? used : Math.min(file.used + file.bytes, Math.max(used, roundUp(size)));
}

function costOf(
  file: FileCharge,
  attributes: Pick<Attributes, 'size' | 'used'>,
  offset: number,
  length: number,
): number {
  const [first, last] = [offset - (offset % blockBytes), roundUp(offset + length)];
  const end = Math.max(roundUp(attributes.size), file.end);
  const beyond = Math.max(0, last - Math.max(end, first));
  const within = Math.max(0, Math.min(end, last) - first);
  const holes = Math.max(0, end - Math.max(attributes.used, file.used + file.bytes));
  return beyond + Math.min(holes, within);
}

/** For a mount without a quota. */
export const noCharges: Charges = {
  write: () => undefined,
  restore: () => undefined,
  settle: () => undefined,
  abandon: () => undefined,
  spaceToFree: () => undefined,
  recordResize: () => undefined,
  recordRemoval: () => undefined,
  forget: () => undefined,
};
