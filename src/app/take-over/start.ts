import { systemClock } from '#base/clock.ts';
import type { TakeOverRequest, TakeOverService } from '#cli/take-over-service.ts';
import { createKubeClient } from '#wire/kube/client.ts';
import { accessFor, type ClusterWish } from '../kubectl.ts';
import { version } from '../version.ts';
import { createTakingOver } from './taking-over.ts';

/** As whoever the kubeconfig says: neither the controller nor any account of Stowage's may do what is done here. */
export async function startTakingOver(
  wish: TakeOverRequest & Pick<ClusterWish, 'env' | 'home' | 'signal'>,
): Promise<TakeOverService> {
  const { store, servers, kubeconfig, context, env, home, signal } = wish;
  const clock = systemClock();
  const file = kubeconfig === undefined ? {} : { kubeconfig };
  const access = await accessFor({ ...file, ...(context === undefined ? {} : { context }), env, home }, clock);
  const client = createKubeClient({ access, clock, userAgent: `kubectl-stowage/${version}`, maxSockets: 8 });
  return createTakingOver({ client, clock, signal, store, servers });
}
