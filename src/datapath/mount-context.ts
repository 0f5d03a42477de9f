import type { Clock } from '#base/clock.ts';
import type { NfsClient } from '#wire/nfs3/client.ts';
import type { AttributeCache } from './attribute-cache.ts';
import type { CreationMarks } from './creation-marks.ts';
import type { NameCache } from './name-cache.ts';
import type { PendingReleases } from './pending-releases.ts';
import type { Nodes, Proofs } from './ports.ts';
import type { RequestSequence } from './request-sequence.ts';
import type { RequestWait } from './request-wait.ts';
import type { Server } from './server.ts';

/** Shared by the parts of one mount's file system. */
export interface MountContext {
  readonly nfs: NfsClient;
  readonly nodes: Nodes;
  readonly proofs: Proofs;
  readonly clock: Clock;
  readonly server: Server;
  readonly attributes: AttributeCache;
  readonly names: NameCache;
  readonly creationMarks: CreationMarks;
  readonly sequence: RequestSequence;
  readonly releases: PendingReleases;
  readonly waitFor: RequestWait;
  /** Minimum time that names are cached. */
  readonly ttlMs: number;
  /** Sends a notification to the kernel. */
  readonly notify: (bytes: Buffer) => void;
}
