import { createHash, randomUUID } from 'node:crypto';
import { type Clock, systemClock } from '#base/clock.ts';
import type { NfsClient } from '#wire/nfs3/client.ts';
import type { FileHandle } from '#wire/nfs3/structures.ts';
import type { CallOptions } from '#wire/rpc/client.ts';
import { credential } from '#wire/rpc/message.ts';
import { isTransient } from '../errors.ts';
import type { MountSpec, QuotaSpec } from '../mount-spec.ts';
import type { KeptGrowth } from './account.ts';
import { countTree } from './count-tree.ts';
import { createLedger, scratchName } from './ledger.ts';
import { createLedgerFiles, type LedgerFiles } from './ledger-files.ts';
import { createQuota, type Quota } from './quota.ts';
import { createRecount } from './recount.ts';

export interface MountQuotaParts {
  readonly nfs: NfsClient;
  readonly spec: Pick<MountSpec, 'root' | 'squash' | 'uid' | 'gid' | 'softMs'>;
  readonly quota: QuotaSpec;
  /** The id of the mount: a node can have two of one volume for a while, and each has its own part of the ledger. */
  readonly mount: string;
  readonly kept: KeptGrowth;
  readonly clock?: Clock;
  /** Something to be waited for before anything is changed on the server. */
  readonly ready?: (() => Promise<void> | undefined) | undefined;
  /** The mount is over: nobody waits any more. `close` can still be called. */
  readonly signal: AbortSignal;
  failed(cause: unknown): void;
}

const retryMs = 500;
const closeMs = 10_000;

/** The quota of a mount, with its ledger on the server. */
export function createMountQuota(parts: MountQuotaParts): Quota {
  const { nfs, spec, quota: given, mount, kept, clock = systemClock(), ready, signal, failed } = parts;
  const ending = new AbortController();
  const options: CallOptions = {
    ...{ credential: storeCredential(spec), deadlineMs: spec.softMs ?? Infinity },
    signal: ending.signal,
  };
  const member = `${given.host}.${createHash('sha256').update(mount).digest('hex').slice(0, 12)}`;
  const folder: FileHandle = Buffer.from(given.ledger, 'base64');
  const root: FileHandle = Buffer.from(spec.root, 'base64');
  // Each with a scratch of its own: both may be writing at the same time, and what a predecessor wrote may come late.
  const filesOf = (): LedgerFiles =>
    createLedgerFiles({ ...{ nfs, folder, options, ready }, scratch: scratchName(`${member}.${randomUUID()}`) });
  const limit = given.bytes;
  const quota = createQuota({
    ledger: createLedger({ files: filesOf(), clock, signal, member, limit }),
    recount: createRecount({
      ...{ files: filesOf(), clock },
      count: (countSignal) =>
        countTree(nfs, root, { ...options, signal: AbortSignal.any([countSignal, ending.signal]) }),
    }),
    ...{ kept, clock, limit, signal, failed },
  });

  /** `hard`: a server that is not there, or says "later", is waited for. */
  async function patiently(bytes: number): Promise<void> {
    for (;;) {
      try {
        return await quota.admit(bytes);
      } catch (cause) {
        if (!isTransient(cause) || spec.softMs !== undefined) throw cause;
        await clock.sleep(retryMs, signal);
      }
    }
  }

  /** What is not given back the next count finds. A server that is gone must not hold the connection for ever. */
  async function close(): Promise<void> {
    using _ = clock.after(closeMs, () => ending.abort(new Error('the server did not answer in time')));
    await quota.close();
  }

  return { ...quota, admit: patiently, close };
}

/** The ledger is the store's own, and so is the right to look at the whole tree. */
function storeCredential({ squash, uid, gid }: Pick<MountSpec, 'squash' | 'uid' | 'gid'>): Buffer {
  const isRoot = squash === 'none';
  return credential({ uid: isRoot ? 0 : uid, gid: isRoot ? 0 : gid, groups: [], machine: '' });
}
