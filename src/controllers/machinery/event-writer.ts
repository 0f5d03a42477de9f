import { randomUUID } from 'node:crypto';
import type { KubeClient } from '#wire/kube/client.ts';
import { reasonOf } from '#wire/kube/errors.ts';
import { events } from '#wire/kube/resources.ts';
import type { KubeEvent } from '#wire/kube/types.ts';
import type { Report } from './events.ts';
import { microTime } from './micro-time.ts';

/** A report, how often it was made, and the wall clock time of the last time. */
export interface CountedReport {
  readonly report: Report;
  readonly count: number;
  readonly lastReportedAt: number;
}

/** Writes Events without retries. */
export interface EventWriter {
  /** Returns the name of the Event. */
  create(counted: CountedReport, signal: AbortSignal): Promise<string>;
  /** Updates the count of the Event. Returns false if the Event no longer exists. */
  updateSeries(name: string, counted: CountedReport, signal: AbortSignal): Promise<boolean>;
}

/** The limits of the API server. */
const maxInstanceLength = 128;
const maxNameLength = 253;

/** Events about cluster-scoped objects are in the namespace `default`. */
const namespaceOf = ({ regarding }: Report): string => regarding.namespace ?? 'default';

export function createEventWriter(options: {
  readonly client: KubeClient;
  readonly controller: string;
  readonly instance: string;
}): EventWriter {
  const { client, controller } = options;
  const instance = options.instance.slice(0, maxInstanceLength);
  return {
    create: async ({ report, lastReportedAt }, signal) => {
      const { regarding, related, type, reason, action, note } = report;
      const suffix = `.${randomUUID().replaceAll('-', '').slice(0, 16)}`;
      const name = `${(regarding.name ?? '').slice(0, maxNameLength - suffix.length)}${suffix}`;
      const metadata = { name, namespace: namespaceOf(report) };
      const event: KubeEvent = {
        metadata,
        eventTime: microTime(lastReportedAt),
        type,
        reason,
        action,
        note,
        regarding,
        ...(related === undefined ? {} : { related }),
        reportingController: controller,
        reportingInstance: instance,
      };
      await client.create(events, event, signal);
      return name;
    },
    updateSeries: async (name, { report, count, lastReportedAt }, signal) => {
      const body = { series: { count, lastObservedTime: microTime(lastReportedAt) } };
      try {
        await client.patch(events, { namespace: namespaceOf(report), name }, { kind: 'merge', body }, signal);
        return true;
      } catch (thrown) {
        if (reasonOf(thrown) === 'NotFound') return false;
        throw thrown;
      }
    },
  };
}
