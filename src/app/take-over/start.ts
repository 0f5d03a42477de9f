import { systemClock } from '#base/clock.ts';
import type { TakeOverRequest, TakeOverService } from '#cli/take-over-service.ts';
import { createKubeClient } from '#wire/kube/client.ts';
import { accessFor, type ClusterConnectionOptions } from '../kubectl-plugin.ts';
import { version } from '../version.ts';
import { createTakeOver } from './take-over.ts';

/** Uses the rights of the kubeconfig's user: neither the controller nor any service account of Stowage may make these changes. */
export async function startTakeOver(
  options: TakeOverRequest & Pick<ClusterConnectionOptions, 'env' | 'home' | 'signal'>,
): Promise<TakeOverService> {
  const { store, servers, kubeconfig, context, env, home, signal } = options;
  const clock = systemClock();
  const file = kubeconfig === undefined ? {} : { kubeconfig };
  const access = await accessFor({ ...file, ...(context === undefined ? {} : { context }), env, home }, clock);
  const client = createKubeClient({ access, clock, userAgent: `kubectl-stowage/${version}`, maxSockets: 8 });
  return createTakeOver({ client, clock, signal, store, servers });
}
