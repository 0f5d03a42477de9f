import { onAbort } from '#base/aborted.ts';
import type { Clock } from '#base/clock.ts';
import type { Scope } from '#base/log.ts';
import type { KubeClient } from '#wire/kube/client.ts';
import type { KubeEvent, ObjectReference } from '#wire/kube/types.ts';
import { createEventDelivery, type Subject, type Topic } from './event-delivery.ts';
import { createEventWriter } from './event-writer.ts';

/** An Event to report. Of several Events with the same `regarding`, `related` and `action`, only the last one is valid. */
export interface Report {
  readonly regarding: ObjectReference;
  readonly related?: ObjectReference;
  readonly type: KubeEvent['type'];
  /** One of few words in CamelCase, such as `ProvisioningFailed`. */
  readonly reason: string;
  /** The attempted action in CamelCase, such as `Provision`. */
  readonly action: string;
  /** A text for all users who may read the object. For errors see `errorNote`. */
  readonly note: string;
}

/**
 * Writes Events in the background, with best effort. Repeated reports of the same reason on the same object are rate-limited, and counted.
 * Warnings are written before normal Events. The last Event written is always the last one reported: an older report is dropped once a
 * newer one with the same `regarding`, `related` and `action` was written.
 */
export interface Events {
  report(report: Report): void;
  /** The number of Events that are due and not written yet. */
  readonly waiting: number;
  /** The number of Events that were dropped. */
  readonly dropped: number;
  /** Writes Events until the signal aborts. Call it once. */
  run(scope: Scope): Promise<void>;
}

export interface EventsOptions {
  readonly client: KubeClient;
  readonly clock: Clock;
  /** Such as `stowage.dev/controller`. */
  readonly controller: string;
  /** Identifies this process. */
  readonly instance: string;
  readonly random?: () => number;
  readonly maxWaiting?: number;
}

/** The limit of the API server, in bytes. */
const maxNoteBytes = 1_024;
/** The shortest time between two writes of the same reason on the same object. */
const minRepeatMs = 300_000;
/** The shortest time if another reason was reported in between, since that is a change. It still limits a state that flaps. */
const minChangeMs = 30_000;
/** How long the API server keeps Events. */
const eventLifetimeMs = 3_600_000;
/** The limit of remembered subjects; each has only a few reasons. */
const maxSubjects = 4_096;
/**
 * Normal Events are written in a burst of this size, then one per `tokenIntervalMs`. A user who creates hundreds of claims reads the Events
 * of one or two, while binding all claims needs the same API server.
 */
const burstSize = 10;
const tokenIntervalMs = 100;

