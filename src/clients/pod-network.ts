import { execFile } from 'node:child_process';
import { readdir, stat, statfs } from 'node:fs/promises';
import { isIP, SocketAddress } from 'node:net';
import { join } from 'node:path';
import { DeadlineExceeded } from '#base/clock.ts';
import { eachBounded } from '#base/each-bounded.ts';
import { isErrno } from '#base/errno.ts';
import type { FindNamespace } from '#base/linux/network.ts';
import { nodeNetwork, podAddressPrefix } from '#core/check-places.ts';
import { StowageError } from '#core/errors.ts';
import { searchPath } from './mounter/tools.ts';

/** containerd and CRI-O mount the network namespaces of pods here. */
const runtimeFolder = '/run/netns';
const ownNamespace = '/proc/self/ns/net';
/** NSFS_MAGIC: a network namespace is bind-mounted on the file. After its removal a regular file may remain. */
const nsfsMagic = 0x6e736673;
const maxConcurrentReads = 8;
/** nsenter and cat take a few milliseconds. */
const readTimeoutMs = 5_000;
/** Enough for thousands of addresses. */
const maxOutputBytes = 1 << 20;

/**
 * Finds the network namespace of `pod-address:…` on this node; `findOther` handles other networks. The container runtime knows which namespace
 * belongs to which pod, but asking it would need its socket, which means root on the node; an address is unique among the pods of a node.
 *
 * One check looks up the same address at each of its steps, so the result is cached. Create a new finder for each check.
 */
export function withPodNetworks(findOther: FindNamespace, folder = runtimeFolder): FindNamespace {
  const pathByAddress = new Map<string, string>();
  return async (network, signal) => {
    if (!network.startsWith(podAddressPrefix)) return await findOther(network, signal);
    const addressOrNode = network.slice(podAddressPrefix.length);
    // The agent runs in the network of its node.
    if (addressOrNode === nodeNetwork) return ownNamespace;
    const address = canonicalAddress(addressOrNode);
    if (address === undefined) throw invalidAddress(addressOrNode);
    const cachedPath = pathByAddress.get(address);
    if (cachedPath !== undefined && (await hasAddress(cachedPath, address, signal).catch(() => false)))
      return cachedPath;
    const path = await findPodNamespace(folder, address, signal);
    pathByAddress.set(address, path);
    return path;
  };
}

/** The same IPv6 address can be written in several ways. Returns undefined if it is not an address. */
function canonicalAddress(address: string): string | undefined {
  const family = isIP(address);
  if (family === 0) return undefined;
  return new SocketAddress({ address, family: family === 4 ? 'ipv4' : 'ipv6' }).address;
}

async function findPodNamespace(folder: string, address: string, signal: AbortSignal): Promise<string> {
  // A namespace can have several names.
  const pathByIdentity = new Map<string, string>();
  const failures: { readonly path: string; readonly cause: unknown }[] = [];
  await eachBounded(await namespacesIn(folder), maxConcurrentReads, async (path) => {
    try {
      if (await hasAddress(path, address, signal)) pathByIdentity.set(await namespaceIdentity(path), path);
    } catch (cause) {
      if (signal.aborted) throw signal.reason instanceof DeadlineExceeded ? tooSlow(signal.reason) : signal.reason;
      if (cause instanceof StowageError) throw cause;
      failures.push({ path, cause });
    }
  });
  const [first, second] = pathByIdentity.values();
  if (second !== undefined) throw severalNamespaces(address, [...pathByIdentity.values()]);
  if (first !== undefined) return first;
  const [failed] = failures;
  throw failed === undefined ? noNamespace(address) : unreadable(failed.path, failed.cause);
}

async function namespacesIn(folder: string): Promise<readonly string[]> {
  try {
    return (await readdir(folder)).map((name) => join(folder, name));
  } catch (cause) {
    throw new StowageError('the agent cannot see the network namespaces of the pods on its node', {
      code: 'unsupported',
      reason: 'pod-networks-hidden',
      action: "Ask the administrator to set the chart's value agent.networkNamespaces to true (the default).",
      cause,
    });
  }
}

async function hasAddress(path: string, address: string, signal: AbortSignal): Promise<boolean> {
  signal.throwIfAborted();
  if (!(await isNamespace(path))) return false;
  try {
    return localAddresses(await addressTables(path, signal)).some((one) => canonicalAddress(one) === address);
  } catch (cause) {
    // The namespace may have been removed meanwhile.
    if (!(await isNamespace(path))) return false;
    throw cause;
  }
}

async function isNamespace(path: string): Promise<boolean> {
  try {
    return (await statfs(path)).type === nsfsMagic;
  } catch (cause) {
    if (isErrno(cause, 'ENOENT')) return false;
    throw cause;
  }
}

/** The kernel's own name for a namespace. */
async function namespaceIdentity(path: string): Promise<string> {
  const { dev, ino } = await stat(path, { bigint: true });
  return `${dev}:${ino}`;
}

async function addressTables(path: string, signal: AbortSignal): Promise<string> {
  const { promise, resolve, reject } = Promise.withResolvers<string>();
  execFile(
    'nsenter',
    [`--net=${path}`, '--', 'cat', '/proc/self/net/fib_trie', '/proc/self/net/if_inet6'],
    { signal, timeout: readTimeoutMs, maxBuffer: maxOutputBytes, env: { PATH: searchPath(), LC_ALL: 'C' } },
    (error, stdout) => {
      // If a protocol is disabled, the kernel has no table for it: cat then fails for that file and prints the other.
      if (error === null || (typeof error.code === 'number' && stdout !== '')) resolve(stdout);
      else reject(isErrno(error, 'ENOENT') ? toolMissing(error) : error);
    },
  );
  return await promise;
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
    action: `Check that the pod runs, and try again. Its network namespace must be in ${runtimeFolder}, as with containerd and CRI-O.`,
  });

const severalNamespaces = (address: string, found: readonly string[]): StowageError =>
  new StowageError(`several network namespaces of this node have the address ${address}: ${found.join(', ')}`, {
    code: 'conflict',
    reason: 'pod-network-ambiguous',
    action:
      'See which pod took the address of another one (a container with NET_ADMIN can): ip -n NAME address. On the node, check from one of them: --from netns:NAME',
  });

const unreadable = (path: string, cause: unknown): StowageError =>
  new StowageError(`the addresses in the network namespace ${path} cannot be read`, {
    code: 'unavailable',
    reason: 'pod-network-unreadable',
    action: `Try again. If it persists, see why in the agent's container: nsenter --net=${path} cat /proc/net/fib_trie`,
    cause,
  });

const tooSlow = (cause: DeadlineExceeded): StowageError =>
  new StowageError('the network namespaces of this node could not be searched for the pod in time', {
    code: 'deadline',
    reason: 'pod-network-slow',
    action: 'Try again when the node is less busy.',
    cause,
  });

const toolMissing = (cause: unknown): StowageError =>
  new StowageError('the networks of pods cannot be entered: nsenter is not installed', {
    code: 'unsupported',
    reason: 'pod-network-tool-missing',
    action: 'Install nsenter: apt install util-linux (Debian, Ubuntu) or apk add util-linux-misc (Alpine).',
    cause,
  });
