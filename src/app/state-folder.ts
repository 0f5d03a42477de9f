import { randomUUID } from 'node:crypto';
import { chmod, readFile, realpath, rename, stat, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { makeFolders } from '#base/make-folders.ts';
import { StowageError } from '#core/errors.ts';
import type { Records } from '#core/ports.ts';
import type { Tokens } from '#core/tokens.ts';

export interface StateFolder {
  readonly path: string;
  readonly database: string;
  readonly mounts: string;
  /** Where container engines find volumes. */
  readonly published: string;
  readonly tokenFile: string;
  readonly defaultStore: string;
  /** The directory that the embedded NFS server exports, and the folder for its secret. */
  readonly nfs: { readonly exported: string; readonly state: string };
}

/** The keepers' folders are next to the socket. */
export const keepersFolder = (socket: string): string => join(dirname(socket), 'keepers');

/** Creates what is missing. Resolves symbolic links once, since the mount table shows real paths. */
export async function prepareState(wanted: string, socket: string): Promise<StateFolder> {
  try {
    await makeFolders(wanted, 0o700);
    // Everybody may traverse it, to reach the keepers' folders; the sockets and folders in it have modes of their own.
    await makeFolders(dirname(socket), 0o711);
    const path = await realpath(wanted);
    // Every process that can reach a mount of a store with squash=all acts as its single user, so only binds elsewhere may be reachable. The
    // state folder itself may be open to every user if another user created it.
    for (const name of ['mounts', 'published']) {
      await makeFolders(join(path, name), 0o700);
      await chmod(join(path, name), 0o700);
    }
    return {
      path,
      database: join(path, 'state.db'),
      mounts: join(path, 'mounts'),
      published: join(path, 'published'),
      tokenFile: join(path, 'token'),
      defaultStore: join(path, 'stores', 'local'),
      nfs: { exported: join(path, 'stores', 'nfs'), state: join(path, 'nfs-server', 'network') },
    };
  } catch (cause) {
    throw new StowageError(`cannot create or write the state folder ${wanted}`, {
      code: 'denied',
      reason: 'state-folder-unusable',
      action: 'Choose another folder: stowage up --state DIR, or correct its owner.',
      cause,
    });
  }
}

/** Changes with each boot. Undefined: not available on this system. */
export async function bootId(): Promise<string | undefined> {
  return (await readFile('/proc/sys/kernel/random/boot_id', 'utf8').catch(() => undefined))?.trim();
}

/**
 * Distinguishes a state folder from copies of it, on this and other machines. In a container without a machine id it changes with each
 * boot. Undefined: not available.
 */
export async function stateFolderId(path: string): Promise<string | undefined> {
  const machine = (await readFile('/etc/machine-id', 'utf8').catch(() => ''))?.trim() || (await bootId());
  const found = await stat(path, { bigint: true }).catch(() => undefined);
  return machine === undefined || found === undefined ? undefined : `${machine} ${found.dev}:${found.ino}`;
}

/** Identifies this Stowage for the lifetime of its state folder. */
export function instanceOf(records: Records): string {
  const known = records.settings.get('instance');
  if (known !== undefined) return known;
  const fresh = randomUUID();
  records.settings.set('instance', fresh);
  return fresh;
}

/** The token for the TCP port, created at the first start, and again if the file was removed or the token revoked. */
export async function ensureToken(folder: StateFolder, tokens: Tokens): Promise<void> {
  const present = await readFile(folder.tokenFile, 'utf8').catch(() => '');
  if (present.trim() !== '' && tokens.verify(present.trim()) !== undefined) return;
  for (const old of tokens.list()) if (old.name === 'first-start') tokens.revoke(old.id);
  const { secret } = tokens.create({ name: 'first-start', role: 'admin', stores: [], expiresIn: undefined });
  const draft = `${folder.tokenFile}.new`;
  await writeFile(draft, `${secret}\n`, { mode: 0o600 });
  await rename(draft, folder.tokenFile);
}
