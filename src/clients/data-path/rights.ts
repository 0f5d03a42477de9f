import { constants } from 'node:fs';
import { access, stat } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { hasCapability } from '../mounter/capabilities.ts';
import { searchPath } from '../mounter/tools.ts';

/** As whom, and with which rights, a keeper and its data paths run. */
export interface KeeperRights {
  readonly user: number;
  /** The command that runs another one so. */
  readonly enter: readonly string[];
  /** Why it is not the user without any rights. */
  readonly why: string | undefined;
  /** Programs that would protect it further, and are not there. */
  readonly missing: readonly string[];
}

export interface WantedRights {
  /** Who exists for this alone. */
  readonly user: number;
  /** To connect from ports below 1024. */
  readonly privilegedPorts: boolean;
  /** What that user must be able to reach, or at least to pass. */
  readonly paths: readonly string[];
}

/** Above what the kernel never chooses: something must be left for it. */
export const keeperOomScore = -900;

/**
 * A user of its own, with no rights at all but what the store's options ask for. Where it cannot even read the program, for example
 * in root's home, it is root without any rights: still unable to mount, to trace others or to take back what it lost, but the
 * owner of root's files. That is told, since it is not what a server should run with.
 */
export async function keeperRights({ user: own, privilegedPorts, paths }: WantedRights): Promise<KeeperRights> {
  const closed = await firstClosed(paths);
  const user = closed === undefined ? own : 0;
  const rights = privilegedPorts ? ['+net_bind_service'] : [];
  const identity = user === 0 ? [] : [`--reuid=${user}`, `--regid=${user}`, '--clear-groups'];
  const kept = user === 0 || !privilegedPorts ? [] : [`--ambient-caps=${rights.join(',')}`];
  const { enter, missing } = await protection(await hasCapability('CAP_SYS_RESOURCE'), searchPath());
  return {
    user,
    missing,
    enter: [
      ...enter,
      'setpriv',
      ...identity,
      '--no-new-privs',
      `--inh-caps=${['-all', ...rights].join(',')}`,
      ...kept,
      `--bounding-set=${['-all', ...rights].join(',')}`,
      '--',
    ],
    why: closed === undefined ? undefined : `other users may not pass ${closed}`,
  };
}

/** What only we can give them: to keep their code in memory when that runs short, and not to be chosen then. */
const protecting = [
  ['prlimit', '--memlock=unlimited', '--'],
  ['choom', '-n', String(keeperOomScore), '--'],
] as const;

/** Nothing works less well without it, so a program that is not there is left out. */
export async function protection(isPermitted: boolean, path: string): Promise<Pick<KeeperRights, 'enter' | 'missing'>> {
  if (!isPermitted) return { enter: [], missing: [] };
  const found = await Promise.all(protecting.map(async ([program]) => await isOnPath(program, path)));
  return {
    enter: protecting.filter((_, at) => found[at]).flat(),
    missing: protecting.filter((_, at) => !found[at]).map(([program]) => program),
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

async function firstClosed(paths: readonly string[]): Promise<string | undefined> {
  for (const path of paths) {
    for (let at = path; ; at = dirname(at)) {
      const { mode } = await stat(at);
      // Of a folder: to pass it. Of a file: to read it.
      const needed = (mode & 0o170000) === 0o040000 ? 0o001 : 0o004;
      if ((mode & needed) === 0) return at;
      if (at === '/') break;
    }
  }
  return undefined;
}
