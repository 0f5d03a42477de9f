import { backOffDelay } from '#base/back-off.ts';
import type { Clock } from '#base/clock.ts';
import type { Scope } from '#base/log.ts';
import { isTransient, KubeError } from '#wire/kube/errors.ts';
import type { EventWriter } from './event-writer.ts';
import type { Report } from './events.ts';

/** The same `regarding`, `related` and `action`: only one reason is true at a time. */
export interface Subject {
  readonly topics: Map<string, Topic>;
  /** The last one reported. */
  newest: Topic | undefined;
  /** The highest `turn` that is written. */
  written: number;
}

/** One reason on one subject. */
export interface Topic {
  readonly subject: Subject;
  report: Report;
  /** The number of its last report among all reports. */
  turn: number;
  reportedAt: number;
  /** How often it was reported. */
  count: number;
  /** The last Event written for it, if any. */
  written: { readonly name: string; readonly note: string; readonly at: number } | undefined;
  isWaiting: boolean;
}

export interface EventDeliveryOptions {
  readonly writer: EventWriter;
  readonly clock: Clock;
  readonly random: () => number;
}

/**
 * Writes the latest report of a topic. Retries transient errors a few times, so that a restart of the API server loses no Events. Other
 * errors are final: then it returns false.
 */
export type DeliverEvent = (topic: Topic, scope: Scope) => Promise<boolean>;

const maxAttempts = 8;

export function createEventDelivery({ writer, clock, random }: EventDeliveryOptions): DeliverEvent {
  async function write(topic: Topic, signal: AbortSignal): Promise<void> {
    const { subject, written, report: current, turn, count } = topic;
    const { note } = current;
    const at = clock.elapsed();
    const counted = { report: current, count, at: topic.reportedAt };
    // The note of an Event is immutable, so another note needs another Event.
    if (written?.note === note && (await writer.updateSeries(written.name, counted, signal)))
      topic.written = { ...written, at };
    else {
      const name = await writer.create(counted, signal);
      topic.written = { name, note, at };
      topic.count -= count - 1;
    }
    subject.written = turn;
  }

  async function deliver(topic: Topic, { signal, log }: Scope): Promise<boolean> {
    topic.isWaiting = false;
    // A newer warning was written first; or this report was already written, with its latest count.
    if (topic.turn <= topic.subject.written) return true;
    for (let failures = 1; ; failures++) {
      try {
        await write(topic, signal);
        return true;
      } catch (error) {
        if (signal.aborted) return true;
        const isWorthIt = error instanceof KubeError && isTransient(error) && failures < maxAttempts;
        if (!isWorthIt) {
          log.debug('an Event was not written', { reason: topic.report.reason, error });
          return false;
        }
        const backOffMs = backOffDelay(failures, { firstMs: 1_000, maxMs: 30_000, random });
        await clock.sleep(Math.max(error.retryAfterMs, backOffMs), signal).catch(() => undefined);
      }
    }
  }

  return deliver;
}
