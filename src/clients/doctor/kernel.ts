import { open } from 'node:fs/promises';
import { errnoOf } from '#base/errno.ts';
import { hasCapability } from '../mounter/capabilities.ts';
import {
  type Check,
  type CheckContext,
  type Finding,
  isAccessible,
  no,
  pathInRoot,
  readTrimmed,
  warn,
  yes,
} from './check.ts';

const fileSystems = {
  xfs: 'image volumes of 300 MiB and more',
  ext4: 'small image volumes',
  overlay: 'container engines',
} as const;

export const kernel: Check = async (context) => {
  const listedFileSystems = ((await readTrimmed(context, 'proc/filesystems')) ?? '')
    .split('\n')
    .map((line) => line.split('\t').at(-1));
  return [
    ...version(context.release),
    await capability(context),
    ...Object.entries(fileSystems).map(([name, use]) => fileSystem(name, use, listedFileSystems.includes(name))),
    await loop(context),
    await fuse(context, listedFileSystems.includes('fuse')),
    await cgroup(context),
    await userNamespaces(context),
  ];
};

function version(release: string): readonly Finding[] {
  const [major = 0, minor = 0] = release.split(/[.-]/).map(Number);
  const isAtLeast = (wantMajor: number, wantMinor: number): boolean =>
    major > wantMajor || (major === wantMajor && minor >= wantMinor);
  return [
    isAtLeast(5, 8)
      ? yes('kernel', `Linux ${release}`)
      : warn(
          'kernel',
          `Linux ${release} is older than 5.8`,
          'Upgrade the kernel: loop devices are set up in one step since 5.8.',
        ),
  ];
}

async function capability(context: CheckContext): Promise<Finding> {
  if (await hasCapability('CAP_SYS_ADMIN', pathInRoot(context, 'proc/self/status')))
    return yes('permission to mount', 'this process has CAP_SYS_ADMIN');
  return no(
    'permission to mount',
    'this process lacks CAP_SYS_ADMIN: everything except mounting works',
    'Run Stowage as root; in a container, add the capability: docker run --cap-add SYS_ADMIN',
  );
}

/** /proc/filesystems lists a file system that is a module only once it is loaded; mounting loads it. */
function fileSystem(name: string, purpose: string, isListed: boolean): Finding {
  if (isListed) return yes(name, `the kernel has ${name} (${purpose})`);
  return warn(name, `the kernel does not list ${name} (${purpose})`, `Load it: modprobe ${name}`);
}

async function loop(context: CheckContext): Promise<Finding> {
  if (await isAccessible(pathInRoot(context, 'dev/loop-control')))
    return yes('loop', 'loop devices can be created (image volumes)');
  return warn(
    'loop',
    'there is no /dev/loop-control (image volumes need loop devices)',
    'Load the driver: modprobe loop. In a container, mount the host folder /dev into it.',
  );
}

async function fuse(context: CheckContext, isListed: boolean): Promise<Finding> {
  if (!isListed) return warn('fuse', 'the kernel does not list fuse', 'Load it: modprobe fuse');
  try {
    await (await open(pathInRoot(context, 'dev/fuse'), 'r+')).close();
    return yes('fuse', 'the kernel has fuse, and /dev/fuse can be opened');
  } catch (cause) {
    const why = errnoOf(cause) ?? String(cause);
    const fix = 'Run Stowage as root; in a container, add the device: docker run --device /dev/fuse';
    return warn('fuse', `/dev/fuse cannot be opened (${why})`, fix);
  }
}

async function cgroup(context: CheckContext): Promise<Finding> {
  if (await isAccessible(pathInRoot(context, 'sys/fs/cgroup/cgroup.controllers'))) return yes('cgroup', 'version 2');
  if (!(await isAccessible(pathInRoot(context, 'sys/fs/cgroup'))))
    return warn(
      'cgroup',
      'no cgroups are mounted',
      'Container engines need them: mount -t cgroup2 none /sys/fs/cgroup',
    );
  const hybrid = await isAccessible(pathInRoot(context, 'sys/fs/cgroup/unified'));
  return warn(
    'cgroup',
    hybrid ? 'hybrid: version 1 and version 2' : 'version 1',
    'Stowage works with version 1; newer container engines and Kubernetes require version 2: boot with systemd.unified_cgroup_hierarchy=1',
  );
}

async function userNamespaces(context: CheckContext): Promise<Finding> {
  const check = 'user namespaces';
  if (
    !(await isAccessible(pathInRoot(context, 'proc/self/ns/user'))) ||
    (await readTrimmed(context, 'proc/sys/user/max_user_namespaces')) === '0'
  )
    return warn(check, 'disabled: rootless containers cannot run', 'Allow them: sysctl user.max_user_namespaces=15000');
  if ((await readTrimmed(context, 'proc/sys/kernel/unprivileged_userns_clone')) === '0')
    return warn(check, 'only root may create user namespaces', 'Allow them: sysctl kernel.unprivileged_userns_clone=1');
  if ((await readTrimmed(context, 'proc/sys/kernel/apparmor_restrict_unprivileged_userns')) === '1')
    return warn(
      check,
      'AppArmor restricts user namespaces for ordinary users',
      'For rootless containers give the engine a profile that allows userns, or: sysctl kernel.apparmor_restrict_unprivileged_userns=0',
    );
  return yes(check, 'available');
}
