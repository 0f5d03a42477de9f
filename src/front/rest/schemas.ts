/**
 * The JSON of the REST API. Requests are validated with these schemas, TypeScript derives its types from them, and /openapi.json is
 * generated from them. Sizes are decimal strings, since a volume can be larger than the exact range of a JSON number.
 */

import { type Static, type TSchema, Type } from 'typebox';
import { reasonGrammar } from '#core/errors.ts';
import { bytes, labels, nullable, object, oneOf, time } from './schema-parts.ts';

export const access = oneOf('filesystem', 'block');
export const role = oneOf('viewer', 'user', 'admin');

const userKind = oneOf('path', 'container', 'pod', 'kubelet');
export const user = object({ kind: userKind, name: Type.String(), node: Type.String() });

/** A node that could not be reached, and why. */
const unreached = object({ node: Type.String(), reason: Type.String(), message: Type.String() });
const onNode = Type.Optional(Type.String({ description: 'In a cluster: the node of the object' }));

export const mount = object({
  node: onNode,
  volume: Type.String({ description: 'Volume id' }),
  name: nullable(Type.String({ description: 'store/name' })),
  target: Type.String(),
  readOnly: Type.Boolean(),
  user,
  since: time,
  mounted: Type.Boolean({ description: "Whether the mount is in the kernel's mount table" }),
});

export const trouble = object({
  ...mount.properties,
  condition: oneOf('ok', 'unmounted', 'dead', 'client-failing', 'store-silent'),
  detail: nullable(Type.String({ description: 'The cause' })),
  repairedAt: nullable({
    ...time,
    description: 'When the volume was remounted: processes that used the old mount get errors until they restart',
  }),
});

export const volume = object({
  id: Type.String({ description: 'sv1-<uuid>; never reused' }),
  store: Type.String(),
  name: Type.String(),
  node: onNode,
  bytes: nullable(bytes),
  enforced: Type.Boolean({ description: 'Whether the size is enforced' }),
  access,
  labels,
  createdAt: time,
  revision: Type.Integer(),
});

export const createdVolume = object({
  ...volume.properties,
  storeIdentity: nullable(Type.String({ description: 'The `identity` of the store of the volume; null: unknown' })),
});

const use = object({
  host: Type.String({ description: "The id of the host's Stowage" }),
  node: Type.String({ description: 'The name of the host' }),
  users: Type.Array(object({ kind: user.properties.kind, name: Type.String() })),
  writer: Type.Boolean({ description: 'Whether this is the only host that may write' }),
  renewedAt: Type.String({ format: 'date-time', description: 'By the clock of the store' }),
  stale: Type.Boolean({
    description: 'The host has not renewed the record for a long time; the record is still valid',
  }),
});

export const volumeDetail = object({
  ...volume.properties,
  condition: oneOf('ok', 'missing', 'unknown'),
  detail: nullable(Type.String()),
  path: nullable(
    Type.String({ description: "Path of the data below the store's directory; null: the name of the volume" }),
  ),
  users: Type.Array(user),
  mounts: Type.Array(mount),
  unreached: Type.Optional(Type.Array(unreached, { description: 'In a cluster: nodes that could not be reached' })),
  uses: nullable(
    Type.Array(use, {
      description: 'Use records of hosts on the store; null: the store does not keep use records',
    }),
  ),
});

export const usage = object({
  bytes,
  files: Type.String({ pattern: '^[0-9]+$' }),
  complete: Type.Boolean({ description: 'False: the scan timed out, so the numbers are lower bounds' }),
  empty: Type.Boolean({
    description: 'The volume is certainly empty: the scan was complete, or the volume was never mounted',
  }),
  measuredAt: time,
});

export const deletion = object({
  outcome: oneOf('deleted', 'archived', 'retained'),
  expiresAt: nullable(time),
});

export const trashEntry = object({
  ...volume.properties,
  deletedAt: time,
  expiresAt: nullable(time),
});

