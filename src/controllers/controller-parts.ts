import type { Clock } from '#base/clock.ts';
import type { KubeClient } from '#wire/kube/client.ts';
import { reasonOf } from '#wire/kube/errors.ts';
import type { Caches } from './caches.ts';
import type { Events } from './machinery/events.ts';
import type { Provisioner } from './provisioner.ts';

/** What controllers work with. */
export interface ControllerParts {
  readonly client: KubeClient;
  readonly clock: Clock;
  readonly caches: Caches;
  readonly events: Events;
  /** By the name of their driver. */
  readonly provisioners: ReadonlyMap<string, Provisioner>;
}

/** Undefined: there is none. */
export async function ignoreNotFound<T>(request: Promise<T>): Promise<T | undefined> {
  try {
    return await request;
  } catch (thrown) {
    if (reasonOf(thrown) === 'NotFound') return undefined;
    throw thrown;
  }
}
