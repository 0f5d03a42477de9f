import { closeSync, mkdtempSync, openSync, readFileSync, rmdirSync } from 'node:fs';
import { networkInterfaces, release, tmpdir } from 'node:os';
import { join } from 'node:path';
import { busybox } from './busybox.ts';
import { cSource } from './c-source.ts';
import { type Component, commandFailure, missingPrograms, onPath, repository, testbedCommand } from './component.ts';
import { compose } from './compose.ts';
import { ganesha } from './ganesha.ts';
import { goNfs } from './go-nfs.ts';
import { csiSanity, ginkgo, helm, kubernetes, kubernetesSuite } from './kubernetes/build.ts';
import { libnfsBench } from './libnfs-bench.ts';
import { slaveMounts } from './mount-namespace.ts';
import { rustNfs } from './nfs3-server.ts';
import { node26 } from './node26.ts';
import { asOrdinaryUser } from './ordinary-user.ts';
import { podman } from './podman.ts';
import { posixSuites } from './posix-suites.ts';
import { rpcbind } from './rpcbind.ts';
import { schemathesis } from './schemathesis.ts';
import { sshfs } from './sshfs.ts';

const engine = ['dockerd', 'containerd', 'runc', 'docker', 'unshare', 'nsenter', 'ip', 'findmnt'];

/**
 * All components that tests can require. Add an entry for a new one; if it is long, put it in a file of its own in this
 * folder.
 */
export const components = {
  linux: {
    what: 'a Linux kernel',
    probe: () => (process.platform === 'linux' ? undefined : `this is ${process.platform}`),
    command: 'run the tests on Linux',
  },
  root: {
    what: 'the root user',
    probe: () => (process.getuid?.() === 0 ? undefined : 'not running as root'),
    command: 'sudo npm test',
  },
  ipv6: {
    what: 'an IPv6 loopback address',
    probe: () =>
      Object.values(networkInterfaces()).some((all) => all?.some(({ address }) => address === '::1'))
        ? undefined
        : '::1 is not an address of this machine',
    command:
      'sudo sysctl -w net.ipv6.conf.lo.disable_ipv6=0 (in a container: --sysctl net.ipv6.conf.all.disable_ipv6=0)',
  },
  mount: {
    what: 'permission to mount (CAP_SYS_ADMIN)',
    probe: whyNoMounts,
    command: 'sudo npm test (in a container: --cap-add SYS_ADMIN --security-opt apparmor=unconfined)',
    packages: () => packagesUnlessOnPath(['mount', 'umount', 'unshare'], ['util-linux', 'mount']),
  },
  fuse: {
    what: 'FUSE',
    probe: () => whyNotOpen('/dev/fuse') ?? whyNoMounts(),
    command: 'sudo modprobe fuse && sudo npm test (in a container: --device /dev/fuse --cap-add SYS_ADMIN)',
  },
  loop: {
    what: 'loop devices',
    probe: () => whyNotOpen('/dev/loop-control') ?? missingPrograms('losetup'),
    command: 'sudo modprobe loop && sudo npm test (in a container: -v /dev:/dev and permission for the devices)',
  },
  xfs: {
    what: 'the XFS file system and its tools',
    probe: () => missingPrograms('mkfs.xfs', 'xfs_growfs', 'xfs_io') ?? whyNotInKernel('xfs'),
    command: testbedCommand,
    packages: () => ['xfsprogs'],
  },
  ext4: {
    what: 'the ext4 file system and its tools',
    probe: () => missingPrograms('mkfs.ext4', 'resize2fs', 'e2fsck') ?? whyNotInKernel('ext4'),
    command: testbedCommand,
    packages: () => ['e2fsprogs'],
  },
  'ordinary-user': {
    what: 'a way to run a program as a user who is not root',
    probe: () => {
      if (process.platform === 'win32') return 'this is win32';
      const [file, args] = asOrdinaryUser([process.execPath, '--version']);
      return commandFailure(file, args, { cwd: repository });
    },
    command: 'npm test as an ordinary user, or with a checkout that every user can read',
    packages: () => packagesUnlessOnPath(['setpriv'], ['util-linux']),
  },
  docker: {
    what: 'a Docker engine that tests start for themselves (dockerd, containerd, runc, docker)',
    probe: () => missingPrograms(...engine) ?? whyNoMounts(),
    command: 'npm run testbed, as root',
    // Debian 13 has the client in a separate package.
    packages: () =>
      packagesUnlessOnPath(engine, ['docker.io', 'docker-cli?', 'containerd', 'runc', 'iproute2', 'util-linux']),
  },
  compose,
  podman,
  busybox,
  netns: {
    what: 'network namespaces, and veth pairs between them (ip, nsenter)',
    probe: () => missingPrograms('ip', 'nsenter', 'setpriv') ?? whyNoVethPairs(),
    command: 'npm run testbed, as root (in a container: --cap-add SYS_ADMIN --cap-add NET_ADMIN)',
    packages: () => packagesUnlessOnPath(['ip', 'nsenter', 'setpriv'], ['iproute2', 'util-linux']),
  },
  firewall: {
    what: 'rules that drop or reject packets, in a network namespace (iptables)',
    probe: () => missingPrograms('iptables', 'unshare') ?? whyNoFirewall(),
    command: 'npm run testbed, as root (in a container: --cap-add SYS_ADMIN --cap-add NET_ADMIN)',
    packages: () => packagesUnlessOnPath(['iptables'], ['iptables']),
  },
  fio: {
    what: 'fio, which writes, reads back and compares',
    probe: () => missingPrograms('fio'),
    command: testbedCommand,
    packages: () => ['fio'],
  },
  'stress-ng': {
    what: 'stress-ng, which stresses file operations and verifies the results',
    probe: () => missingPrograms('stress-ng'),
    command: testbedCommand,
    packages: () => ['stress-ng'],
  },
  git: {
    what: 'git, as people use it on a volume',
    probe: () => missingPrograms('git'),
    command: testbedCommand,
    packages: () => ['git'],
  },
  jq: {
    what: 'jq, as people use it on --json output',
    probe: () => missingPrograms('jq'),
    command: testbedCommand,
    packages: () => ['jq'],
  },
  python3: {
    what: 'Python 3, to make system calls that no other program makes',
    probe: () => missingPrograms('python3'),
    command: testbedCommand,
    packages: () => ['python3'],
  },
  perl: {
    what: 'Perl, to make system calls that no other program makes',
    probe: () => missingPrograms('perl'),
    command: testbedCommand,
    packages: () => ['perl-base'],
  },
  zsh: {
    what: 'zsh, to test its completion script',
    probe: () => missingPrograms('zsh'),
    command: testbedCommand,
    packages: () => ['zsh'],
  },
  fish: {
    what: 'fish, to test its completion script',
    probe: () => missingPrograms('fish'),
    command: testbedCommand,
    packages: () => ['fish'],
  },
  openssl: {
    what: 'openssl, to make certificates for tests',
    probe: () => missingPrograms('openssl'),
    command: testbedCommand,
    packages: () => ['openssl'],
  },
  schemathesis,
  node26,
  ganesha,
  rpcbind,
  libnfs: {
    what: 'libnfs: nfs-ls, nfs-cp and nfs-cat, and the files to build C programs with it',
    probe: () => missingPrograms('nfs-ls', 'nfs-cp', 'nfs-cat', 'gcc') ?? whyNotOpen('/usr/include/nfsc/libnfs.h', 'r'),
    command: testbedCommand,
    packages: () => ['libnfs-utils', 'libnfs-dev', ...packagesUnlessOnPath(['gcc'], ['gcc', 'libc6-dev'])],
  },
  'libnfs-bench': libnfsBench,
  'go-nfs': goNfs,
  'nfs3-server': rustNfs,
  'posix-suites': posixSuites,
  'c-source': cSource,
  sshfs,
  kubernetes,
  'csi-sanity': csiSanity,
  helm,
  'k8s-e2e': kubernetesSuite,
  ginkgo,
} satisfies Readonly<Record<string, Component>>;

