import type { Clock } from '#base/clock.ts';
import type { NfsClient } from '#wire/nfs3/client.ts';
import type { AttributeCache } from './attribute-cache.ts';
import type { Marks } from './creation-marks.ts';
import type { NameCache } from './name-cache.ts';
import type { Closing } from './pending-releases.ts';
import type { Nodes, Proofs } from './ports.ts';
import type { Turns } from './request-sequence.ts';
import type { Patience } from './request-wait.ts';
import type { Server } from './server.ts';

/** What the parts of one mount's file system share. */
export interface Context {
  readonly nfs: NfsClient;
  readonly nodes: Nodes;
  readonly proofs: Proofs;
  readonly clock: Clock;
  readonly server: Server;
  readonly attributes: AttributeCache;
  readonly names: NameCache;
  readonly marks: Marks;
  readonly turns: Turns;
  readonly closing: Closing;
  readonly patience: Patience;
  /** How long names are relied on at least. */
  readonly ttlMs: number;
  /** Tells the kernel something unasked. */
  readonly notify: (bytes: Buffer) => void;
}
