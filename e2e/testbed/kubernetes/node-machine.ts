import { chmod, mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { type Machine, runInside, startMachine } from '../machine.ts';
import { addresses, type ClusterNetwork } from './network.ts';

/**
 * Where a node keeps things, at the places where every node has them: in the node's own view of the file system, and
 * on the disk rather than on the machine's copy-on-write view.
 */
const plainFolders = ['/var/lib/kubelet', '/var/lib/containerd', '/var/log'] as const;

/** What the kubelet otherwise writes to the kernel, which has one such value for all of this machine. */
const expected = {
  'vm/overcommit_memory': '1',
  'vm/panic_on_oom': '0',
  'kernel/panic': '10',
  'kernel/panic_on_oops': '1',
  'kernel/keys/root_maxkeys': '1000000',
  'kernel/keys/root_maxbytes': '25000000',
} as const;

export interface NodeMachineOptions {
  readonly number: number;
  /** How many nodes there are. */
  readonly count: number;
  readonly folder: string;
  /** The control group of all its pods. */
  readonly group: string;
  /** Further folders that are to lie on the disk, as a node has them. */
  readonly folders: readonly string[];
  readonly network: ClusterNetwork;
}

/** A machine that looks like a node to which nothing was done yet. Whoever starts it removes the control group. */
export async function startNodeMachine(options: NodeMachineOptions, signal: AbortSignal): Promise<Machine> {
  const { number, count, folder, group, network } = options;
  await mkdir(join(folder, 'expected'), { recursive: true });
  // Users of pods go through it.
  await chmod(folder, 0o755);
  const more = [...ownGroup(group), 'echo 1 >/proc/sys/net/ipv4/ip_forward'];
  for (const [name, value] of Object.entries(expected)) {
    const file = join(folder, 'expected', name.replaceAll('/', '.'));
    await writeFile(file, `${value}\n`);
    more.push(`if [ -e /proc/sys/${name} ]; then mount --bind "${file}" /proc/sys/${name}; fi`);
  }
  for (const at of [...plainFolders, ...options.folders]) {
    const own = join(folder, at.replaceAll('/', '-').slice(1));
    await mkdir(own);
    more.push(`mkdir -p "${at}"`, `mount --bind "${own}" "${at}"`);
  }
  const machine = await startMachine({ folder, more }, signal);
  try {
    await network.connect(number, machine);
    const lines = [
      'set -e',
      `ip address add ${addresses.node(number)}/24 dev eth0`,
      'ip link set eth0 up',
      // Of no machine; kube-proxy turns them into others, which it only does with what has a way to go.
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

/** One tree per controller, or one for all of them. */
const ownGroup = (group: string): readonly string[] => [
  'if [ -e /sys/fs/cgroup/cgroup.procs ]; then',
  '  for name in $(cat /sys/fs/cgroup/cgroup.controllers); do echo "+$name" >/sys/fs/cgroup/cgroup.subtree_control; done',
  `  mkdir -p "/sys/fs/cgroup/${group}"`,
  'else',
  '  for at in /sys/fs/cgroup/*; do',
  '    if [ -L "$at" ] || [ ! -e "$at/cgroup.procs" ]; then continue; fi',
  `    for own in "$at/${group.split('/')[0]}" "$at/${group}"; do`,
  '      mkdir -p "$own"',
  // Otherwise nothing may run in it.
  '      for name in cpuset.cpus cpuset.mems; do',
  '        if [ -e "$at/$name" ]; then cat "$at/$name" >"$own/$name"; fi',
  '      done',
  '    done',
  '  done',
  'fi',
];
