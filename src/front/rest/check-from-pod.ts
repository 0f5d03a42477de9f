import type { PodName } from '#core/check-places.ts';
import { StowageError, stowageError } from '#core/errors.ts';
import type { StoreCheck } from '#core/model.ts';
import { podRight } from './access.ts';
import type { Request } from './route.ts';

type PodCheckRequest = Pick<Request<never, never, never>, 'nodes' | 'permit' | 'call'>;

/** Checks the store from the network of a pod, which the caller must have the right to read. */
export async function checkFromPod(
  { nodes, permit, call }: PodCheckRequest,
  store: string,
  pod: PodName,
): Promise<StoreCheck> {
  if (nodes === undefined) throw noPodsKnown(store, `pod:${pod.namespace}/${pod.name}`);
  await permit(podRight(pod)).catch((thrown: unknown) => {
    throw stowageError(thrown).code === 'denied' ? podUnknown(pod) : thrown;
  });
  const check = await nodes.checkStore(store, pod, call);
  if (check === undefined) throw podUnknown(pod);
  return check;
}

/** Containers and network namespaces belong to a node, and the request does not name one. */
export const onlyFromPods = (from: string): StowageError =>
  new StowageError(`the controller cannot check a store from ${from}, only from pods`, {
    code: 'unsupported',
    reason: 'check-only-from-pods',
    action:
      'Specify a pod: --from pod:NAMESPACE/NAME. To check from a container or network of a node, run stowage in the pod of its agent: kubectl exec',
  });

/** The same error for both, so that a caller without the right to read pods cannot find out which pods exist. */
const podUnknown = ({ namespace, name }: PodName): StowageError =>
  new StowageError(`pod '${namespace}/${name}' not found, or you are not allowed to read it`, {
    code: 'not-found',
    reason: 'pod-unknown',
    action: `List the pods: kubectl get pods --namespace ${namespace}. The account of the check needs the verb 'get' for pods in this namespace.`,
  });

const noPodsKnown = (store: string, place: string): StowageError =>
  new StowageError('this server does not belong to a cluster, so it cannot check from the network of a pod', {
    code: 'unsupported',
    reason: 'pods-unknown',
    action: `Ask the controller of the cluster: kubectl stowage store check ${store} --account ACCOUNT --from ${place}`,
  });
