import { randomUUID } from 'node:crypto';
import { waitAfter } from '#base/back-off.ts';
import type { Clock } from '#base/clock.ts';
import type { Scope } from '#base/log.ts';
import type { KubeClient } from '#wire/kube/client.ts';
import { KubeError, mayPass, reasonOf } from '#wire/kube/errors.ts';
import { events } from '#wire/kube/resources.ts';
import type { KubeEvent, ObjectReference } from '#wire/kube/types.ts';
import { microTime } from './micro-time.ts';

/** What is said on an object. */
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
 * went well.
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
const maxInstance = 128;
const maxName = 253;
/** For the same reason on the same object. */
const quietMs = 300_000;
/** The API server itself forgets an Event after an hour. */
const rememberedMs = 3_600_000;
const maxRemembered = 4_096;
const attempts = 8;
/**
 * So many that all is well are written at once; of more, one each time. Whoever made hundreds of claims looks at one or two, and
 * what binds all of them waits for the same API server.
 */
const burst = 10;
const paceMs = 100;

/** One reason on one object. */
interface Topic {
  report: Report;
  /** How often it was meant. */
  count: number;
  /** As it was last written; undefined: it is not yet. */
  written: { readonly name: string; readonly note: string; readonly at: number } | undefined;
  isWaiting: boolean;
}

export function createEvents(options: EventsOptions): Events {
  const { client, clock, controller, random = Math.random, maxWaiting = 1_000 } = options;
  const instance = options.instance.slice(0, maxInstance);
  /** The one that was meant longest ago is the first. */
  const topics = new Map<string, Topic>();
  const urgent: Topic[] = [];
  const waiting: Topic[] = [];
  let dropped = 0;
  let underWay = 0;
  let wake: (() => void) | undefined;

  function remember(key: string, report: Report): Topic {
    const known = topics.get(key);
    topics.delete(key);
    const isStale = known?.written !== undefined && clock.elapsed() - known.written.at >= rememberedMs;
    const topic: Topic =
      known === undefined || isStale ? { report, count: 0, written: undefined, isWaiting: false } : known;
    topic.report = report;
    topic.count++;
    topics.set(key, topic);
    for (const [oldest] of topics) {
      if (topics.size <= maxRemembered) break;
      topics.delete(oldest);
    }
    return topic;
  }

  function report(given: Report): void {
    const topic = remember(keyOf(given), { ...given, note: shortened(given.note) });
    const isQuiet = topic.written !== undefined && clock.elapsed() - topic.written.at < quietMs;
    if (topic.isWaiting || isQuiet) return;
    if (urgent.length + waiting.length >= maxWaiting) {
      const lost = waiting.shift() ?? urgent.shift();
      if (lost !== undefined) lost.isWaiting = false;
      dropped++;
    }
    topic.isWaiting = true;
    (given.type === 'Warning' ? urgent : waiting).push(topic);
    wake?.();
  }

  async function create({ report: { regarding, related, type, reason, action, note } }: Topic, signal: AbortSignal) {
    const now = microTime(clock.now());
    // What has no namespace has its Events in this one.
    const namespace = regarding.namespace ?? 'default';
    const ending = `.${randomUUID().replaceAll('-', '').slice(0, 16)}`;
    const name = `${(regarding.name ?? '').slice(0, maxName - ending.length)}${ending}`;
    const event: KubeEvent = {
      ...{ metadata: { name, namespace }, eventTime: now, type, reason, action, note, regarding },
      ...(related === undefined ? {} : { related }),
      ...{ reportingController: controller, reportingInstance: instance },
    };
    await client.create(events, event, signal);
    return name;
  }

  async function write(topic: Topic, signal: AbortSignal): Promise<void> {
    const { written, report: current, count } = topic;
    const { note } = current;
    const at = clock.elapsed();
    // A note can not be changed: another one is another Event.
    if (written?.note === note && (await isCounted(topic, written.name, signal))) {
      topic.written = { ...written, at };
      return;
    }
    const name = await create(topic, signal);
    topic.written = { name, note, at };
    topic.count -= count - 1;
  }

  /** On the Event that is there already, unless the API server has forgotten it. */
  async function isCounted(
    { report: { regarding }, count }: Topic,
    name: string,
    signal: AbortSignal,
  ): Promise<boolean> {
    const at = { namespace: regarding.namespace ?? 'default', name };
    const body = { series: { count, lastObservedTime: microTime(clock.now()) } };
    try {
      await client.patch(events, at, { kind: 'merge', body }, signal);
      return true;
    } catch (thrown) {
      if (reasonOf(thrown) === 'NotFound') return false;
      throw thrown;
    }
  }

  /** What is refused is refused for good; what may pass is tried a few times, so that an API server that restarts loses none. */
  async function deliver(topic: Topic, { signal, log }: Scope): Promise<void> {
    topic.isWaiting = false;
    for (let failures = 1; ; failures++) {
      try {
        return await write(topic, signal);
      } catch (error) {
        if (signal.aborted) return;
        const isWorthIt = error instanceof KubeError && mayPass(error) && failures < attempts;
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
      return urgent.length + waiting.length + underWay;
    },
    get dropped() {
      return dropped;
    },
    run: async (scope) => {
      const rouse = (): void => wake?.();
      scope.signal.addEventListener('abort', rouse, { once: true });
      const pace = createPace(clock);
      while (!scope.signal.aborted) {
        const waitMs = urgent.length > 0 ? 0 : waiting.length > 0 ? pace.waitMs() : Number.POSITIVE_INFINITY;
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
        underWay = 1;
        await deliver(topic, scope);
        underWay = 0;
      }
      scope.signal.removeEventListener('abort', rouse);
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
function keyOf({ regarding, related, type, reason, action }: Report): string {
  const of = ({ apiVersion, kind, namespace, name, uid }: ObjectReference) => [apiVersion, kind, namespace, name, uid];
  return JSON.stringify([...of(regarding), ...(related === undefined ? [] : of(related)), type, reason, action]);
}

/** By bytes, as the API server counts; never in the middle of a character. */
function shortened(note: string): string {
  if (Buffer.byteLength(note) <= maxNote) return note;
  const cut = Buffer.from(note).subarray(0, maxNote - 3);
  return `${new TextDecoder().decode(cut).replace(/\ufffd+$/, '')}…`;
}
