import { backOffDelay } from '#base/back-off.ts';
import type { Clock } from '#base/clock.ts';
import type { Scope } from '#base/log.ts';
import { isTransient, KubeError } from '#wire/kube/errors.ts';
import type { EventWriter } from './event-writer.ts';
import type { Report } from './events.ts';

/** The reports with the same `regarding`, `related` and `action`: only the last reason is valid. */
export interface Subject {
  readonly topics: Map<string, Topic>;
  /** The topic that was reported last. */
  newest: Topic | undefined;
  /** The highest `reportNumber` that was written as an Event. */
  highestWritten: number;
}

/** One reason on one subject. */
export interface Topic {
  readonly subject: Subject;
  report: Report;
  /** The sequence number of its last report, counted over all topics. */
  reportNumber: number;
  reportedAt: number;
  /** How often it was reported. */
  count: number;
  /** The last Event written for it, if any. */
  lastEvent: { readonly name: string; readonly note: string; readonly writtenAt: number } | undefined;
  isQueued: boolean;
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
    const { subject, lastEvent, report: current, reportNumber, count } = topic;
    const { note } = current;
    const now = clock.elapsed();
    const counted = { report: current, count, lastReportedAt: topic.reportedAt };
    // The note of an Event is immutable, so another note needs another Event.
    if (lastEvent?.note === note && (await writer.updateSeries(lastEvent.name, counted, signal)))
      topic.lastEvent = { ...lastEvent, writtenAt: now };
    else {
      const name = await writer.create(counted, signal);
      topic.lastEvent = { name, note, writtenAt: now };
      topic.count -= count - 1;
    }
    subject.highestWritten = reportNumber;
  }

  async function deliver(topic: Topic, { signal, log }: Scope): Promise<boolean> {
    topic.isQueued = false;
    // A newer warning was written first; or this report was already written, with its latest count.
    if (topic.reportNumber <= topic.subject.highestWritten) return true;
    for (let failures = 1; ; failures++) {
      try {
        await write(topic, signal);
        return true;
      } catch (error) {
        if (signal.aborted) return true;
        const mayRetry = error instanceof KubeError && isTransient(error) && failures < maxAttempts;
        if (!mayRetry) {
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