const storeState = oneOf('open', 'not-answering', 'unavailable');
export const store = object({
  name: Type.String(),
  kind: Type.String(),
  reach: oneOf('anywhere', 'node'),
  uri: Type.String(),
  default: Type.Boolean(),
  origin: oneOf('file', 'api', 'builtin', 'cluster'),
  state: storeState,
  identity: nullable(
    Type.String({
      description: 'The permanent identity that is recorded on the store; null: unknown',
    }),
  ),
  problem: nullable(object({ message: Type.String(), action: Type.String() })),
  pending: nullable(Type.String({ description: 'A pending configuration change, and why it is pending' })),
  network: nullable(
    Type.String({
      description: "Network from which Stowage connects, e.g. netns:storage; null: the host's network",
    }),
  ),
  readOnly: Type.Boolean(),
  enforcesCapacity: nullable(Type.Boolean()),
  access: Type.Array(access),
  onDelete: oneOf('delete', 'retain', 'archive'),
  retention: Type.String({ description: 'How long the trash keeps a volume, e.g. 7d' }),
  maxVolumes: nullable(Type.Integer()),
  maxBytes: nullable(bytes),
  defaultSize: nullable(bytes),
  volumes: Type.Integer(),
  bytes: Type.String({ description: 'The sum of the requested sizes' }),
  totalBytes: nullable(Type.String({ description: 'Size of the file system of the store; null: unknown' })),
  freeBytes: nullable(
    Type.String({
      description: 'Free space of that file system, which may be shared; null: unknown',
    }),
  ),
  nodes: Type.Optional(
    Type.Array(
      object({
        node: Type.String(),
        state: storeState,
        volumes: Type.Integer(),
        bytes: Type.String(),
      }),
      { description: 'In a cluster: the nodes that have this node-local store' },
    ),
  ),
});

export const storeCheck = object({
  store: Type.String(),
  ok: Type.Boolean(),
  steps: Type.Array(
    object({
      step: Type.String(),
      ok: Type.Boolean(),
      detail: Type.String(),
      action: nullable(Type.String()),
      reason: Type.Optional(
        Type.String({
          pattern: reasonGrammar,
          description: 'The reason of a failed step, if it is one of the error reasons',
        }),
      ),
    }),
  ),
  from: Type.Optional(
    Type.String({ description: 'The network from which the store was checked, if the request had `from`' }),
  ),
  totalBytes: nullable(bytes),
  freeBytes: nullable(bytes),
});

export const adoption = object({
  adopted: Type.Array(object({ name: Type.String(), id: nullable(Type.String()), how: oneOf('record', 'data') })),
  skipped: Type.Array(object({ name: Type.String(), reason: Type.String() })),
});

export const orphan = object({
  store: Type.String(),
  kind: oneOf('unrecorded-directory', 'stranger', 'unknown-volume', 'missing-data', 'unreadable-record', 'leftover'),
  name: Type.String(),
  detail: Type.String(),
  action: Type.String(),
});

export const operation = object({
  id: Type.String(),
  kind: Type.String(),
  store: nullable(Type.String()),
  subject: Type.String(),
  state: oneOf('running', 'done', 'failed', 'canceled'),
  progress: nullable(object({ done: Type.Number(), total: nullable(Type.Number()), unit: Type.String() })),
  startedAt: time,
  endedAt: nullable(time),
  error: nullable(
    object({ code: Type.String(), reason: Type.String(), message: Type.String(), action: Type.String() }),
  ),
  result: nullable(Type.Unknown({ description: 'The response to the request, once done' })),
});

export const token = object({
  id: Type.String(),
  name: Type.String(),
  role,
  stores: Type.Array(Type.String(), { description: 'Empty: every store' }),
  createdAt: time,
  expiresAt: nullable(time),
});
export const createdToken = object({
  ...token.properties,
  secret: Type.String({ description: 'The secret, which is shown only once' }),
});

