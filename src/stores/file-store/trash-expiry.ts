import { isJsonObject } from '#base/json.ts';

/** When a trash entry may be purged, and by whom. Part of the entry's record. docs/designs/trash-expiry.md has the reasons. */
export interface Expiry {
  /** In ms, by the clock of the server that has the files. Undefined: the server's time is not known yet. */
  readonly expiresAt?: number;
  /** The store's retention when the volume was deleted, in ms. */
  readonly retention: number;
  /** The instance that deleted the volume, and purges it. */
  readonly owner: string;
  /** When the owner first saw the entry. */
  readonly seen?: Observation;
  /** The instance that purges the entry if the owner never comes back. */
  readonly successor?: Observation & {
    /** When it became the successor, by the server's clock. */
    readonly since: number;
  };
}

export interface Observation {
  /** An instance. */
  readonly by: string;
  /** The value of its ObservedTime when it first saw the entry. */
  readonly at: number;
}

/** The host that decides on an entry. */
export interface Observer {
  readonly instance: string;
  /** False: this host has the store locked, so no other host can purge. */
  readonly isShared: boolean;
  /** Its ObservedTime. */
  readonly observed: number;
  /** The server's clock. */
  readonly serverNow: number;
}

export type Verdict =
  | { readonly verdict: 'keep' }
  | { readonly verdict: 'purge' }
  /** Write this expiry into the entry first. */
  | { readonly verdict: 'record'; readonly expiry: Expiry };

const hourMs = 3_600_000;
const weekMs = 7 * 24 * hourMs;
/** A running owner purges within a minute. An owner that restarts or is updated is back within this time. */
const takeOverAfterMs = hourMs;
/** If a recorded observation is further ahead of the ObservedTime than this, the count was lost and has restarted from 0. */
const maxAheadMs = hourMs;

const graceMs = (retention: number): number => Math.max(weekMs, retention);

/** How long a host that is not the owner waits, by the server's clock and by its own observed time. */
export const takeOverWaitMs = (retention: number): number => retention + graceMs(retention);

export function decideExpiry(expiry: Expiry, observer: Observer): Verdict {
  const { instance, isShared, observed, serverNow } = observer;
  const { expiresAt, retention, owner, seen } = expiry;
  const isOwner = !isShared || owner === instance;
  const observation = { by: instance, at: observed };
  const isLost = (observation: Observation | undefined): boolean =>
    observation === undefined || observation.by !== instance || observation.at - observed > maxAheadMs;
  if (expiresAt === undefined || (isOwner && isLost(seen)))
    return {
      verdict: 'record',
      expiry: { ...expiry, expiresAt: expiresAt ?? serverNow + retention, ...(isOwner ? { seen: observation } : {}) },
    };
  if (isOwner) return purgeIf(serverNow >= expiresAt && observed - (seen?.at ?? observed) >= retention);
  return decideAsOtherHost(expiry, { ...observer, expiresAt, isLost });
}

function decideAsOtherHost(
  expiry: Expiry,
  {
    instance,
    observed,
    serverNow,
    expiresAt,
    isLost,
  }: Observer & { readonly expiresAt: number; isLost(one: Observation | undefined): boolean },
): Verdict {
  const { retention, successor } = expiry;
  if (serverNow < expiresAt + takeOverAfterMs) return { verdict: 'keep' };
  // In both directions: a date far in the future comes from a clock that was wrong.
  const isOverdue = successor !== undefined && Math.abs(serverNow - successor.since) > 2 * takeOverWaitMs(retention);
  if (successor === undefined || (successor.by === instance ? isLost(successor) : isOverdue))
    return {
      verdict: 'record',
      expiry: { ...expiry, successor: { by: instance, at: observed, since: serverNow } },
    };
  return purgeIf(
    successor.by === instance &&
      serverNow >= expiresAt + graceMs(retention) &&
      observed - successor.at >= takeOverWaitMs(retention),
  );
}

const purgeIf = (isDue: boolean): Verdict => ({ verdict: isDue ? 'purge' : 'keep' });

const isCount = (value: unknown): value is number => Number.isSafeInteger(value) && Number(value) >= 0;

/** 'unreadable': the entry never expires by itself. */
export function parseExpiry(value: unknown): Expiry | 'unreadable' {
  if (!isJsonObject(value)) return 'unreadable';
  const { expiresAt, retention, owner } = value;
  if (!isCount(retention) || typeof owner !== 'string') return 'unreadable';
  if (expiresAt !== undefined && !isCount(expiresAt)) return 'unreadable';
  const seen = observationIn(value['seen']);
  const successor = observationIn(value['successor']);
  const since = isJsonObject(value['successor']) ? value['successor']['since'] : undefined;
  return {
    ...(expiresAt === undefined ? {} : { expiresAt }),
    retention,
    owner,
    ...(seen === undefined ? {} : { seen }),
    ...(successor === undefined || !isCount(since) ? {} : { successor: { ...successor, since } }),
  };
}

/** An unreadable observation counts as none: the next host that sees the entry starts counting. */
function observationIn(value: unknown): Observation | undefined {
  if (!isJsonObject(value)) return undefined;
  const { by, at } = value;
  return typeof by === 'string' && isCount(at) ? { by, at } : undefined;
}
