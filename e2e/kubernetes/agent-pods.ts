import { expect } from 'vitest';
import type { AgentFixture } from './agent-fixture.ts';
import { type PodWithVolume, podWithVolume, type StaticVolume, staticVolume } from './agent-objects.ts';

/** The limit for anything that is slow on a busy machine. */
export const pollOptions = { timeout: 90_000, interval: 500 };
export const longTimeoutMs = 300_000;
/** The kubelet doubles its delay after each failed call: without an agent, it retries after 31 s and after 63 s. */
const readyTimeoutSeconds = 110;

type PodRequest = Omit<PodWithVolume, 'node' | 'image' | 'script'> & {
  readonly node: number;
  readonly script?: string;
};

/** Creates pods with volumes, as users do. */
export interface Pods {
  /** Creates a claim with the same name for an existing volume. */
  createVolume(about: StaticVolume): Promise<void>;
  createPod(about: PodRequest): Promise<void>;
  waitUntilReady(...names: readonly string[]): Promise<void>;
  exec(name: string, script: string): Promise<string>;
  /** Deletes the pods, and waits until their nodes have removed them. */
  deletePods(...names: readonly string[]): Promise<void>;
  /** The Events of a pod. */
  eventsOf(name: string): Promise<string>;
  /** Waits until the node has nothing left of the volume: no mounts, and no files of the kubelet. */
  waitUntilNothingLeft(node: number, id: string): Promise<void>;
}

export function createPods({ cluster, busybox }: AgentFixture): Pods {
  const { kubectl } = cluster;
  return {
    createVolume: async (about) => {
      await cluster.apply(...staticVolume(about));
      // The scheduler would retry a pod with an unbound claim only after a delay.
      const bound = '--for=jsonpath={.status.phase}=Bound';
      await kubectl('wait', bound, `persistentvolumeclaim/${about.name}`, '--timeout=60s');
    },
    createPod: async ({ node, script = 'sleep 100000', ...rest }) => {
      const name = cluster.nodes[node]?.name ?? '';
      await cluster.apply(podWithVolume({ ...rest, script, node: name, image: busybox }));
    },
    waitUntilReady: async (...names) => {
      const pods = names.map((name) => `pod/${name}`);
      await kubectl('wait', '--for=condition=Ready', `--timeout=${readyTimeoutSeconds}s`, ...pods);
    },
    exec: (name, script) => kubectl('exec', name, '--', 'sh', '-c', script),
    deletePods: async (...names) => {
      await kubectl('delete', 'pod', ...names, '--wait', '--timeout=90s');
    },
    eventsOf: (name) =>
      kubectl(
        'get',
        'events',
        `--field-selector=involvedObject.name=${name}`,
        '--output=jsonpath={range .items[*]}{.message}{"\\n"}{end}',
      ),
    waitUntilNothingLeft: async (node, id) => {
      // The kubelet keeps a file with the volume's name where the volume is staged or published. The search skips the
      // volumes' contents.
      const volumeDataFiles = ['plugins/kubernetes.io/csi/*/*', 'pods/*/volumes/*/*'].map(
        (folder) => `/var/lib/kubelet/${folder}/vol_data.json`,
      );
      const searchScript = `grep ${id} /proc/self/mountinfo; grep -ls ${id} ${volumeDataFiles.join(' ')}; :`;
      const findRemains = async (): Promise<string> =>
        (await cluster.nodes[node]?.inside('sh', '-c', searchScript)) ?? 'no such node';
      await expect.poll(findRemains, pollOptions).toBe('');
    },
  };
}
