import { randomUUID } from 'node:crypto';
import { dirname } from 'node:path';
import { errnoOf, isErrno } from '#base/errno.ts';
import { isJsonObject } from '#base/json.ts';
import { StowageError } from '#core/errors.ts';
import { differentStore } from './errors.ts';
import type { Files } from './files.ts';
import type { LayoutKind } from './layout.ts';
import { formatVersion, newerFormat } from './meta.ts';

/** The contents of `.stowage/store.json`. */
export interface Identity {
  readonly layout: unknown;
  /** Undefined: the store has none yet. */
  readonly uuid: string | undefined;
}

export async function readIdentity(files: Files, path: string): Promise<Identity | undefined> {
  let json: unknown;
  try {
    json = JSON.parse((await files.read(path, 4096)).toString('utf8'));
  } catch (cause) {
    if (isErrno(cause, 'ENOENT')) return undefined;
    if (errnoOf(cause) !== undefined) throw cause;
    throw identityDamaged(path, cause);
  }
  if (!isJsonObject(json) || typeof json['version'] !== 'number') throw identityDamaged(path);
  if (json['version'] > formatVersion) throw newerFormat(path, json['version']);
  const uuid = json['store'];
  return { layout: json['layout'], uuid: typeof uuid === 'string' && uuid !== '' ? uuid : undefined };
}

function identityDamaged(path: string, cause?: unknown): StowageError {
  return new StowageError(`${path} cannot be read`, {
    code: 'conflict',
    reason: 'record-unreadable',
    action: `Restore it from a backup; or remove it and adopt the volumes again with: stowage store adopt`,
    cause,
  });
}

export const identityText = (uuid: string, layout: LayoutKind): string =>
  `${JSON.stringify({ version: formatVersion, store: uuid, layout })}\n`;

export async function writeIdentity(files: Files, path: string, scratch: string, layout: LayoutKind): Promise<string> {
  const uuid = randomUUID();
  await files.writeNew(scratch, identityText(uuid, layout));
  await files.rename(scratch, path);
  // Both folders may be new. The id must survive a power cut, because Stowage remembers the store by it.
  await files.sync(dirname(path));
  await files.sync(dirname(dirname(path)));
  return uuid;
}

/** Throws if the root is the empty mount point of an unmounted disk, or if another disk is mounted there. */
export async function refuseOtherStore(
  files: Files,
  root: string,
  store: string,
  recorded: Identity | undefined,
  expected: string | undefined,
): Promise<void> {
  if (expected === undefined || recorded?.uuid === expected) return;
  if (recorded === undefined) throw differentStore(root, store, await whatIsThere(files, root));
  if (recorded.uuid !== undefined)
    throw differentStore(root, store, `it is store ${recorded.uuid}; expected ${expected}`);
}

async function whatIsThere(files: Files, root: string): Promise<string> {
  return (await files.names(root)).length === 0
    ? 'it is empty; its disk may not be mounted'
    : 'it has no .stowage/store.json; its disk may not be mounted';
}

export function refuseOtherLayout(root: string, recorded: unknown, configured: LayoutKind): void {
  if (recorded === configured) return;
  throw new StowageError(`the store in ${root} has layout ${String(recorded)}, not ${configured}`, {
    code: 'conflict',
    reason: 'layout-differs',
    action: `Configure it with layout=${String(recorded)}, or use another directory for layout=${configured}.`,
  });
}
