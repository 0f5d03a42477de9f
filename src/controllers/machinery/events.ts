import { waitAfter } from '#base/back-off.ts';
import type { Clock } from '#base/clock.ts';
import type { Scope } from '#base/log.ts';
import type { KubeClient } from '#wire/kube/client.ts';
import { KubeError, mayPass } from '#wire/kube/errors.ts';
import type { KubeEvent, ObjectReference } from '#wire/kube/types.ts';
import { createEventWriter } from './event-writer.ts';

/** What is said on an object. Of what has the same `regarding`, `related` and `action`, only the last is true. */
export interface Report {
  readonly regarding: ObjectReference;
  readonly related?: ObjectReference;
  readonly type: KubeEvent['type'];
  /** One word in CamelCase, of which there are few: `ProvisioningFailed`. */
  readonly reason: string;
  /** What was being done, likewise: `Provision`. */
  readonly action: string;
  /** For whoever may read the object: see `noteOf` for errors. */
  readonly note: string;
}

/**
 * Events for people who look at objects. They are written when there is time, and may be lost: nobody's work depends on them.
 * The same reason on the same object is written once in a while, with how often it was meant. What went wrong comes before what
 * went well. What is written last is what was reported last: nothing is written once it is not true any more and that was said.
 */
export interface Events {
  report(report: Report): void;
  /** Those that are not written yet. */
  readonly waiting: number;
  /** Those that were thrown away. */
  readonly dropped: number;
  /** Writes them until the signal ends it. To be called once. */
  run(scope: Scope): Promise<void>;
}

export interface EventsOptions {
  readonly client: KubeClient;
  readonly clock: Clock;
  /** Such as `stowage.dev/controller`. */
  readonly controller: string;
  /** Of this process. */
  readonly instance: string;
  readonly random?: () => number;
  readonly maxWaiting?: number;
}

/** What the API server takes. */
const maxNote = 1_024;
/** For the same reason on the same object. */
const repeatMs = 300_000;
/** The same, where another was reported since: it is news. What changes all the time is still not told all the time. */
const changeMs = 30_000;
/** The API server itself forgets an Event after an hour. */
const rememberedMs = 3_600_000;
/** Of matters: of each there are only a few reasons. */
const maxRemembered = 4_096;
const maxAttempts = 8;
/**
 * So many that all is well are written at once; of more, one each time. Whoever made hundreds of claims looks at one or two, and
 * what binds all of them waits for the same API server.
 */
const burst = 10;
const paceMs = 100;

/** What only one reason is true of at a time. */
interface Subject {
  readonly topics: Map<string, Topic>;
  /** What was reported last. */
  newest: Topic | undefined;
  /** The turn of the newest that is written. */
  written: number;
}

/** One reason on one object. */
interface Topic {
  readonly subject: Subject;
  report: Report;
  /** When it was last meant: among all reports, and by the clock on the wall. */
  turn: number;
  reportedAt: number;
  /** How often it was meant. */
  count: number;
  /** As it was last written; undefined: it is not yet. */
  written: { readonly name: string; readonly note: string; readonly at: number } | undefined;
  isWaiting: boolean;
}

