import { constants, statSync } from 'node:fs';
import { dirname } from 'node:path';
import { onPath, repository } from './component.ts';
import { slaveMounts } from './mount-namespace.ts';

/** Debian's user nobody. Every machine has it, and it owns no files. */
export const ordinaryUid = 65_534;

// Other users can't traverse to a checkout below /root or in a new temporary folder. In that case the program gets the
// same path through an open folder, in a mount namespace that ends with the program.
const openFolderLines = [
  'set -e',
  'mount --bind "$1" /mnt',
  'mount -t tmpfs -o mode=0755 stowage-open "$2"',
  'mkdir -p "$1"',
  'mount --move /mnt "$1"',
  'cd "$1"',
  'shift 2',
  'exec "$@"',
].join('\n');

/**
 * The program and arguments that run `command` as an ordinary user, in the process that spawn returns. Returns the
 * command itself if this process already runs as one. The caller sets HOME and the XDG folders in the environment.
 */
export function asOrdinaryUser(
  command: readonly string[],
  checkout = repository,
): readonly [file: string, args: readonly string[]] {
  const [program = 'true', ...rest] = command;
  if (process.getuid?.() !== 0) return [program, rest];
  const userOptions = ['--reuid', `${ordinaryUid}`, '--regid', `${ordinaryUid}`, '--clear-groups', '--inh-caps=-all'];
  const args = ['--no-new-privs', ...userOptions, '--', ...command];
  const setpriv = onPath('setpriv') ?? 'setpriv';
  const untraversable = untraversableFolder(checkout);
  if (untraversable === undefined) return [setpriv, args];
  const inside = [...slaveMounts, 'sh', '-c', openFolderLines, 'sh', checkout, untraversable, setpriv, ...args];
  return [onPath('unshare') ?? 'unshare', inside];
}

/** The topmost folder of the path that other users can't traverse. */
function untraversableFolder(path: string): string | undefined {
  const parent = dirname(path);
  if (parent === path) return undefined;
  const above = untraversableFolder(parent);
  if (above !== undefined) return above;
  return (statSync(parent).mode & constants.S_IXOTH) === 0 ? parent : undefined;
}
