import type { SQLInputValue } from 'node:sqlite';
import type { ContainerReference, EngineMount, PluginName } from '#core/containers.ts';
import { StowageError } from '#core/errors.ts';
import type {
  Access,
  Labels,
  Mount,
  NodeName,
  Operation,
  OperationId,
  OperationState,
  Role,
  Source,
  StoreName,
  Token,
  User,
  Volume,
  VolumeId,
  VolumeName,
} from '#core/model.ts';
import type { StoredResponse } from '#core/ports.ts';
import type { Row } from './database.ts';

function text(row: Row, column: string): string {
  const value = row[column];
  if (typeof value !== 'string') throw new TypeError(`column ${column} holds ${typeof value}, not text`);
  return value;
}

function integer(row: Row, column: string): number {
  const value = row[column];
  if (typeof value !== 'number') throw new TypeError(`column ${column} holds ${typeof value}, not an integer`);
  return value;
}

const optional = <T>(row: Row, column: string, read: (row: Row, column: string) => T): T | undefined =>
  row[column] === null ? undefined : read(row, column);

/** For JSON that this module wrote itself. */
const json = <T>(row: Row, column: string): T => JSON.parse(text(row, column)) as T;

/** Reads bytes as text: numbers lose digits beyond 2^53, and readBigInts would make every column a bigint. */
export const volumeColumns =
  'v.id, v.store, v.name, CAST(v.bytes AS TEXT) AS bytes, v.access, v.labels, v.request_id, v.created_at, v.revision, v.instance, v.enforce';

export function toVolume(row: Row): Volume {
  const bytes = optional(row, 'bytes', text);
  return {
    id: text(row, 'id') as VolumeId,
    name: text(row, 'name') as VolumeName,
    store: text(row, 'store') as StoreName,
    bytes: bytes === undefined ? undefined : BigInt(bytes),
    access: text(row, 'access') as Access,
    labels: json<Labels>(row, 'labels'),
    requestId: text(row, 'request_id'),
    createdAt: integer(row, 'created_at'),
    revision: integer(row, 'revision'),
    instance: text(row, 'instance'),
    enforce: integer(row, 'enforce') === 1,
  };
}

export function fromVolume(volume: Volume): SQLInputValue[] {
  return [
    volume.id,
    volume.store,
    volume.name,
    storableBytes(volume),
    volume.access,
    JSON.stringify(volume.labels),
    volume.requestId,
    volume.createdAt,
    volume.revision,
    volume.instance,
    Number(volume.enforce),
  ];
}

const maxBytes = 2n ** 63n - 1n;

function storableBytes({ bytes, store, name }: Volume): bigint | null {
  if (bytes === undefined) return null;
  if (bytes >= 0n && bytes <= maxBytes) return bytes;
  throw new StowageError(`the size of volume ${store}/${name}, ${bytes} bytes, cannot be recorded`, {
    code: 'out-of-range',
    reason: 'size-out-of-range',
    action: `Choose a size from 0 to ${maxBytes} bytes.`,
  });
}

/** JSON also represents what UTF-8 or C strings cannot. Equal labels give equal text. */
export const labelTexts = (labels: Labels): string[] => Object.entries(labels).map((pair) => JSON.stringify(pair));

export function toTotals(row: Row | undefined): { volumes: number; bytes: bigint } {
  if (row === undefined) return { volumes: 0, bytes: 0n };
  return {
    volumes: integer(row, 'volumes'),
    bytes: BigInt(integer(row, 'bytes_high')) * 2n ** 32n + BigInt(integer(row, 'bytes_low')),
  };
}

export const toVolumeName = (row: Row): { id: VolumeId; name: VolumeName } => ({
  id: text(row, 'id') as VolumeId,
  name: text(row, 'name') as VolumeName,
});

export function toOperation(row: Row): Operation {
  return {
    id: text(row, 'id') as OperationId,
    kind: text(row, 'kind'),
    store: optional(row, 'store', text),
    subject: text(row, 'subject'),
    params: json<Operation['params']>(row, 'params'),
    state: text(row, 'state') as OperationState,
    startedAt: integer(row, 'started_at'),
    endedAt: optional(row, 'ended_at', integer),
    error: optional(row, 'error', json<NonNullable<Operation['error']>>),
  };
}

/** The position of the operation in the order of all operations. */
export const sequenceOf = (row: Row): number => integer(row, 'sequence');

export const fromError = (error: Operation['error']): string | null =>
  error === undefined ? null : JSON.stringify(error);

export function fromOperation(operation: Operation): SQLInputValue[] {
  return [
    operation.id,
    operation.kind,
    operation.store ?? null,
    operation.subject,
    JSON.stringify(operation.params),
    operation.state,
    operation.startedAt,
    operation.endedAt ?? null,
    fromError(operation.error),
  ];
}

export function toMount(row: Row): Mount {
  return {
    volumeId: text(row, 'volume_id') as VolumeId,
    source: json<Source>(row, 'source'),
    target: text(row, 'target'),
    readOnly: integer(row, 'read_only') === 1,
    user: {
      kind: text(row, 'user_kind') as User['kind'],
      name: text(row, 'user_name'),
      node: text(row, 'user_node') as NodeName,
    },
    since: integer(row, 'since'),
    madeTarget: integer(row, 'made_target') === 1,
  };
}

export function fromMount({ target, volumeId, source, readOnly, user, since, madeTarget }: Mount): SQLInputValue[] {
  return [
    target,
    volumeId,
    JSON.stringify(source),
    Number(readOnly),
    user.kind,
    user.name,
    user.node,
    since,
    Number(madeTarget),
  ];
}

export function toToken(row: Row): Token {
  return {
    id: text(row, 'id'),
    name: text(row, 'name'),
    role: text(row, 'role') as Role,
    stores: json<readonly string[]>(row, 'stores'),
    createdAt: integer(row, 'created_at'),
    expiresAt: optional(row, 'expires_at', integer),
  };
}

export function fromToken(token: Token, hash: string): SQLInputValue[] {
  return [
    token.id,
    hash,
    token.name,
    token.role,
    JSON.stringify(token.stores),
    token.createdAt,
    token.expiresAt ?? null,
  ];
}

export function toStoredResponse(row: Row): StoredResponse {
  return {
    fingerprint: text(row, 'fingerprint'),
    status: optional(row, 'status', integer),
    body: text(row, 'body'),
    at: integer(row, 'at'),
  };
}

export const toSetting = (row: Row): string => text(row, 'value');
export const toStore = (row: Row): { name: string; uri: string } => ({
  name: text(row, 'name'),
  uri: text(row, 'uri'),
});

export const toEngineName = (row: Row): { readonly name: string; readonly id: VolumeId } => ({
  name: text(row, 'name'),
  id: text(row, 'volume_id') as VolumeId,
});

export const toEngineMount = (row: Row): EngineMount => ({
  volumeId: text(row, 'volume_id') as VolumeId,
  plugin: text(row, 'plugin') as PluginName,
  id: text(row, 'id'),
  count: integer(row, 'count'),
  since: integer(row, 'since'),
});

export const toReference = (row: Row): ContainerReference => ({
  engine: text(row, 'engine'),
  container: text(row, 'container'),
  name: text(row, 'name'),
  volumeId: text(row, 'volume_id') as VolumeId,
  running: integer(row, 'running') === 1,
});