export type ComponentName = keyof typeof components;
export const component = (name: ComponentName): Component => components[name];
export const componentNames = Object.keys(components) as readonly ComponentName[];

/** No packages if only a permission is missing. */
function packagesUnlessOnPath(programs: readonly string[], packages: readonly string[]): readonly string[] {
  return missingPrograms(...programs) === undefined ? [] : packages;
}

/** Tries a mount, because capabilities do not show what a container's security profile forbids. */
function whyNoMounts(): string | undefined {
  if (process.platform !== 'linux') return `this is ${process.platform}`;
  const lacking = missingPrograms('mount', 'umount', 'unshare');
  if (lacking !== undefined) return lacking;
  const status = readFileSync('/proc/self/status', 'utf8');
  const capabilities = BigInt(`0x${/^CapEff:\s*([0-9a-f]+)/m.exec(status)?.[1] ?? '0'}`);
  const sysAdmin = 1n << 21n;
  if ((capabilities & sysAdmin) === 0n) return 'this process lacks CAP_SYS_ADMIN';
  const folder = mkdtempSync(join(tmpdir(), 'stowage-probe-'));
  try {
    // In a mount namespace that ends with the process.
    return commandFailure('unshare', [...slaveMounts, 'mount', '-t', 'tmpfs', 'stowage-probe', folder]);
  } finally {
    rmdirSync(folder);
  }
}

/** Tries to create a veth pair in a namespace that ends with the process. */
function whyNoVethPairs(): string | undefined {
  const cable = ['link', 'add', 'stowage-a', 'type', 'veth', 'peer', 'name', 'stowage-b'];
  return commandFailure('unshare', ['--net', onPath('ip') ?? 'ip', ...cable]);
}

function whyNoFirewall(): string | undefined {
  const rule = ['-A', 'OUTPUT', '-p', 'tcp', '-j', 'REJECT', '--reject-with', 'tcp-reset'];
  return commandFailure('unshare', ['--net', onPath('iptables') ?? 'iptables', ...rule]);
}

function whyNotOpen(path: string, how = 'r+'): string | undefined {
  try {
    closeSync(openSync(path, how));
    return undefined;
  } catch (error) {
    return error instanceof Error ? error.message : String(error);
  }
}

/** The file system must be built in or loaded, or a module that the first mount loads. */
function whyNotInKernel(filesystem: string): string | undefined {
  if (process.platform !== 'linux') return `this is ${process.platform}`;
  if (new RegExp(`\\t${filesystem}$`, 'm').test(readFileSync('/proc/filesystems', 'utf8'))) return undefined;
  try {
    const modules = readFileSync(`/lib/modules/${release()}/modules.dep`, 'utf8');
    if (modules.includes(`/${filesystem}.ko`)) return undefined;
  } catch {
    // The kernel has no module folder, so only built-in file systems count.
  }
  return `this kernel has no ${filesystem}`;
}
