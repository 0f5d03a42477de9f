/** The places in a cluster from which a store can be checked, in the syntax of `from` in the REST API. */

export interface PodName {
  readonly namespace: string;
  readonly name: string;
}

/** For users: `pod:NAMESPACE/NAME`. */
export const podPlacePattern = 'pod:[a-z0-9-]{1,63}/[a-z0-9.-]{1,253}';

/** Returns undefined if it is another place. */
export function podIn(place: string | undefined): PodName | undefined {
  const [, namespace, name] = /^pod:([^/]+)\/([^/]+)$/.exec(place ?? '') ?? [];
  return namespace === undefined || name === undefined ? undefined : { namespace, name };
}

/** From the controller to the agent of the pod's node, which may not read pods: the pod's address, or `host` if the pod has the network of its node. */
export const podAddressPrefix = 'pod-address:';
export const nodeNetwork = 'host';
export const podAddressPattern = `${podAddressPrefix}(?:${nodeNetwork}|[0-9A-Fa-f:.]{2,45})`;

export const podAddressPlace = (pod: { readonly address: string; readonly hostNetwork: boolean }): string =>
  `${podAddressPrefix}${pod.hostNetwork ? nodeNetwork : pod.address}`;
