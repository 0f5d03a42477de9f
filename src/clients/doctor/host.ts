import { constants } from 'node:fs';
import { realpath } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { type MountEntry, readMountTable } from '../mounter/mountinfo.ts';
import { installHint, type Tool, tools } from '../mounter/tools.ts';
import { type Check, type Finding, isAccessible, no, pathInRoot, readTrimmed, warn, yes } from './check.ts';

const requiredTools = Object.entries(tools).filter(([, about]) => about.for !== undefined) as [
  Tool,
  (typeof tools)[Tool],
][];

export const programs: Check = async (context) => {
  const folders = context.path.split(':').filter((folder) => folder !== '');
  return await Promise.all(
    requiredTools.map(async ([tool, { for: purpose }]) => {
      const missingTool = (why: string): Finding =>
        purpose === 'mounting'
          ? no(tool, why, installHint(tool))
          : warn(tool, `${why} (for ${purpose})`, installHint(tool));
      for (const folder of folders) {
        const file = join(folder, tool);
        if (!(await isAccessible(file, constants.X_OK))) continue;
        // Busybox lacks options that Stowage uses.
        const isBusybox = basename(await realpath(file).catch(() => file)) === 'busybox';
        return isBusybox ? missingTool(`${file} belongs to busybox`) : yes(tool, file);
      }
      return missingTool('not found');
    }),
  );
};

export const propagation: Check = async (context) => {
  const table = await readMountTable(pathInRoot(context, 'proc/self/mountinfo'));
  return [
    propagationOf('/', table.mountAt('/')),
    propagationOf(`state folder ${context.stateFolder}`, table.mountContaining(context.stateFolder)),
  ];
};

function propagationOf(what: string, entry: MountEntry | undefined): Finding {
  const check = `propagation of ${what}`;
  if (entry === undefined)
    return warn(check, 'not in the mount table', 'To see the mount table: findmnt -o TARGET,PROPAGATION');
  if (entry.propagation.some((tag) => tag.startsWith('shared:')))
    return yes(check, `${entry.at} is shared: mounts made by Stowage can reach running containers`);
  const kind = entry.propagation.some((tag) => tag.startsWith('master:')) ? 'a slave' : 'private';
  return warn(
    check,
    `${entry.at} is ${kind}: running containers do not see new mounts`,
    `Make it shared before containers start: mount --make-rshared ${entry.at}`,
  );
}

const networkFileSystems = /^(nfs4?|cifs|smb3|ceph|glusterfs|9p|virtiofs|afs|lustre|ocfs2|gfs2|fuse\..*)$/;

export const stateFolder: Check = async (context) => {
  const check = 'state folder';
  // Before the first start the folder does not exist: check the nearest existing parent.
  let folder = context.stateFolder;
  while (folder !== '/' && !(await isAccessible(folder))) folder = join(folder, '..');
  if (!(await isAccessible(folder, constants.W_OK)))
    return [
      no(
        check,
        `${folder} cannot be written`,
        `Give it to the user that runs Stowage (chown), or choose another: stowage up --state FOLDER`,
      ),
    ];
  const table = await readMountTable(pathInRoot(context, 'proc/self/mountinfo')).catch(() => undefined);
  const entry = table?.mountContaining(folder);
  if (entry !== undefined && networkFileSystems.test(entry.type))
    return [
      no(
        check,
        `${folder} is on ${entry.type}, and the database needs a local file system`,
        'Choose a folder on a local disk: stowage up --state FOLDER',
      ),
    ];
  if (entry !== undefined && ['tmpfs', 'ramfs', 'overlay'].includes(entry.type))
    return [
      warn(
        check,
        `${folder} is on ${entry.type}: what Stowage records is lost with ${entry.type === 'overlay' ? 'the container' : 'the next boot'}`,
        'Put it on a disk; in a container, mount a host folder or a volume there.',
      ),
    ];
  return [yes(check, `${context.stateFolder} can be written, on ${entry?.type ?? 'a local file system'}`)];
};

export const security: Check = async (context) => [await appArmor(context), await selinux(context)];

async function appArmor(context: Parameters<Check>[0]): Promise<Finding> {
  if ((await readTrimmed(context, 'sys/module/apparmor/parameters/enabled')) !== 'Y')
    return yes('AppArmor', 'not active');
  const profile = await readTrimmed(context, 'proc/self/attr/current');
  if (profile === undefined || profile === 'unconfined')
    return yes(
      'AppArmor',
      'active; this process is not confined. Containers that mount need --security-opt apparmor=unconfined',
    );
  return warn(
    'AppArmor',
    `active; this process is confined by ${profile}, which may deny mounting`,
    "Docker's own profile denies mount even with SYS_ADMIN: run the container with --security-opt apparmor=unconfined, or with a profile that allows mount.",
  );
}

async function selinux(context: Parameters<Check>[0]): Promise<Finding> {
  const enforcing = await readTrimmed(context, 'sys/fs/selinux/enforce');
  if (enforcing === undefined) return yes('SELinux', 'not active');
  if (enforcing === '0') return yes('SELinux', 'active, permissive: it denies nothing');
  return warn(
    'SELinux',
    'active and enforcing: containers may be denied access to volumes',
    'Run containers that mount with --security-opt label=disable, and give volumes a label that containers may use: chcon -Rt container_file_t FOLDER',
  );
}
