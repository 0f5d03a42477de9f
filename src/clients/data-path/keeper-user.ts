import { randomUUID } from 'node:crypto';
import { existsSync, lstatSync, readFileSync } from 'node:fs';
import { link, mkdir, readdir, readFile, rename, stat, unlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { isErrno } from '#base/errno.ts';

/** The range for service users (systemd.exec(5), DynamicUser=): they have no login and own no files. */
const serviceUserRange = { first: 61_184, last: 65_519 } as const;

const userFile = (folder: string): string => join(folder, 'user');

/**
 * The user of this Stowage's keepers and data paths, and of nothing else: any process with the same user could attack them. Chosen once and
 * kept in the folder. `externalUser`: the user of external keepers.
 */
export async function keeperUser(folder: string, externalUser?: number): Promise<number> {
  const known = knownKeeperUser(folder);
  if (known !== undefined && (externalUser ?? known) === known) return known;
  await mkdir(folder, { recursive: true, mode: 0o711 });
  const chosen = externalUser ?? (await freeUser());
  // Atomic, and fails if another process was faster.
  const draft = `${userFile(folder)}.${randomUUID()}`;
  await writeFile(draft, `${chosen}\n`, { mode: 0o644 });
  if (externalUser !== undefined) {
    await rename(draft, userFile(folder));
    return externalUser;
  }
  try {
    await link(draft, userFile(folder));
    return chosen;
  } catch (cause) {
    const other = isErrno(cause, 'EEXIST') ? knownKeeperUser(folder) : undefined;
    if (other === undefined) throw cause;
    return other;
  } finally {
    await unlink(draft);
  }
}

/** Undefined: none was chosen yet. */
export function knownKeeperUser(folder: string): number | undefined {
  const path = userFile(folder);
  if (!existsSync(path)) return undefined;
  const { uid, mode } = lstatSync(path);
  const chosen = Number(readFileSync(path, 'utf8').trim() || Number.NaN);
  const isTrusted = (uid === 0 || uid === process.getuid?.()) && (mode & 0o022) === 0;
  return isTrusted && chosen >= serviceUserRange.first && chosen <= serviceUserRange.last ? chosen : undefined;
}

async function freeUser(): Promise<number> {
  const accounts = (await readFile('/etc/passwd', 'utf8').catch(() => ''))
    .split('\n')
    .map((line) => line.split(':')[2]);
  const processes = (await readdir('/proc')).filter((name) => /^\d+$/.test(name));
  const owners = await Promise.all(
    processes.map((pid) =>
      stat(`/proc/${pid}`).then(
        ({ uid }) => uid,
        () => 0,
      ),
    ),
  );
  const taken = new Set([...accounts.map(Number), ...owners]);
  const count = serviceUserRange.last - serviceUserRange.first + 1;
  const startOffset = Math.floor(Math.random() * count);
  for (let i = 0; i < count; i++) {
    const candidate = serviceUserRange.first + ((startOffset + i) % count);
    if (!taken.has(candidate) && !existsSync(`/run/systemd/dynamic-uid/${candidate}`)) return candidate;
  }
  throw new Error('every user id for services is taken');
}
