import type { KubeClient } from '#wire/kube/client.ts';
import { reasonOf } from '#wire/kube/errors.ts';
import { configMaps } from '#wire/kube/resources.ts';
import { ignoreNotFound } from './controller-parts.ts';

/** A machine that is, or was, a node of this cluster. */
export interface NodeHost {
  /** As records of use on stores call it. */
  readonly host: string;
  readonly node: string;
  /** Of the Node object: another one of that name is another node. */
  readonly uid: string;
}

/**
 * Which machines are nodes of this cluster, kept where a node's end does not take it along: when a node is deleted while nobody
 * leads, this is all that tells its records of use from those of machines that are no business of this cluster.
 */
export interface NodeHosts {
  read(signal: AbortSignal): Promise<readonly NodeHost[]>;
  record(host: NodeHost, signal: AbortSignal): Promise<void>;
  /** Nothing is left of them on any store. */
  forget(hosts: Iterable<string>, signal: AbortSignal): Promise<void>;
}

const name = 'stowage-nodes';
/** What a key may be there, and what hosts are called anyway. */
const hostPattern = /^[A-Za-z0-9][A-Za-z0-9_-]{0,127}$/;

export const isHost = (given: unknown): given is string => typeof given === 'string' && hostPattern.test(given);

export function createNodeHosts(client: KubeClient, namespace: string): NodeHosts {
  const at = { namespace, name };

  async function change(data: Readonly<Record<string, string | null>>, signal: AbortSignal): Promise<void> {
    const patch = (): Promise<unknown> => client.patch(configMaps, at, { kind: 'merge', body: { data } }, signal);
    if ((await ignoreNotFound(patch())) !== undefined) return;
    const present = Object.entries(data).filter((entry): entry is [string, string] => entry[1] !== null);
    if (present.length === 0) return;
    try {
      await client.create(configMaps, { metadata: at, data: Object.fromEntries(present) }, signal);
    } catch (thrown) {
      if (reasonOf(thrown) !== 'AlreadyExists') throw thrown;
      await patch();
    }
  }

  return {
    read: async (signal) => {
      const { data = {} } = (await ignoreNotFound(client.get(configMaps, at, signal))) ?? {};
      return Object.entries(data).flatMap(([host, text]) => {
        const [node, uid, ...more] = text.split(' ');
        return isHost(host) && node && uid && more.length === 0 ? [{ host, node, uid }] : [];
      });
    },
    record: ({ host, node, uid }, signal) => change({ [host]: `${node} ${uid}` }, signal),
    forget: (hosts, signal) => change(Object.fromEntries(Array.from(hosts, (host) => [host, null])), signal),
  };
}
