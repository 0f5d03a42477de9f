import type { KubeClient } from '#wire/kube/client.ts';
import { reasonOf } from '#wire/kube/errors.ts';
import { configMaps } from '#wire/kube/resources.ts';
import { ignoreNotFound } from './controller-context.ts';

/** A machine that is, or was, a node of this cluster. */
export interface NodeHost {
  /** The host name in the use records of stores. */
  readonly host: string;
  readonly node: string;
  /** The uid of the Node object, which differs if the node was recreated. */
  readonly uid: string;
}

/**
 * Records which machines are nodes of this cluster, in a ConfigMap that outlives the Node objects. If a node is deleted while there is no
 * leader, only this ConfigMap distinguishes its use records from the use records of machines outside the cluster.
 */
export interface NodeHosts {
  read(signal: AbortSignal): Promise<readonly NodeHost[]>;
  record(host: NodeHost, signal: AbortSignal): Promise<void>;
  /** Call it when no store has use records of these hosts. */
  forget(hosts: Iterable<string>, signal: AbortSignal): Promise<void>;
}

const configMapName = 'stowage-nodes';
/** Valid as a key of a ConfigMap; all host names fit. */
const hostPattern = /^[A-Za-z0-9][A-Za-z0-9_-]{0,127}$/;

export const isHostName = (given: unknown): given is string => typeof given === 'string' && hostPattern.test(given);

export function createNodeHosts(client: KubeClient, namespace: string): NodeHosts {
  const configMapKey = { namespace, name: configMapName };

  async function patchData(data: Readonly<Record<string, string | null>>, signal: AbortSignal): Promise<void> {
    const patch = (): Promise<unknown> =>
      client.patch(configMaps, configMapKey, { kind: 'merge', body: { data } }, signal);
    if ((await ignoreNotFound(patch())) !== undefined) return;
    const present = Object.entries(data).filter((entry): entry is [string, string] => entry[1] !== null);
    if (present.length === 0) return;
    try {
      await client.create(configMaps, { metadata: configMapKey, data: Object.fromEntries(present) }, signal);
    } catch (thrown) {
      if (reasonOf(thrown) !== 'AlreadyExists') throw thrown;
      await patch();
    }
  }

  return {
    read: async (signal) => {
      const { data = {} } = (await ignoreNotFound(client.get(configMaps, configMapKey, signal))) ?? {};
      return Object.entries(data).flatMap(([host, text]) => {
        const [node, uid, ...more] = text.split(' ');
        return isHostName(host) && node && uid && more.length === 0 ? [{ host, node, uid }] : [];
      });
    },
    record: ({ host, node, uid }, signal) => patchData({ [host]: `${node} ${uid}` }, signal),
    forget: (hosts, signal) => patchData(Object.fromEntries(Array.from(hosts, (host) => [host, null])), signal),
  };
}
