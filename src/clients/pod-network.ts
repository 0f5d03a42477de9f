import { execFile } from 'node:child_process';
import { readdir } from 'node:fs/promises';
import { isIP, SocketAddress } from 'node:net';
import { networkInterfaces } from 'node:os';
import { join } from 'node:path';
import { eachBounded } from '#base/each-bounded.ts';
import type { FindNamespace } from '#base/linux/network.ts';
import { StowageError } from '#core/errors.ts';
import { searchPath } from './mounter/tools.ts';

/** What the controller sends to the agent of the pod's node, instead of `pod:NAMESPACE/NAME`: agents may not read pods. */
export const podAddressPrefix = 'pod-address:';

/** containerd and CRI-O mount the network namespaces of pods here. */
const usualFolder = '/run/netns';
const ownNetwork = '/proc/self/ns/net';
const readsAtOnce = 8;
/** nsenter and cat take a few milliseconds. */
const readMs = 5_000;
/** Enough for thousands of addresses. */
const mostBytes = 1 << 20;

export interface PodNetworkOptions {
  readonly folder?: string;
  /** Addresses of this process's own network. */
  readonly ownAddresses?: () => readonly string[];
}

/**
 * Finds the network namespace of a pod on this node by the pod's address. The container runtime knows which namespace belongs to which pod, but
 * asking it would need its socket, which means root on the node; an address is unique among the pods of a node.
 */
export function createPodNetwork(options: PodNetworkOptions = {}): FindNamespace {
  const { folder = usualFolder, ownAddresses = interfaceAddresses } = options;
  return async (network, signal) => {
    const given = network.slice(podAddressPrefix.length);
    const address = canonical(given);
    if (address === undefined) throw invalidAddress(given);
    // A pod with hostNetwork has the node's address, and so does the agent.
    if (ownAddresses().some((own) => canonical(own) === address)) return ownNetwork;
    const found: string[] = [];
    await eachBounded(await namespacesIn(folder), readsAtOnce, async (path) => {
      const addresses = await addressesIn(path, signal);
      if (addresses.some((one) => canonical(one) === address)) found.push(path);
    });
    signal.throwIfAborted();
    const [first, second] = found;
    if (first === undefined) throw noNamespace(address);
    if (second !== undefined) throw severalNamespaces(address, found);
    return first;
  };
}

const interfaceAddresses = (): readonly string[] =>
  Object.values(networkInterfaces()).flatMap((all) => (all ?? []).map(({ address }) => address));

/** The same IPv6 address can be written in several ways. Returns undefined if it is not an address. */
function canonical(address: string): string | undefined {
  const family = isIP(address);
  if (family === 0) return undefined;
  return new SocketAddress({ address, family: family === 4 ? 'ipv4' : 'ipv6' }).address;
}

async function namespacesIn(folder: string): Promise<readonly string[]> {
  try {
    return (await readdir(folder)).map((name) => join(folder, name));
  } catch (cause) {
    throw new StowageError(`the network namespaces of pods cannot be read: no folder ${folder}`, {
      code: 'unsupported',
      reason: 'pod-networks-hidden',
      action: "Set the chart's value agent.networkNamespaces to true (the default), and upgrade.",
      cause,
    });
  }
}

/** A namespace that is being removed has no addresses: nsenter fails on it. */
async function addressesIn(path: string, signal: AbortSignal): Promise<readonly string[]> {
  const tables = ['/proc/self/net/fib_trie', '/proc/self/net/if_inet6'];
  const { promise, resolve, reject } = Promise.withResolvers<string>();
  // The kernel has no table for a disabled protocol: then cat fails for that one and prints the other.
  execFile(
    'nsenter',
    [`--net=${path}`, '--', 'cat', ...tables],
    { signal, timeout: readMs, maxBuffer: mostBytes, env: { PATH: searchPath(), LC_ALL: 'C' } },
    (error, stdout) => {
      if (error?.code === 'ENOENT') reject(toolMissing(error));
      else resolve(stdout);
    },
  );
  return localAddresses(await promise);
}

/** From /proc/net/fib_trie (`|-- 10.0.0.5`, then `/32 host LOCAL`) and /proc/net/if_inet6 (32 hexadecimal digits first). */
export function localAddresses(tables: string): readonly string[] {
  const found = new Set<string>();
  let leaf = '';
  for (const line of tables.split('\n')) {
    leaf = /\|-- (\d+\.\d+\.\d+\.\d+)$/.exec(line)?.[1] ?? leaf;
    if (/^\s+\/32 host LOCAL$/.test(line)) found.add(leaf);
    const [, digits] = /^([0-9a-f]{32}) /.exec(line) ?? [];
    if (digits !== undefined) found.add((digits.match(/.{4}/g) ?? []).join(':'));
  }
  return [...found];
}

const invalidAddress = (given: string): StowageError =>
  new StowageError(`'${given}' is not an IP address`, {
    code: 'invalid',
    reason: 'pod-address-invalid',
    action: 'Give the address of a pod: kubectl get pod NAME --output jsonpath={.status.podIP}',
  });

const noNamespace = (address: string): StowageError =>
  new StowageError(`no pod on this node has the address ${address}`, {
    code: 'not-found',
    reason: 'pod-network-unknown',
    action: `Check that the pod runs, and try again. Its network namespace must be in ${usualFolder}, as with containerd and CRI-O.`,
  });

const severalNamespaces = (address: string, found: readonly string[]): StowageError =>
  new StowageError(`several network namespaces have the address ${address}: ${found.join(', ')}`, {
    code: 'conflict',
    reason: 'pod-network-ambiguous',
    action: `Check from one of them on the node: --from netns:NAME. Look at them with: ip -n NAME address`,
  });

const toolMissing = (cause: unknown): StowageError =>
  new StowageError('the networks of pods cannot be entered: nsenter is not installed', {
    code: 'unsupported',
    reason: 'pod-network-tool-missing',
    action: 'Install nsenter: apt install util-linux (Debian, Ubuntu) or apk add util-linux-misc (Alpine).',
    cause,
  });
