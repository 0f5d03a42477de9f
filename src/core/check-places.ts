/** The places in a cluster that a store check can start from, in the syntax of the REST API's `from`. */

export interface PodName {
  readonly namespace: string;
  readonly name: string;
}

/** The syntax for users: `pod:NAMESPACE/NAME`. */
export const podPlacePattern = 'pod:[a-z0-9-]{1,63}/[a-z0-9.-]{1,253}';

/** Returns undefined if the place is not a pod. */
export function parsePodPlace(place: string | undefined): PodName | undefined {
  const [, namespace, name] = /^pod:([^/]+)\/([^/]+)$/.exec(place ?? '') ?? [];
  return namespace === undefined || name === undefined ? undefined : { namespace, name };
}

/** The syntax between the controller and the agent, which may not read pods: the pod's address, or `host` for a hostNetwork pod. */
export const podAddressPrefix = 'pod-address:';
export const nodeNetwork = 'host';
export const podAddressPattern = `${podAddressPrefix}(?:${nodeNetwork}|[0-9A-Fa-f:.]{2,45})`;

export const podAddressPlace = (pod: { readonly address: string; readonly hostNetwork: boolean }): string =>
  `${podAddressPrefix}${pod.hostNetwork ? nodeNetwork : pod.address}`;
