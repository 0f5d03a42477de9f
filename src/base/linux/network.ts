import { stat } from 'node:fs/promises';

const prefix = 'netns:';

/**
 * Finds the current namespace of a network, as `netns:NAME` or a path. The network of a container engine has a namespace only while
 * something is attached to it. Throws if the network cannot be used.
 */
export type FindNamespace = (network: string, signal: AbortSignal) => Promise<string>;

/** For networks that are namespaces themselves. */
export const findNamedNamespace: FindNamespace = async (network) => network;

/** Whether this process is in the host's network namespace: the kernel shows some settings only in the initial one. */
export const isInHostNetwork = async (): Promise<boolean> =>
  (await stat('/proc/sys/net/core/netdev_max_backlog').catch(() => undefined)) !== undefined;

/** The path of `netns:NAME`, as named by `ip netns`; paths are returned unchanged. */
export const namespacePath = (network: string): string =>
  network.startsWith(prefix) ? `/run/netns/${network.slice(prefix.length)}` : network;

/**
 * The command prefix that runs another command in the network, by exec(2). A namespace of `ip netns` can replace files of /etc with its own
 * (/etc/netns/NAME), above all resolv.conf.
 */
export async function enterNetwork(network: string): Promise<readonly [string, ...string[]]> {
  const name = network.startsWith(prefix) ? network.slice(prefix.length) : undefined;
  const hasFiles = name !== undefined && (await stat(`/etc/netns/${name}`).catch(() => undefined)) !== undefined;
  return hasFiles ? ['ip', 'netns', 'exec', name] : ['nsenter', `--net=${namespacePath(network)}`, '--'];
}
