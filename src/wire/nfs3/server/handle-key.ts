import { randomBytes } from 'node:crypto';
import { closeSync, fsyncSync, linkSync, openSync, readFileSync, realpathSync, unlinkSync } from 'node:fs';
import { join, sep } from 'node:path';
import { isErrno } from '#base/errno.ts';
import { makeFolders } from '#base/make-folders.ts';
import { writeAllSync } from '#base/write-all.ts';

const fileName = 'nfs-server.json';
const keyBytes = 32;

/**
 * Loads or creates the key for file handles. An attacker who has it can forge a handle for any file. It is stored outside the exported
 * directory, so that handles stay valid over a restart and no client can read it.
 */
export async function loadHandleKey(state: string, exported: string): Promise<Buffer> {
  await makeFolders(state, 0o700);
  const [inside, outside] = [realpathSync(state), realpathSync(exported)];
  if (`${inside}${sep}`.startsWith(outside.endsWith(sep) ? outside : `${outside}${sep}`))
    throw new Error(`the state folder ${state} lies in ${exported}, which is exported: clients could read its secrets`);
  const path = join(state, fileName);
  try {
    return readKey(path);
  } catch (cause) {
    if (!isErrno(cause, 'ENOENT')) throw cause;
  }
  writeKey(path);
  return readKey(path);
}

function readKey(path: string): Buffer {
  const text = readFileSync(path, 'utf8');
  const invalidStateError = (cause?: unknown): Error =>
    new Error(`${path} is not the state of an NFS server; remove it, and clients will have to remount`, { cause });
  let stored: { readonly version?: unknown; readonly key?: unknown };
  try {
    stored = JSON.parse(text);
  } catch (cause) {
    throw invalidStateError(cause);
  }
  if (typeof stored !== 'object' || stored === null) throw invalidStateError();
  if (typeof stored.version === 'number' && stored.version > 1)
    throw new Error(`${path} was written by a newer version of this program (format ${stored.version})`);
  const key = typeof stored.key === 'string' ? Buffer.from(stored.key, 'base64') : Buffer.alloc(0);
  if (stored.version !== 1 || key.length !== keyBytes) throw invalidStateError();
  return key;
}

/** Creates the file atomically: link(2) fails for all but the first of concurrent writers. */
function writeKey(path: string): void {
  const draft = `${path}.${randomBytes(6).toString('hex')}`;
  const file = openSync(draft, 'wx', 0o600);
  try {
    writeAllSync(file, `${JSON.stringify({ version: 1, key: randomBytes(keyBytes).toString('base64') })}\n`);
    fsyncSync(file);
    linkSync(draft, path);
  } catch (cause) {
    if (!isErrno(cause, 'EEXIST')) throw cause;
  } finally {
    closeSync(file);
    unlinkSync(draft);
  }
}
