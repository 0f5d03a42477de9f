import { join } from 'node:path';
import { onPath } from '../component.ts';
import { startDaemon } from '../daemon.ts';
import { type Machine, runInside } from '../machine.ts';

/** All clusters use the same addresses, because each cluster has an isolated network of its own. */
export const addresses = {
  controlPlane: '10.77.0.1',
  apiPort: 6443,
  services: '10.96.0.0/16',
  /** The address of the service `kubernetes`, where pods reach the API. */
  apiService: '10.96.0.1',
  pods: '10.88.0.0/16',
  /** Nodes count from 1. */
  node: (number: number): string => `10.77.0.${number + 1}`,
  podsOf: (number: number): string => `10.88.${number}.0/24`,
} as const;

/** A bridge in its own network namespace, with the control plane's address. */
export interface ClusterNetwork extends AsyncDisposable {
  /** A command prefix that runs a program in this network as the same process, with the mounts of this machine. */
  readonly inside: readonly [string, ...string[]];
  /** Connects a node by a veth pair, and adds a route to its pods. */
  connect(number: number, node: Machine): Promise<void>;
  /** Connects or disconnects the node at the bridge. The node itself does not change. */
  setCable(number: number, to: 'up' | 'down'): Promise<void>;
}

const switchName = 'switch';
const setUpLines = [
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
    command: [onPath('unshare') ?? 'unshare', '--net', 'sh', '-c', setUpLines.join('\n')],
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
      // By pid: names of network namespaces are files that all tests on this machine share.
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
