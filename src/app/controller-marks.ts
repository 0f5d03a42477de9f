import type { Clock } from '#base/clock.ts';
import type { LeaseNote } from '#controllers/machinery/lease-note.ts';
import type { ProcessMarks } from '#core/ports.ts';
import { newProcessMark } from '#stores/nfs/lock-marks.ts';
import type { KubeClient } from '#wire/kube/client.ts';
import {
  type ControllerProcess,
  readRegistry,
  registryAnnotation,
  withDeaths,
  withProcess,
  writeRegistry,
} from './controller-registry.ts';
import { hasPodEnded, isGone, isProvenDead, ownKernelProcess } from './process-death.ts';

/** For asking about pods, within the time that a candidate has to acquire the Lease. */
const podLookupTimeoutMs = 2_000;

export interface ControllerMarksOptions {
  readonly client: KubeClient;
  readonly clock: Clock;
  /** The namespace of the Lease and of the controllers' pods. */
  readonly namespace: string;
  readonly env: Readonly<Record<string, string | undefined>>;
}

export interface ControllerMarks {
  /** Records this process on the Lease, and which others it knows to be dead. */
  readonly note: LeaseNote;
  /** As of the moment when this process acquired the Lease. */
  marks(): ProcessMarks;
}

/**
 * The mark of this controller and those of dead ones. Each process has a mark of its own, so two controllers that both lead exclude each
 * other by the locks on stores. Locks of a dead controller are taken over at once if its death is proven: docs/designs/store-locks.md.
 */
export async function createControllerMarks(parts: ControllerMarksOptions): Promise<ControllerMarks> {
  const { client, clock, namespace, env } = parts;
  const own = await ownProcess(env);
  let dead: readonly number[] = [];
  return {
    note: {
      annotation: registryAnnotation,
      whileWaiting: async (text) => {
        const found = readRegistry(text);
        const now = await withDeaths(found, (it) => isProvenDead(it, { own, isGone }));
        return now.dead.length === found.dead.length ? undefined : writeRegistry(now);
      },
      whenAcquiring: async (text, signal) => {
        using limit = clock.deadline(podLookupTimeoutMs, signal);
        const hasEnded = (pod: NonNullable<ControllerProcess['pod']>): Promise<boolean> =>
          hasPodEnded(client, { ...pod, namespace }, limit.signal);
        const known = await withDeaths(readRegistry(text), (it) => isProvenDead(it, { own, isGone, hasEnded }));
        const registry = withProcess(known, own);
        dead = registry.dead;
        return writeRegistry(registry);
      },
    },
    marks: () => ({ own: own.mark, dead }),
  };
}

async function ownProcess(env: ControllerMarksOptions['env']): Promise<ControllerProcess> {
  const kernel = await ownKernelProcess();
  const [name, uid] = [env['POD_NAME'], env['POD_UID']];
  return { mark: newProcessMark(), ...(kernel && { kernel }), ...(name && uid ? { pod: { name, uid } } : {}) };
}
