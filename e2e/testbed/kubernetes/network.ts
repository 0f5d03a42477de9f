import { join } from 'node:path';
import { onPath } from '../component.ts';
import { startDaemon } from '../daemon.ts';
import { type Machine, runInside } from '../machine.ts';

/** The same in every cluster: each has a network of its own, in which there is nothing else. */
export const addresses = {
  controlPlane: '10.77.0.1',
  apiPort: 6443,
  services: '10.96.0.0/16',
  /** Of the service `kubernetes`, by which pods reach the API. */
  apiService: '10.96.0.1',
  pods: '10.88.0.0/16',
  /** Nodes are counted from 1. */
  node: (number: number): string => `10.77.0.${number + 1}`,
  podsOf: (number: number): string => `10.88.${number}.0/24`,
} as const;

/** A switch in a network of its own, with the control plane's address on it. */
export interface ClusterNetwork extends AsyncDisposable {
  /** The words to put before a program so that it runs in it, as the same process, with the mounts of this machine. */
  readonly inside: readonly [string, ...string[]];
  /** Lays a cable to a node, and leads to its pods. */
  connect(number: number, node: Machine): Promise<void>;
  /** Pulls the cable out at the switch, or puts it back: the node is as it was, and alone. */
  setCable(number: number, to: 'up' | 'down'): Promise<void>;
}

const switchName = 'switch';
const setUp = [
  'set -e',
  'ip link set lo up',
  `ip link add ${switchName} type bridge`,
  `ip address add ${addresses.controlPlane}/24 dev ${switchName}`,
  `ip link set ${switchName} up`,
  'echo it is up',
  'exec sleep infinity',
];

export async function startNetwork(folder: string, signal: AbortSignal): Promise<ClusterNetwork> {
  const daemon = await startDaemon({
    command: [onPath('unshare') ?? 'unshare', '--net', 'sh', '-c', setUp.join('\n')],
    logFile: join(folder, 'log', 'network'),
    isReady: (log) => log.includes('it is up'),
    signal,
  });
  const inside = [onPath('nsenter') ?? 'nsenter', '--target', `${daemon.pid}`, '--net', '--'] as const;
  const ip = onPath('ip') ?? 'ip';
  const port = (number: number): string => `port${number}`;
  return {
    inside,
    connect: async (number, node) => {
      // By its process id: the names of networks are files of this machine.
      const cable = ['link', 'add', 'eth0', 'type', 'veth', 'peer', 'name', port(number), 'netns', `${daemon.pid}`];
      await runInside({ inside: node.beside }, ip, ...cable);
      await runInside({ inside }, ip, 'link', 'set', port(number), 'master', switchName, 'up');
      await runInside({ inside }, ip, 'route', 'add', addresses.podsOf(number), 'via', addresses.node(number));
    },
    setCable: async (number, to) => {
      await runInside({ inside }, ip, 'link', 'set', port(number), to);
    },
    [Symbol.asyncDispose]: () => daemon.kill(),
  };
}
