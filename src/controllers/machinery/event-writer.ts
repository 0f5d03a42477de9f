import { randomUUID } from 'node:crypto';
import type { KubeClient } from '#wire/kube/client.ts';
import { reasonOf } from '#wire/kube/errors.ts';
import { events } from '#wire/kube/resources.ts';
import type { KubeEvent } from '#wire/kube/types.ts';
import type { Report } from './events.ts';
import { microTime } from './micro-time.ts';

/** A report, how often it was meant, and when last, by the clock on the wall. */
export interface CountedReport {
  readonly report: Report;
  readonly count: number;
  readonly at: number;
}

/** Says once to the API server what is to be said; what fails is for others to try again. */
export interface EventWriter {
  /** Gives its name. */
  create(meant: CountedReport, signal: AbortSignal): Promise<string>;
  /** On the Event of that name, unless the API server has forgotten it. */
  updateSeries(name: string, meant: CountedReport, signal: AbortSignal): Promise<boolean>;
}

/** What the API server takes. */
const maxInstance = 128;
const maxName = 253;

/** What has no namespace has its Events in this one. */
const namespaceOf = ({ regarding }: Report): string => regarding.namespace ?? 'default';

export function createEventWriter(options: {
  readonly client: KubeClient;
  readonly controller: string;
  readonly instance: string;
}): EventWriter {
  const { client, controller } = options;
  const instance = options.instance.slice(0, maxInstance);
  return {
    create: async ({ report, at }, signal) => {
      const { regarding, related, type, reason, action, note } = report;
      const ending = `.${randomUUID().replaceAll('-', '').slice(0, 16)}`;
      const name = `${(regarding.name ?? '').slice(0, maxName - ending.length)}${ending}`;
      const metadata = { name, namespace: namespaceOf(report) };
      const event: KubeEvent = {
        metadata,
        eventTime: microTime(at),
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
    updateSeries: async (name, { report, count, at }, signal) => {
      const body = { series: { count, lastObservedTime: microTime(at) } };
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
