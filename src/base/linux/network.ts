import { stat } from 'node:fs/promises';

const prefix = 'netns:';

/**
 * Where the namespace of a network is by now, as `netns:NAME` or a path: a network of a container engine has one only where
 * something is attached to it. Throws what is wrong with it.
 */
export type FindNamespace = (network: string, signal: AbortSignal) => Promise<string>;

/** Of networks that are namespaces themselves. */
export const asItIs: FindNamespace = async (network) => network;

/** Whether this process is in the host's network namespace: the kernel shows some settings only in the one that it made first. */
export const isInHostNetwork = async (): Promise<boolean> =>
  (await stat('/proc/sys/net/core/netdev_max_backlog').catch(() => undefined)) !== undefined;

/** Of `netns:NAME`, as `ip netns` calls them, or of a path. */
export const namespacePath = (network: string): string =>
  network.startsWith(prefix) ? `/run/netns/${network.slice(prefix.length)}` : network;

/**
 * The command that runs another one there, by exec(2). A namespace made by `ip netns` may have files of its own instead of
 * some in /etc, its DNS servers above all.
 */
export async function enterNetwork(network: string): Promise<readonly [string, ...string[]]> {
  const name = network.startsWith(prefix) ? network.slice(prefix.length) : undefined;
  const hasFiles = name !== undefined && (await stat(`/etc/netns/${name}`).catch(() => undefined)) !== undefined;
  return hasFiles ? ['ip', 'netns', 'exec', name] : ['nsenter', `--net=${namespacePath(network)}`, '--'];
}
