import type { Clock } from '#base/clock.ts';
import type { KubeClient } from '#wire/kube/client.ts';
import { reasonOf } from '#wire/kube/errors.ts';
import type { Caches } from './caches.ts';
import type { Events } from './machinery/events.ts';
import type { Provisioner } from './provisioner.ts';

/** The dependencies of every controller. */
export interface ControllerContext {
  readonly client: KubeClient;
  readonly clock: Clock;
  readonly caches: Caches;
  readonly events: Events;
  /** By driver name. */
  readonly provisioners: ReadonlyMap<string, Provisioner>;
}

/** Undefined if the API server answers NotFound. */
export async function ignoreNotFound<T>(request: Promise<T>): Promise<T | undefined> {
  try {
    return await request;
  } catch (thrown) {
    if (reasonOf(thrown) === 'NotFound') return undefined;
    throw thrown;
  }
}
