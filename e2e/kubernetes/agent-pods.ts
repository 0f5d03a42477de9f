import { expect } from 'vitest';
import type { AgentFixture } from './agent.ts';
import { type StaticVolume, staticVolume, type UsingPod, usingPod } from './agent-objects.ts';

/** How long anything may take on a machine that has much else to do. */
export const pollOptions = { timeout: 90_000, interval: 500 };
export const longTimeoutMs = 300_000;
/** A kubelet whose call failed waits twice as long each time: it calls again after 31 s and after 63 s, when an agent is away. */
const readySeconds = 110;

type PodRequest = Omit<UsingPod, 'node' | 'image' | 'script'> & { readonly node: number; readonly script?: string };

/** Pods with volumes, as their users make them. */
export interface Pods {
  /** A volume that is there becomes a claim of the same name. */
  volume(about: StaticVolume): Promise<void>;
  pod(about: PodRequest): Promise<void>;
  ready(...names: readonly string[]): Promise<void>;
  exec(name: string, script: string): Promise<string>;
  /** Deletes pods, and waits until they are gone from their nodes. */
  end(...names: readonly string[]): Promise<void>;
  /** What Kubernetes says about a pod to its user. */
  eventsOf(name: string): Promise<string>;
  /** Waits until nothing is left of a volume on a node: mounts, and what the kubelet keeps of it. */
  nothingLeft(node: number, id: string): Promise<void>;
}

export function createPods({ cluster, busybox }: AgentFixture): Pods {
  const { kubectl } = cluster;
  return {
    volume: async (about) => {
      await cluster.apply(...staticVolume(about));
      // A pod that comes before is looked at again only later.
      const bound = '--for=jsonpath={.status.phase}=Bound';
      await kubectl('wait', bound, `persistentvolumeclaim/${about.name}`, '--timeout=60s');
    },
    pod: async ({ node, script = 'sleep 100000', ...rest }) => {
      const name = cluster.nodes[node]?.name ?? '';
      await cluster.apply(usingPod({ ...rest, script, node: name, image: busybox }));
    },
    ready: async (...names) => {
      const pods = names.map((name) => `pod/${name}`);
      await kubectl('wait', '--for=condition=Ready', `--timeout=${readySeconds}s`, ...pods);
    },
    exec: (name, script) => kubectl('exec', name, '--', 'sh', '-c', script),
    end: async (...names) => {
      await kubectl('delete', 'pod', ...names, '--wait', '--timeout=90s');
    },
    eventsOf: (name) =>
      kubectl(
        'get',
        'events',
        `--field-selector=involvedObject.name=${name}`,
        '--output=jsonpath={range .items[*]}{.message}{"\\n"}{end}',
      ),
    nothingLeft: async (node, id) => {
      // Where it is staged or published, the kubelet keeps a file that names it. Volumes themselves are not looked into.
      const kept = ['plugins/kubernetes.io/csi/*/*', 'pods/*/volumes/*/*'].map(
        (at) => `/var/lib/kubelet/${at}/vol_data.json`,
      );
      const look = `grep ${id} /proc/self/mountinfo; grep -ls ${id} ${kept.join(' ')}; :`;
      const left = async (): Promise<string> => (await cluster.nodes[node]?.inside('sh', '-c', look)) ?? 'no such node';
      await expect.poll(left, pollOptions).toBe('');
    },
  };
}
