import { createAttributeCache } from './attribute-cache.ts';
import type { Calls } from './calls.ts';
import { createCreationMarks } from './creation-marks.ts';
import type { FileSystemParts } from './file-system.ts';
import { createIdentities } from './identity.ts';
import type { MountContext } from './mount-context.ts';
import { createNameCache } from './name-cache.ts';
import { createPendingReleases } from './pending-releases.ts';
import { createRequestSequence } from './request-sequence.ts';
import { createRequestWait } from './request-wait.ts';
import { createServer } from './server.ts';
import type { SharedCaches } from './shared-caches.ts';

interface ContextOptions {
  readonly calls: Calls;
  readonly shared: SharedCaches;
  readonly ttlMs: number;
  readonly timeoutMs: number;
  /** The minimum size of a file by unanswered writes. Undefined: all are answered. */
  readonly unansweredEnd: (id: number) => number | undefined;
}

/** The caches of a mount, and the server as it sees it. */
export function createMountContext(
  { nfs, nodes, proofs, clock, notify, options }: FileSystemParts,
  { calls, shared, ttlMs, timeoutMs, unansweredEnd: endOf }: ContextOptions,
): MountContext {
  const attributes = createAttributeCache({
    clock,
    ttlMs,
    isHidden: (id) => nodes.hiddenName(id) !== undefined,
    unansweredEnd: endOf,
    limit: shared.attributes,
    group: options.group,
  });
  const names = createNameCache({ epochOf: attributes.epoch, clock, limit: shared.names });
  const server = createServer({
    nfs,
    nodes,
    attributes,
    names,
    calls,
    notify,
    identities: createIdentities(options.identity),
  });
  const sequence = createRequestSequence(attributes);
  const waitFor = createRequestWait({ clock, calls, timeoutMs });
  return {
    nfs,
    nodes,
    proofs,
    clock,
    server,
    attributes,
    names,
    creationMarks: createCreationMarks(clock),
    sequence,
    ttlMs,
    notify,
    waitFor,
    releases: createPendingReleases(nodes, waitFor),
  };
}
