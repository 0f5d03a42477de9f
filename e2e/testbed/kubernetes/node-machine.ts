import { chmod, mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { type Machine, runInside, startMachine } from '../machine.ts';
import { addresses, type ClusterNetwork } from './network.ts';

/** The usual folders of a node. They are on the disk instead of the machine's copy-on-write view of the file system. */
const plainFolders = ['/var/lib/kubelet', '/var/lib/containerd', '/var/log'] as const;

/** The kubelet would write these sysctls, which apply to the whole machine. */
const expectedSysctls = {
  'vm/overcommit_memory': '1',
  'vm/panic_on_oom': '0',
  'kernel/panic': '10',
  'kernel/panic_on_oops': '1',
  'kernel/keys/root_maxkeys': '1000000',
  'kernel/keys/root_maxbytes': '25000000',
} as const;

export interface NodeMachineOptions {
  readonly number: number;
  /** The number of nodes. */
  readonly count: number;
  readonly folder: string;
  /** The cgroup of the node's pods. */
  readonly group: string;
  /** More folders that must be on the disk, as on a real node. */
  readonly folders: readonly string[];
  readonly network: ClusterNetwork;
}

/** Starts a machine that looks like a freshly installed node. The caller removes the cgroup. */
export async function startNodeMachine(options: NodeMachineOptions, signal: AbortSignal): Promise<Machine> {
  const { number, count, folder, group, network } = options;
  await mkdir(join(folder, 'expected'), { recursive: true });
  // Users of pods must be able to traverse the folder.
  await chmod(folder, 0o755);
  const more = [...cgroupScript(group), 'echo 1 >/proc/sys/net/ipv4/ip_forward'];
  for (const [name, value] of Object.entries(expectedSysctls)) {
    const file = join(folder, 'expected', name.replaceAll('/', '.'));
    await writeFile(file, `${value}\n`);
    more.push(`if [ -e /proc/sys/${name} ]; then mount --bind "${file}" /proc/sys/${name}; fi`);
  }
  for (const path of [...plainFolders, ...options.folders]) {
    const nodeFolder = join(folder, path.replaceAll('/', '-').slice(1));
    await mkdir(nodeFolder);
    more.push(`mkdir -p "${path}"`, `mount --bind "${nodeFolder}" "${path}"`);
  }
  const machine = await startMachine({ folder, more }, signal);
  try {
    await network.connect(number, machine);
    const lines = [
      'set -e',
      `ip address add ${addresses.node(number)}/24 dev eth0`,
      'ip link set eth0 up',
      // These routes lead to no machine. kube-proxy translates the addresses, but only for packets that have a route.
      `ip route add ${addresses.services} via ${addresses.controlPlane}`,
      ...Array.from({ length: count }, (_, index) => index + 1)
        .filter((other) => other !== number)
        .map((other) => `ip route add ${addresses.podsOf(other)} via ${addresses.node(other)}`),
    ];
    await runInside(machine, 'sh', '-c', lines.join('\n'));
  } catch (error) {
    await machine[Symbol.asyncDispose]();
    throw error;
  }
  return machine;
}

/** For cgroup v1, with one tree per controller, and for cgroup v2. */
const cgroupScript = (group: string): readonly string[] => [
  'if [ -e /sys/fs/cgroup/cgroup.procs ]; then',
  '  for name in $(cat /sys/fs/cgroup/cgroup.controllers); do echo "+$name" >/sys/fs/cgroup/cgroup.subtree_control; done',
  `  mkdir -p "/sys/fs/cgroup/${group}"`,
  'else',
  '  for at in /sys/fs/cgroup/*; do',
  '    if [ -L "$at" ] || [ ! -e "$at/cgroup.procs" ]; then continue; fi',
  `    for own in "$at/${group.split('/')[0]}" "$at/${group}"; do`,
  '      mkdir -p "$own"',
  // Without these values, no process can run in the group.
  '      for name in cpuset.cpus cpuset.mems; do',
  '        if [ -e "$at/$name" ]; then cat "$at/$name" >"$own/$name"; fi',
  '      done',
  '    done',
  '  done',
  'fi',
];
