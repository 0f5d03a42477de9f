import { constants } from 'node:fs';
import { access, stat } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { hasCapability } from '../mounter/capabilities.ts';
import { searchPath } from '../mounter/tools.ts';

/** The user and the rights of a keeper and its data paths. */
export interface KeeperRights {
  readonly user: number;
  /** The start of a command line that runs the rest of it with these rights. */
  readonly commandPrefix: readonly string[];
  /** Why the keeper does not run as the dedicated user. Undefined: it does. */
  readonly fallbackReason: string | undefined;
  /** Programs that would protect the keeper further, but are not installed. */
  readonly missingPrograms: readonly string[];
}

export interface KeeperRightsOptions {
  /** The dedicated user. */
  readonly user: number;
  /** Whether it connects from ports below 1024. */
  readonly privilegedPorts: boolean;
  /** The folders that this user must be able to traverse, and the files it must be able to read. */
  readonly paths: readonly string[];
}

/** Above -1000, which exempts a process from the OOM killer: the kernel must be able to kill something. */
export const keeperOomScore = -900;

/**
 * A dedicated user, with no capabilities except those that the store's options require. If that user cannot read the program, for example
 * in root's home, the keeper runs as root without capabilities: still unable to mount, to trace other processes or to regain capabilities,
 * but the owner of root's files. That is logged, since a server should not run that way.
 */
export async function keeperRights({
  user: dedicatedUser,
  privilegedPorts,
  paths,
}: KeeperRightsOptions): Promise<KeeperRights> {
  const inaccessible = await firstInaccessible(paths);
  const user = inaccessible === undefined ? dedicatedUser : 0;
  const rights = privilegedPorts ? ['+net_bind_service'] : [];
  const identity = user === 0 ? [] : [`--reuid=${user}`, `--regid=${user}`, '--clear-groups'];
  const ambientCapabilities = user === 0 || !privilegedPorts ? [] : [`--ambient-caps=${rights.join(',')}`];
  const { commandPrefix, missingPrograms } = await protectionPrefix(
    await hasCapability('CAP_SYS_RESOURCE'),
    searchPath(),
  );
  return {
    user,
    missingPrograms,
    commandPrefix: [
      ...commandPrefix,
      'setpriv',
      ...identity,
      '--no-new-privs',
      `--inh-caps=${['-all', ...rights].join(',')}`,
      ...ambientCapabilities,
      `--bounding-set=${['-all', ...rights].join(',')}`,
      '--',
    ],
    fallbackReason: inaccessible === undefined ? undefined : `other users have no access to ${inaccessible}`,
  };
}

/** Protection that only we can grant: a low OOM score, and unlimited locked memory to keep its code in memory. */
const protectionCommands = [
  ['prlimit', '--memlock=unlimited', '--'],
  ['choom', '-n', String(keeperOomScore), '--'],
] as const;

/** Everything works without this protection, so a program that is missing is left out. */
export async function protectionPrefix(
  isPermitted: boolean,
  path: string,
): Promise<Pick<KeeperRights, 'commandPrefix' | 'missingPrograms'>> {
  if (!isPermitted) return { commandPrefix: [], missingPrograms: [] };
  const found = await Promise.all(protectionCommands.map(async ([program]) => await isOnPath(program, path)));
  return {
    commandPrefix: protectionCommands.filter((_, at) => found[at]).flat(),
    missingPrograms: protectionCommands.filter((_, at) => !found[at]).map(([program]) => program),
  };
}

async function isOnPath(program: string, path: string): Promise<boolean> {
  const files = path.split(':').map((folder) => join(folder, program));
  const found = await Promise.all(
    files.map((file) =>
      access(file, constants.X_OK).then(
        () => true,
        () => false,
      ),
    ),
  );
  return found.includes(true);
}

async function firstInaccessible(paths: readonly string[]): Promise<string | undefined> {
  for (const path of paths) {
    for (let ancestor = path; ; ancestor = dirname(ancestor)) {
      const { mode } = await stat(ancestor);
      // A folder must be traversable, a file readable.
      const needed = (mode & 0o170000) === 0o040000 ? 0o001 : 0o004;
      if ((mode & needed) === 0) return ancestor;
      if (ancestor === '/') break;
    }
  }
  return undefined;
}