const hidden = 'Null for a token that is limited to stores';
export const status = object({
  version: Type.String(),
  instance: Type.String(),
  node: Type.String(),
  pid: nullable(Type.Integer({ description: hidden })),
  startedAt: time,
  ready: Type.Boolean(),
  defaultStore: nullable(Type.String({ description: 'Also null if the token does not permit the default store' })),
  listen: Type.Array(Type.String()),
  state: nullable(Type.String({ description: hidden })),
  config: nullable(Type.String({ description: hidden })),
  mounting: object({ able: Type.Boolean(), why: nullable(Type.String()), action: nullable(Type.String()) }),
  plugins: Type.Array(Type.String(), {
    description: 'Sockets for container engines; empty for a token that is limited to stores',
  }),
  engines: Type.Array(object({ kind: oneOf('docker', 'podman'), socket: Type.String(), reachable: Type.Boolean() })),
  stores: Type.Integer({ description: 'This and the next four fields count only the stores that the token permits' }),
  storesInTrouble: Type.Array(Type.String(), {
    description: 'Stores that are not open, do not answer, or deny access',
  }),
  volumes: Type.Integer(),
  mounts: Type.Integer(),
  operations: Type.Integer({ description: 'Number of running operations' }),
  rssBytes: Type.Integer(),
  agents: Type.Optional(
    Type.Array(object({ node: Type.String(), connected: Type.Boolean() }), {
      description: 'In a cluster: the agents of its nodes',
    }),
  ),
});

export const dataPath = object({
  node: onNode,
  name: Type.String({ description: 'host, or the network from which it connects' }),
  state: oneOf('settling', 'idle', 'serving', 'taking over', 'failing', 'moving', 'not answering'),
  mounts: Type.Integer(),
  pid: nullable(Type.Integer({ description: 'PID of the serving process; null if there is none' })),
  version: nullable(Type.String({ description: 'The version of Stowage that the process belongs to' })),
  standby: Type.Boolean({ description: 'Another process is ready to take over' }),
  takeovers: Type.Integer({ description: 'How often one process took over from another' }),
  deaths: Type.Integer({ description: 'Processes that died within the last minute' }),
  report: Type.String({ description: 'A message about its state; empty if none' }),
});
export type DataPathJson = Static<typeof dataPath>;

export const finding = object({
  node: onNode,
  check: Type.String(),
  ok: oneOf('yes', 'no', 'warn'),
  detail: Type.String(),
  fix: nullable(Type.String()),
});

/** RFC 9457, with a stable code, a reason and an action. */
export const problem = object({
  type: Type.String(),
  title: Type.String(),
  status: Type.Integer(),
  detail: Type.String(),
  code: Type.String(),
  reason: Type.String(),
  action: Type.String(),
  requestId: Type.String(),
});

export const event = object({
  type: Type.String({ description: 'volume.created, volume.changed, volume.deleted, store.*, mount.*, operation.*' }),
  at: time,
  subject: Type.String(),
  data: Type.Unknown(),
});

export const listOf = <T extends TSchema>(item: T) =>
  object({
    items: Type.Array(item),
    next: nullable(Type.String({ description: 'Pass as `after` for the next page' })),
  });

/** A list that in a cluster covers all nodes. */
export const listOverNodes = <T extends TSchema>(item: T) =>
  object({
    ...listOf(item).properties,
    unreached: Type.Optional(
      Type.Array(unreached, {
        description: 'In a cluster: nodes that could not be reached; their items are not in the list',
      }),
    ),
  });

/** A list over several stores. It does not fail if one of them can't be used. */
export const listOverStores = <T extends TSchema>(item: T, unanswered: string) =>
  object({ ...listOverNodes(item).properties, unanswered: Type.Array(Type.String(), { description: unanswered }) });

export type VolumeJson = Static<typeof volume>;
export type VolumeDetailJson = Static<typeof volumeDetail>;
export type UsageJson = Static<typeof usage>;
export type MountJson = Static<typeof mount>;
export type TroubleJson = Static<typeof trouble>;
export type StoreJson = Static<typeof store>;
export type StoreCheckJson = Static<typeof storeCheck>;
export type AdoptionJson = Static<typeof adoption>;
export type OrphanJson = Static<typeof orphan>;
export type OperationJson = Static<typeof operation>;
export type DeletionJson = Static<typeof deletion>;
export type TrashEntryJson = Static<typeof trashEntry>;
export type TokenJson = Static<typeof token>;
export type CreatedTokenJson = Static<typeof createdToken>;
export type StatusJson = Static<typeof status>;
export type FindingJson = Static<typeof finding>;
export type ProblemJson = Static<typeof problem>;
export type UnreachedJson = Static<typeof unreached>;
export type EventJson = Static<typeof event>;
