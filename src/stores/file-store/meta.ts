import { errnoOf } from '#base/errno.ts';
import { isJsonObject } from '#base/json.ts';
import { StowageError } from '#core/errors.ts';
import type { Labels, StoreName, Volume, VolumeName } from '#core/model.ts';
import { isVolumeId, isVolumeName, quoted } from '#core/names.ts';
import { type Files, UnsuitableFile } from './files.ts';
import { type Expiry, parseExpiry } from './trash-expiry.ts';

/** Version 0 had no `access`, `revision` and `instance`. */
export const formatVersion = 1;
const maxMetaBytes = 64 * 1024;

/** What `<name>.meta` records. */
export interface Meta extends Omit<Volume, 'store'> {
  /**
   * Intent of a rename or a restore: the data move first, then this file is renamed. The volume's name is always that of this file.
   */
  readonly movingTo?: VolumeName;
  /** Set while the volume is in the trash or is being moved there. */
  readonly deletedAt?: number;
  /** How long the trash keeps it. Absent: an older Stowage deleted it. Unreadable: it never expires. */
  readonly expiry?: Expiry | 'unreadable';
  /** Path of the data, relative to the root. Undefined: beside the record, under the volume's name. */
  readonly path?: string;
  /** The volume was never given to a client to mount, so it is empty. Recorded by layouts that cannot look inside. Absent: it may have been. */
  readonly unused?: true;
}

export type MetaRead =
  | { readonly state: 'ok'; readonly meta: Meta }
  | { readonly state: 'absent' }
  /**
   * Empty, or a prefix of text that we write: the write was interrupted, so no call has reported that the volume exists.
   * Remove only such files: any other `.meta` file may be a user's own.
   */
  | { readonly state: 'torn'; readonly error: StowageError }
  | { readonly state: 'unreadable'; readonly error: StowageError };

export function encodeMeta(meta: Meta): string {
  const { bytes, enforce, ...rest } = meta;
  const size = { ...(bytes === undefined ? {} : { bytes: `${bytes}` }), ...(enforce ? { enforce } : {}) };
  const text = `${JSON.stringify({ version: formatVersion, ...rest, ...size })}\n`;
  if (Buffer.byteLength(text) <= maxMetaBytes) return text;
  throw new StowageError(`the record of volume ${quoted(meta.name)} would be larger than ${maxMetaBytes} bytes`, {
    code: 'invalid',
    reason: 'labels-too-large',
    action: 'Use fewer or shorter labels.',
  });
}

/** `instance` becomes the owner of records of version 0, which have none: it is the one that has the store locked. */
export async function readMeta(files: Files, path: string, instance: string): Promise<MetaRead> {
  let text: string;
  try {
    text = (await files.read(path, maxMetaBytes)).toString('utf8');
  } catch (cause) {
    const code = errnoOf(cause);
    if (code === 'ENOENT') return { state: 'absent' };
    if (code === 'ELOOP') return unreadable(path, 'it is a symbolic link', cause);
    // open(2) fails for a socket, and for a device without a driver.
    if (code === 'ENXIO' || code === 'ENODEV') return unreadable(path, 'it is not a plain file', cause);
    if (cause instanceof UnsuitableFile) return unreadable(path, cause.message, cause);
    throw cause;
  }
  let json: unknown;
  try {
    json = JSON.parse(text);
  } catch (cause) {
    if (text === '') return { state: 'torn', error: unreadable(path, 'it is empty', cause).error };
    if (isTruncated(text)) return { state: 'torn', error: unreadable(path, 'it is truncated', cause).error };
    return unreadable(path, 'it is not JSON', cause);
  }
  return parse(path, json, instance);
}

/** How `encodeMeta`'s text begins. No file of a user begins like that. */
const recordPrefixes = Array.from({ length: formatVersion + 1 }, (_, version) => `{"version":${version},"id":"sv1-`);

/** Whether the text is a proper prefix of what `encodeMeta` writes: one line, with an object that is not closed. */
function isTruncated(text: string): boolean {
  if (!recordPrefixes.some((head) => head.startsWith(text) || text.startsWith(head)) || /[\0-\x1f]/.test(text))
    return false;
  const unquoted = text.replaceAll(/"(?:[^"\\]|\\.)*(?:"|\\?$)/gs, '');
  let depth = 0;
  return [...unquoted].every((char) => {
    depth += char === '{' ? 1 : char === '}' ? -1 : 0;
    return depth > 0;
  });
}

function unreadable(
  path: string,
  why: string,
  cause?: unknown,
): { readonly state: 'unreadable'; readonly error: StowageError } {
  const error = new StowageError(`the record ${path} cannot be read: ${why}`, {
    code: 'conflict',
    reason: 'record-unreadable',
    action: `Restore it from a backup, or move it away and adopt the data again with: stowage store adopt`,
    cause,
  });
  return { state: 'unreadable', error };
}

