import { createHash, randomUUID } from 'node:crypto';
import { type Clock, systemClock } from '#base/clock.ts';
import type { NfsClient } from '#wire/nfs3/client.ts';
import type { FileHandle } from '#wire/nfs3/structures.ts';
import type { CallOptions } from '#wire/rpc/client.ts';
import { encodeCredential } from '#wire/rpc/message.ts';
import { isTransient } from '../errors.ts';
import type { MountSpec, QuotaSpec } from '../mount-spec.ts';
import type { StoredGrowth } from './account.ts';
import { countTree } from './count-tree.ts';
import { createLedger, temporaryName } from './ledger.ts';
import { createLedgerFiles, type LedgerFiles } from './ledger-files.ts';
import { createQuota, type Quota } from './quota.ts';
import { createRecount } from './recount.ts';

export interface MountQuotaParts {
  readonly nfs: NfsClient;
  readonly spec: Pick<MountSpec, 'root' | 'squash' | 'uid' | 'gid' | 'softMs'>;
  readonly quota: QuotaSpec;
  /** The mount's id: a node can have two mounts of one volume for a while, each with its own part of the ledger. */
  readonly mount: string;
  readonly storedGrowth: StoredGrowth;
  readonly clock?: Clock;
  /** Resolves when changes on the server may start. Undefined: now. */
  readonly ready?: (() => Promise<void> | undefined) | undefined;
  /** Aborts when the mount is gone. `close` may still be called. */
  readonly signal: AbortSignal;
  failed(cause: unknown): void;
}

const retryMs = 500;
const closeTimeoutMs = 10_000;

/** Creates the quota of a mount, with its ledger on the server. */
export function createMountQuota(parts: MountQuotaParts): Quota {
  const { nfs, spec, quota: quotaSpec, mount, storedGrowth, clock = systemClock(), ready, signal, failed } = parts;
  const callsAbort = new AbortController();
  const options: CallOptions = {
    credential: storeCredential(spec),
    deadlineMs: spec.softMs ?? Infinity,
    signal: callsAbort.signal,
  };
  const member = `${quotaSpec.host}.${createHash('sha256').update(mount).digest('hex').slice(0, 12)}`;
  const folder: FileHandle = Buffer.from(quotaSpec.ledger, 'base64');
  const root: FileHandle = Buffer.from(spec.root, 'base64');
  // Separate temporary names: ledger and recount may write at the same time, and a predecessor's write may arrive late.
  const createFiles = (): LedgerFiles =>
    createLedgerFiles({ nfs, folder, options, ready, temporaryName: temporaryName(`${member}.${randomUUID()}`) });
  const limit = quotaSpec.bytes;
  const quota = createQuota({
    ledger: createLedger({ files: createFiles(), clock, signal, member, limit }),
    recount: createRecount({
      files: createFiles(),
      clock,
      count: (countSignal) =>
        countTree(nfs, root, { ...options, signal: AbortSignal.any([countSignal, callsAbort.signal]) }),
    }),
    storedGrowth,
    clock,
    limit,
    signal,
    failed,
  });

  /** With `hard`, retries while the server is unreachable or answers JUKEBOX. */
  async function admitWithRetry(bytes: number): Promise<void> {
    for (;;) {
      try {
        return await quota.admit(bytes);
      } catch (cause) {
        if (!isTransient(cause) || spec.softMs !== undefined) throw cause;
        await clock.sleep(retryMs, signal);
      }
    }
  }

  /** The next count finds grants that are not returned. A dead server must not keep the connection open forever. */
  async function close(): Promise<void> {
    using _ = clock.after(closeTimeoutMs, () => callsAbort.abort(new Error('the server did not answer in time')));
    await quota.close();
  }

  return { ...quota, admit: admitWithRetry, close };
}

/** Uses the store's identity, which may read the ledger and the whole tree. */
function storeCredential({ squash, uid, gid }: Pick<MountSpec, 'squash' | 'uid' | 'gid'>): Buffer {
  const isRoot = squash === 'none';
  return encodeCredential({ uid: isRoot ? 0 : uid, gid: isRoot ? 0 : gid, groups: [], machine: '' });
}
