import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client';
import type { Agents } from './agents.ts';
import type { Cache } from './machinery/cache.ts';
import type { Controller, ControllerCounts } from './machinery/controller.ts';
import type { Events } from './machinery/events.ts';

/** The sources of the leader's metrics. */
export interface MetricSources {
  readonly controllers: readonly Controller[];
  readonly caches: Readonly<Record<string, Pick<Cache<unknown>, 'size' | 'synced'>>>;
  readonly agents: Pick<Agents, 'nodes'>;
  readonly events: Pick<Events, 'waiting' | 'dropped'>;
}

/** The Prometheus metrics of a controller process. A process that is not the leader has only a few. */
export interface ControllerMetrics {
  readonly contentType: string;
  text(): Promise<string>;
  /** Counts a call to the API server. */
  countRequest(call: { readonly verb: string; readonly code: string }): void;
  /** Wraps `events` so that reports are counted. */
  countEvents<T extends Events>(events: T): T;
  /** This process is now the leader. */
  startLeading(sources: MetricSources): void;
}

/** The interval of event loop measurements. The library's default would wake an idle process 100 times a second. */
const eventLoopPrecisionMs = 100;
const bucketsSeconds = [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 60];
const outcomes = ['done', 'again', 'retried', 'terminal'] as const satisfies readonly (keyof ControllerCounts)[];
const states = ['waiting', 'running', 'delayed'] as const satisfies readonly (keyof ControllerCounts)[];

export function createControllerMetrics(version: string, isLeading: () => boolean): ControllerMetrics {
  const registry = new Registry();
  const registers = [registry];
  let sources: MetricSources | undefined;
  collectDefaultMetrics({ register: registry, eventLoopMonitoringPrecision: eventLoopPrecisionMs });
  const gauge = (name: string, help: string, value: () => number): void => {
    new Gauge({
      name,
      help,
      registers,
      collect() {
        this.set(value());
      },
    });
  };
  new Gauge({
    name: 'stowage_info',
    help: 'Always 1; the version as a label',
    labelNames: ['version'],
    registers,
    collect() {
      this.set({ version }, 1);
    },
  });
  gauge('stowage_controller_leading', '1 if this process is the leader, 0 otherwise', () => (isLeading() ? 1 : 0));
  gauge('stowage_controller_agents', 'Agents that are connected', () => sources?.agents.nodes().length ?? 0);
  gauge('stowage_controller_events_waiting', 'Events that wait to be written', () => sources?.events.waiting ?? 0);
  gauge('stowage_controller_events_dropped', 'Events that were dropped', () => sources?.events.dropped ?? 0);
  addQueueAndCacheMetrics(registers, () => sources);
  const seconds = new Histogram({
    name: 'stowage_controller_reconcile_seconds',
    help: 'How long one reconcile of a key took',
    labelNames: ['controller'],
    buckets: bucketsSeconds,
    registers,
  });
  const requests = new Counter({
    name: 'stowage_kube_requests_total',
    help: 'Calls to the API server. code: the status of the answer, or why there was none',
    labelNames: ['verb', 'code'],
    registers,
  });
  const reportedEvents = new Counter({
    name: 'stowage_controller_events_total',
    help: 'Events that were reported. ProvisioningSucceeded: a claim got its volume; ProvisioningFailed: an attempt failed',
    labelNames: ['type', 'reason'],
    registers,
  });
  return {
    contentType: registry.contentType,
    text: () => registry.metrics(),
    countRequest: ({ verb, code }) => requests.inc({ verb, code }),
    countEvents: (events) => ({
      ...events,
      // Getters, since a spread would copy the current values.
      get waiting() {
        return events.waiting;
      },
      get dropped() {
        return events.dropped;
      },
      report: (report) => {
        reportedEvents.inc({ type: report.type, reason: report.reason });
        events.report(report);
      },
    }),
    startLeading: (newSources) => {
      sources = newSources;
      for (const controller of newSources.controllers) {
        const histogram = seconds.labels({ controller: controller.name });
        controller.onDuration((duration) => histogram.observe(duration));
      }
    },
  };
}

/** Metrics of work queues and caches, read at each scrape. */
function addQueueAndCacheMetrics(registers: Registry[], sourcesNow: () => MetricSources | undefined): void {
  new Gauge({
    name: 'stowage_controller_keys',
    help: 'Keys in the work queue of a controller. waiting: ready to be reconciled; running: being reconciled; delayed: to be reconciled later',
    labelNames: ['controller', 'state'],
    registers,
    collect() {
      for (const { name, counts } of sourcesNow()?.controllers ?? [])
        for (const state of states) this.set({ controller: name, state }, counts()[state]);
    },
  });
  new Counter({
    name: 'stowage_controller_reconciles_total',
    help: 'Reconciles, by outcome. retried: it failed, and the controller retries soon; terminal: it failed, and a retry is useless until an object changes',
    labelNames: ['controller', 'outcome'],
    registers,
    collect() {
      this.reset();
      for (const { name, counts } of sourcesNow()?.controllers ?? [])
        for (const outcome of outcomes) this.inc({ controller: name, outcome }, counts()[outcome]);
    },
  });
  new Gauge({
    name: 'stowage_controller_cache_objects',
    help: 'Kubernetes objects in the cache',
    labelNames: ['resource'],
    registers,
    collect() {
      for (const [resource, cache] of Object.entries(sourcesNow()?.caches ?? {})) this.set({ resource }, cache.size);
    },
  });
  new Gauge({
    name: 'stowage_controller_cache_synced',
    help: '1 if the cache has listed all objects, 0 if not yet',
    labelNames: ['resource'],
    registers,
    collect() {
      for (const [resource, cache] of Object.entries(sourcesNow()?.caches ?? {}))
        this.set({ resource }, cache.synced ? 1 : 0);
    },
  });
}