export function newerFormat(path: string, version: number): StowageError {
  return new StowageError(`${path} has format version ${version}; this Stowage knows versions up to ${formatVersion}`, {
    code: 'unsupported',
    reason: 'format-newer',
    action: 'Use the newer Stowage that wrote it.',
  });
}

type Check = (value: unknown) => boolean;
const isText: Check = (value) => typeof value === 'string';
const isCount: Check = (value) => Number.isSafeInteger(value) && Number(value) >= 0;
const isName: Check = (value) => typeof value === 'string' && isVolumeName(value);
/** Below the root, never outside of it, and not in a folder of Stowage. */
const isDataPath: Check = (value) =>
  typeof value === 'string' &&
  value.length <= 1024 &&
  value.split('/').every((part) => part !== '' && part !== '..' && part !== '.' && !part.startsWith('.stowage'));
const absentOr =
  (check: Check): Check =>
  (value) =>
    value === undefined || check(value);

const fieldChecks: Readonly<Record<keyof Meta, Check>> = {
  id: (value) => typeof value === 'string' && isVolumeId(value),
  name: isName,
  bytes: absentOr((value) => typeof value === 'string' && /^\d{1,19}$/.test(value)),
  enforce: absentOr((value) => typeof value === 'boolean'),
  access: (value) => value === 'filesystem' || value === 'block',
  labels: (value) => isJsonObject(value) && Object.values(value).every(isText),
  requestId: isText,
  createdAt: isCount,
  revision: isCount,
  instance: isText,
  movingTo: absentOr(isName),
  deletedAt: absentOr(isCount),
  // An unreadable date must not hide the volume: the volume just never expires.
  expiry: () => true,
  path: absentOr(isDataPath),
  unused: absentOr((value) => value === true),
};

function parse(path: string, json: unknown, instance: string): MetaRead {
  if (!isJsonObject(json) || !isCount(json['version'])) return unreadable(path, 'it has no format version');
  const version = Number(json['version']);
  if (version > formatVersion) return { state: 'unreadable', error: newerFormat(path, version) };
  const record: Readonly<Record<string, unknown>> =
    version === 0 ? { access: 'filesystem', revision: 1, instance, ...json } : json;
  const wrong = Object.entries(fieldChecks).find(([field, check]) => !check(record[field]));
  if (wrong !== undefined) return unreadable(path, `its field ${wrong[0]} is missing or wrong`);
  // Checked field by field above.
  const checked = record as unknown as Omit<Meta, 'bytes' | 'enforce' | 'expiry'> & {
    readonly bytes?: string;
    readonly enforce?: boolean;
  };
  const {
    id,
    name,
    access,
    labels,
    requestId,
    createdAt,
    revision,
    movingTo,
    deletedAt,
    path: dataPath,
    unused,
  } = checked;
  const expiry = record['expiry'];
  const meta: Meta = {
    id,
    name,
    access,
    labels,
    requestId,
    createdAt,
    revision,
    instance: checked.instance,
    bytes: checked.bytes === undefined ? undefined : BigInt(checked.bytes),
    enforce: checked.enforce === true,
    ...(movingTo === undefined ? {} : { movingTo }),
    ...(deletedAt === undefined ? {} : { deletedAt }),
    ...(expiry === undefined ? {} : { expiry: parseExpiry(expiry) }),
    ...(dataPath === undefined ? {} : { path: dataPath }),
    ...(unused === undefined ? {} : { unused }),
  };
  return { state: 'ok', meta };
}

/** Reads `<name>.meta`. The file's name is authoritative; the content must agree with it. */
export async function readNamedMeta(files: Files, path: string, name: VolumeName, instance: string): Promise<MetaRead> {
  const read = await readMeta(files, path, instance);
  if (read.state !== 'ok' || (read.meta.name === name && read.meta.movingTo !== name)) return read;
  if (read.meta.movingTo !== name) return unreadable(path, `it records volume ${quoted(read.meta.name)}`);
  // The move is done. A restore keeps `deletedAt` until now, so that an earlier crash leaves a complete trash entry.
  return { state: 'ok', meta: withoutMove(read.meta, name) };
}

/** Whether the record has an intent to move: pending, abandoned or done. */
export const hasMoveIntent = ({ movingTo, deletedAt }: Meta): boolean =>
  movingTo !== undefined || deletedAt !== undefined;

/** The record without any intent to move. */
export function withoutMove(meta: Meta, name: VolumeName): Meta {
  const { movingTo: _movingTo, deletedAt: _deletedAt, expiry: _expiry, ...rest } = meta;
  return { ...rest, name };
}

export function volumeOf(meta: Meta, store: StoreName): Volume {
  const { path: _path, unused: _unused, ...volume } = withoutMove(meta, meta.name);
  return { ...volume, store };
}

export function sameLabels(a: Labels, b: Labels): boolean {
  const keys = Object.keys(a);
  return keys.length === Object.keys(b).length && keys.every((key) => Object.hasOwn(b, key) && a[key] === b[key]);
}
