import { expect } from 'vitest';
import type { AgentFixture } from './agent.ts';
import { type StaticVolume, staticVolume, type UsingPod, usingPod } from './agent-objects.ts';

/** The limit for anything that is slow on a busy machine. */
export const pollOptions = { timeout: 90_000, interval: 500 };
export const longTimeoutMs = 300_000;
/** The kubelet doubles its delay after each failed call: without an agent, it retries after 31 s and after 63 s. */
const readySeconds = 110;

type PodRequest = Omit<UsingPod, 'node' | 'image' | 'script'> & { readonly node: number; readonly script?: string };

/** Creates pods with volumes, as users do. */
export interface Pods {
  /** Creates a claim with the same name for an existing volume. */
  volume(about: StaticVolume): Promise<void>;
  pod(about: PodRequest): Promise<void>;
  ready(...names: readonly string[]): Promise<void>;
  exec(name: string, script: string): Promise<string>;
  /** Deletes the pods, and waits until their nodes have removed them. */
  end(...names: readonly string[]): Promise<void>;
  /** The Events of a pod. */
  eventsOf(name: string): Promise<string>;
  /** Waits until the node has nothing left of the volume: no mounts, and no files of the kubelet. */
  untilNothingLeft(node: number, id: string): Promise<void>;
}

export function createPods({ cluster, busybox }: AgentFixture): Pods {
  const { kubectl } = cluster;
  return {
    volume: async (about) => {
      await cluster.apply(...staticVolume(about));
      // The scheduler would retry a pod with an unbound claim only after a delay.
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
    untilNothingLeft: async (node, id) => {
      // The kubelet keeps a file with the volume's name where the volume is staged or published. The search skips the
      // volumes' contents.
      const kept = ['plugins/kubernetes.io/csi/*/*', 'pods/*/volumes/*/*'].map(
        (at) => `/var/lib/kubelet/${at}/vol_data.json`,
      );
      const look = `grep ${id} /proc/self/mountinfo; grep -ls ${id} ${kept.join(' ')}; :`;
      const left = async (): Promise<string> => (await cluster.nodes[node]?.inside('sh', '-c', look)) ?? 'no such node';
      await expect.poll(left, pollOptions).toBe('');
    },
  };
}