export function createEvents(options: EventsOptions): Events {
  const { clock, random = Math.random, maxWaiting = 1_000 } = options;
  const writer = createEventWriter(options);
  /** The one that was meant longest ago is the first. */
  const subjects = new Map<string, Subject>();
  const urgent: Topic[] = [];
  const waiting: Topic[] = [];
  /** Those that it is too early for, and when it is time. */
  const delayed = new Map<Topic, number>();
  let turns = 0;
  let dropped = 0;
  let inFlight = 0;
  let wake: (() => void) | undefined;

  function subjectOf(report: Report): Subject {
    const key = keyOf(report);
    const matter = subjects.get(key) ?? { topics: new Map(), newest: undefined, written: 0 };
    subjects.delete(key);
    subjects.set(key, matter);
    for (const [oldest, { topics }] of subjects) {
      if (subjects.size <= maxRemembered) break;
      subjects.delete(oldest);
      for (const topic of topics.values()) if (delayed.delete(topic)) dropped++;
    }
    return matter;
  }

  function remember(report: Report): Topic {
    const matter = subjectOf(report);
    const key = `${report.type} ${report.reason}`;
    const known = matter.topics.get(key);
    const isStale = known?.written !== undefined && clock.elapsed() - known.written.at >= rememberedMs;
    const now = { report, turn: ++turns, reportedAt: clock.now() };
    if (known !== undefined && !isStale) return Object.assign(known, now, { count: known.count + 1 });
    if (known !== undefined) delayed.delete(known);
    const topic: Topic = { ...now, subject: matter, count: 1, written: undefined, isWaiting: false };
    matter.topics.set(key, topic);
    return topic;
  }

  function report(given: Report): void {
    const topic = remember({ ...given, note: shortened(given.note) });
    const isChange = topic.subject.newest !== topic;
    topic.subject.newest = topic;
    if (topic.isWaiting) return;
    const now = clock.elapsed();
    const at = topic.written === undefined ? now : topic.written.at + (isChange ? changeMs : repeatMs);
    // What was news is not put off by being said again.
    const dueAt = Math.min(at, delayed.get(topic) ?? at);
    if (dueAt <= now) enqueue(topic);
    else delayed.set(topic, dueAt);
    wake?.();
  }

  const isFull = (): boolean => urgent.length + waiting.length >= maxWaiting;

  function enqueue(topic: Topic): void {
    delayed.delete(topic);
    if (isFull()) {
      const lost = waiting.shift() ?? urgent.shift();
      if (lost !== undefined) lost.isWaiting = false;
      dropped++;
    }
    topic.isWaiting = true;
    (topic.report.type === 'Warning' ? urgent : waiting).push(topic);
  }

  /** Those whose time has come, as far as there is room. Gives how long it is until the next one. */
  function release(): number {
    const now = clock.elapsed();
    let nextAt = Number.POSITIVE_INFINITY;
    for (const [topic, dueAt] of delayed) {
      // Whatever is taken from the queue makes it look again.
      if (isFull()) return Number.POSITIVE_INFINITY;
      if (dueAt <= now) enqueue(topic);
      else nextAt = Math.min(nextAt, dueAt);
    }
    return nextAt - now;
  }

  async function write(topic: Topic, signal: AbortSignal): Promise<void> {
    const { subject: matter, written, report: current, turn, count } = topic;
    const { note } = current;
    const at = clock.elapsed();
    const meant = { report: current, count, at: topic.reportedAt };
    // A note can not be changed: another one is another Event.
    if (written?.note === note && (await writer.updateSeries(written.name, meant, signal)))
      topic.written = { ...written, at };
    else {
      const name = await writer.create(meant, signal);
      topic.written = { name, note, at };
      topic.count -= count - 1;
    }
    matter.written = turn;
  }

  /** What is refused is refused for good; what may pass is tried a few times, so that an API server that restarts loses none. */
  async function deliver(topic: Topic, { signal, log }: Scope): Promise<void> {
    topic.isWaiting = false;
    // Something newer came first, since it is urgent; or this was written as it is now while it was said again.
    if (topic.turn <= topic.subject.written) return;
    for (let failures = 1; ; failures++) {
      try {
        return await write(topic, signal);
      } catch (error) {
        if (signal.aborted) return;
        const isWorthIt = error instanceof KubeError && mayPass(error) && failures < maxAttempts;
        if (!isWorthIt) {
          dropped++;
          return log.debug('an Event was not written', { reason: topic.report.reason, error });
        }
        const backOffMs = waitAfter(failures, { firstMs: 1_000, mostMs: 30_000, random });
        await clock.sleep(Math.max(error.retryAfterMs, backOffMs), signal).catch(() => undefined);
      }
    }
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
      const wakeUp = (): void => wake?.();
      scope.signal.addEventListener('abort', wakeUp, { once: true });
      const pace = createPace(clock);
      while (!scope.signal.aborted) {
        const heldMs = release();
        const waitMs = urgent.length > 0 ? 0 : Math.min(heldMs, waiting.length > 0 ? pace.waitMs() : heldMs);
        if (waitMs > 0) {
          const { promise, resolve } = Promise.withResolvers<void>();
          wake = resolve;
          using _timer = Number.isFinite(waitMs) ? clock.after(waitMs, resolve) : undefined;
          await promise;
          continue;
        }
        // One at a time: they never have more than one of the connections.
        const topic = urgent.shift() ?? pace.taken(waiting.shift());
        if (topic === undefined) continue;
        inFlight = 1;
        await deliver(topic, scope);
        inFlight = 0;
      }
      scope.signal.removeEventListener('abort', wakeUp);
    },
  };
}

/** So many at once, and then one each time. */
function createPace(clock: Clock): { waitMs(): number; taken<T>(what: T): T } {
  let left = burst;
  let since = clock.elapsed();
  const refill = (): void => {
    const more = Math.floor((clock.elapsed() - since) / paceMs);
    since += more * paceMs;
    left = Math.min(burst, left + more);
  };
  return {
    waitMs: () => {
      refill();
      return left > 0 ? 0 : since + paceMs - clock.elapsed();
    },
    taken: (what) => {
      left--;
      return what;
    },
  };
}

/** Not by what is said: an error whose text has a number in it would be another one each time. */
function keyOf({ regarding, related, action }: Report): string {
  const of = ({ apiVersion, kind, namespace, name, uid }: ObjectReference) => [apiVersion, kind, namespace, name, uid];
  return JSON.stringify([...of(regarding), ...(related === undefined ? [] : of(related)), action]);
}

/** By bytes, as the API server counts; never in the middle of a character. */
function shortened(note: string): string {
  if (Buffer.byteLength(note) <= maxNote) return note;
  const cut = Buffer.from(note).subarray(0, maxNote - 3);
  return `${new TextDecoder().decode(cut).replace(/\ufffd+$/, '')}…`;
}