export function createEvents(options: EventsOptions): Events {
  const { clock, random = Math.random, maxWaiting = 1_000 } = options;
  const deliver = createEventDelivery({ writer: createEventWriter(options), clock, random });
  /** Ordered by last report, the oldest first. */
  const subjects = new Map<string, Subject>();
  const urgent: Topic[] = [];
  const waiting: Topic[] = [];
  /** Rate-limited topics, with the time when they are due. */
  const delayed = new Map<Topic, number>();
  let reportCount = 0;
  let dropped = 0;
  let inFlight = 0;
  let wake: (() => void) | undefined;

  function subjectOf(report: Report): Subject {
    const key = subjectKeyOf(report);
    const subject = subjects.get(key) ?? { topics: new Map(), newest: undefined, highestWritten: 0 };
    subjects.delete(key);
    subjects.set(key, subject);
    for (const [oldest, { topics }] of subjects) {
      if (subjects.size <= maxSubjects) break;
      subjects.delete(oldest);
      for (const topic of topics.values()) if (delayed.delete(topic)) dropped++;
    }
    return subject;
  }

  function remember(report: Report): Topic {
    const subject = subjectOf(report);
    const key = `${report.type} ${report.reason}`;
    const existing = subject.topics.get(key);
    const isStale =
      existing?.lastEvent !== undefined && clock.elapsed() - existing.lastEvent.writtenAt >= eventLifetimeMs;
    const latest = { report, reportNumber: ++reportCount, reportedAt: clock.now() };
    if (existing !== undefined && !isStale) return Object.assign(existing, latest, { count: existing.count + 1 });
    if (existing !== undefined) delayed.delete(existing);
    const topic: Topic = { ...latest, subject, count: 1, lastEvent: undefined, isQueued: false };
    subject.topics.set(key, topic);
    return topic;
  }

  function report(original: Report): void {
    const topic = remember({ ...original, note: truncateNote(original.note) });
    const isChange = topic.subject.newest !== topic;
    topic.subject.newest = topic;
    if (topic.isQueued) return;
    const now = clock.elapsed();
    const allowedAt =
      topic.lastEvent === undefined ? now : topic.lastEvent.writtenAt + (isChange ? minChangeMs : minRepeatMs);
    // A repeated report must not postpone a change that is due earlier.
    const dueAt = Math.min(allowedAt, delayed.get(topic) ?? allowedAt);
    if (dueAt <= now) enqueue(topic);
    else delayed.set(topic, dueAt);
    wake?.();
  }

  const isFull = (): boolean => urgent.length + waiting.length >= maxWaiting;

  function enqueue(topic: Topic): void {
    delayed.delete(topic);
    if (isFull()) {
      const oldest = waiting.shift() ?? urgent.shift();
      if (oldest !== undefined) oldest.isQueued = false;
      dropped++;
    }
    topic.isQueued = true;
    (topic.report.type === 'Warning' ? urgent : waiting).push(topic);
  }

  /** Enqueues the topics that are due, as long as there is room. Returns the time until the next one. */
  function enqueueDue(): number {
    const now = clock.elapsed();
    let nextAt = Number.POSITIVE_INFINITY;
    for (const [topic, dueAt] of delayed) {
      // The loop calls this again after each Event that it takes from the queue.
      if (isFull()) return Number.POSITIVE_INFINITY;
      if (dueAt <= now) enqueue(topic);
      else nextAt = Math.min(nextAt, dueAt);
    }
    return nextAt - now;
  }

  return {
    report,
    get waiting() {
      return urgent.length + waiting.length + inFlight;
    },
    get dropped() {
      return dropped;
    },
    run: async (scope) => {
      using _ = onAbort(scope.signal, () => wake?.());
      const bucket = createTokenBucket(clock);
      while (!scope.signal.aborted) {
        const nextDueMs = enqueueDue();
        const waitMs = urgent.length > 0 ? 0 : Math.min(nextDueMs, waiting.length > 0 ? bucket.waitMs() : nextDueMs);
        if (waitMs > 0) {
          const { promise, resolve } = Promise.withResolvers<void>();
          wake = resolve;
          using _timer = Number.isFinite(waitMs) ? clock.after(waitMs, resolve) : undefined;
          await promise;
          continue;
        }
        // One at a time, so that Events use at most one connection.
        const topic = urgent.shift() ?? bucket.takeFor(waiting.shift());
        if (topic === undefined) continue;
        inFlight = 1;
        if (!(await deliver(topic, scope))) dropped++;
        inFlight = 0;
      }
    },
  };
}

/** A token bucket of `burstSize` tokens, which gets one token per `tokenIntervalMs`. */
function createTokenBucket(clock: Clock): { waitMs(): number; takeFor<T>(what: T): T } {
  let tokens = burstSize;
  let refilledAt = clock.elapsed();
  const refill = (): void => {
    const newTokens = Math.floor((clock.elapsed() - refilledAt) / tokenIntervalMs);
    refilledAt += newTokens * tokenIntervalMs;
    tokens = Math.min(burstSize, tokens + newTokens);
  };
  return {
    waitMs: () => {
      refill();
      return tokens > 0 ? 0 : refilledAt + tokenIntervalMs - clock.elapsed();
    },
    takeFor: (what) => {
      tokens--;
      return what;
    },
  };
}

/** Without the note: a text with a changing number would otherwise be a new subject each time. */
function subjectKeyOf({ regarding, related, action }: Report): string {
  const fieldsOf = ({ apiVersion, kind, namespace, name, uid }: ObjectReference) => [
    apiVersion,
    kind,
    namespace,
    name,
    uid,
  ];
  return JSON.stringify([...fieldsOf(regarding), ...(related === undefined ? [] : fieldsOf(related)), action]);
}

/** Truncates by bytes, as the API server counts, but never within a character. */
function truncateNote(note: string): string {
  if (Buffer.byteLength(note) <= maxNoteBytes) return note;
  const head = Buffer.from(note).subarray(0, maxNoteBytes - 3);
  return `${new TextDecoder().decode(head).replace(/\ufffd+$/, '')}…`;
}
