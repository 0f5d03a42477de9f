/** Converts core's types to the JSON of the REST API. */
import { formatDuration } from '#base/duration.ts';
import type { Adoption } from '#core/adoption.ts';
import type { StowageError } from '#core/errors.ts';
import type {
  Inspection,
  LiveMount,
  Operation,
  Orphan,
  Room,
  SeenUse,
  StoreCheck,
  Token,
  TrashEntry,
  Usage,
  Volume,
} from '#core/model.ts';
import type { MountWithHealth } from '#core/mount-health.ts';
import type { OperationView } from '#core/operations.ts';
import { isShared } from '#core/placement.ts';
import type { VolumeTotals } from '#core/ports.ts';
import { notAnswering } from '#core/store-errors.ts';
import { enforcesSizes, type StoreView } from '#core/store-view.ts';
import type { NodeList, UnreachedNode } from './cluster-nodes.ts';
import type { Principal } from './principal.ts';
import { redactedError, redactedResult } from './redaction.ts';
import type * as wire from './schemas.ts';

/** The range of Date. A record that a user edited must not make a whole list fail. */
const maxDateMs = 8_640_000_000_000_000;
export const time = (ms: number): string => new Date(Math.min(Math.max(ms || 0, -maxDateMs), maxDateMs)).toISOString();
const orNull = <T, R>(value: T | undefined, to: (value: T) => R): R | null => (value === undefined ? null : to(value));

/** `byStore`: whether the store enforces the sizes of all its volumes. */
export function volumeJson(volume: Volume, byStore: boolean): wire.VolumeJson {
  return {
    id: volume.id,
    store: volume.store,
    name: volume.name,
    bytes: orNull(volume.bytes, String),
    enforced: byStore || volume.enforce,
    access: volume.access,
    labels: { ...volume.labels },
    createdAt: time(volume.createdAt),
    revision: volume.revision,
  };
}

export function mountJson(mount: LiveMount, volume: Volume | undefined): wire.MountJson {
  return {
    volume: mount.volumeId,
    name: orNull(volume, (known) => `${known.store}/${known.name}`),
    target: mount.target,
    readOnly: mount.readOnly,
    user: { ...mount.user },
    since: time(mount.since),
    mounted: mount.mounted,
  };
}

export const troubleJson = (mount: MountWithHealth, volume: Volume | undefined): wire.TroubleJson => ({
  ...mountJson(mount, volume),
  condition: mount.health.state,
  detail: mount.health.detail ?? null,
  repairedAt: orNull(mount.health.repairedAt, time),
});

export function volumeDetailJson(
  found: Inspection,
  byStore: boolean,
  mounts: readonly LiveMount[],
  uses: readonly SeenUse[] | undefined,
): wire.VolumeDetailJson {
  return {
    ...volumeJson(found.volume, byStore),
    condition: found.condition,
    detail: found.detail ?? null,
    path: found.path ?? null,
    users: mounts.filter((mount) => mount.mounted).map((mount) => ({ ...mount.user })),
    mounts: mounts.map((mount) => mountJson(mount, found.volume)),
    uses: orNull(uses, (all) => all.map(useJson)),
  };
}

const useJson = ({ host, node, users, writer, renewedAt, stale }: SeenUse) => ({
  host,
  node,
  users: users.map(({ kind, name }) => ({ kind, name })),
  writer,
  renewedAt: time(renewedAt),
  stale,
});

export const usageJson = (usage: Usage): wire.UsageJson => ({
  bytes: String(usage.bytes),
  files: String(usage.files),
  complete: usage.complete,
  empty: usage.empty,
  measuredAt: time(usage.measuredAt),
});

/** The current state of a store. */
export interface StoreState {
  readonly totals: VolumeTotals;
  /** The store is open, but its server does not answer. */
  readonly isSilent: boolean;
  /** Undefined: not known now. */
  readonly room: Room | undefined;
  /** Set if the store denies access. */
  readonly refusal: StowageError | undefined;
}

export function storeJson(view: StoreView, { totals, isSilent, room, refusal }: StoreState): wire.StoreJson {
  const { config, store } = view;
  const isInTrouble = isSilent || refusal !== undefined;
  const problem = view.problem ?? (isInTrouble ? notAnswering(config.name, refusal) : undefined);
  return {
    name: config.name,
    kind: config.uri.slice(0, config.uri.indexOf(':')),
    reach: isShared(view.placement) ? 'anywhere' : 'node',
    uri: config.uri,
    default: view.default,
    origin: config.origin,
    identity: store?.identity ?? null,
    state: store === undefined ? 'unavailable' : isSilent ? 'not-answering' : 'open',
    problem: orNull(problem, ({ message, action }) => ({ message, action })),
    pending: view.pending ?? null,
    network: config.options['network'] ?? null,
    readOnly: config.policy.readOnly,
    enforcesCapacity: store === undefined ? null : enforcesSizes(view),
    access: [...(store?.access ?? [])],
    onDelete: config.policy.onDelete,
    retention: formatDuration(config.policy.retention),
    maxVolumes: config.policy.maxVolumes ?? null,
    maxBytes: orNull(config.policy.maxBytes, String),
    defaultSize: orNull(config.policy.defaultSize, String),
    volumes: totals.volumes,
    bytes: String(totals.bytes),
    totalBytes: orNull(room?.totalBytes, String),
    freeBytes: orNull(room?.freeBytes, String),
  };
}

export const storeCheckJson = (name: string, check: StoreCheck, from?: string): wire.StoreCheckJson => ({
  store: name,
  ok: check.ok,
  steps: check.steps.map(({ step, ok, detail, action, reason }) => ({
    step,
    ok,
    detail,
    action: action ?? null,
    ...(reason === undefined ? {} : { reason }),
  })),
  ...(from === undefined ? {} : { from }),
  totalBytes: orNull(check.totalBytes, String),
  freeBytes: orNull(check.freeBytes, String),
});

export const adoptionJson = (adoption: Adoption): wire.AdoptionJson => ({
  adopted: adoption.adopted.map(({ name, id, how }) => ({ name, id: id ?? null, how })),
  skipped: adoption.skipped.map(({ name, reason }) => ({ name, reason })),
});

export const orphanJson = (orphan: Orphan): wire.OrphanJson => ({ ...orphan });

export const trashJson = (entry: TrashEntry, byStore: boolean): wire.TrashEntryJson => ({
  ...volumeJson(entry.volume, byStore),
  deletedAt: time(entry.deletedAt),
  expiresAt: orNull(entry.expiresAt, time),
});

/** Without a principal, errors and results are not redacted: only for operations that have not failed. */
export function operationJson(view: OperationView, result: unknown, principal?: Principal): wire.OperationJson {
  const { operation, progress } = view;
  const redact = (error: NonNullable<Operation['error']>) =>
    principal === undefined ? error : redactedError(principal, error, 'with: stowage operations');
  return {
    id: operation.id,
    kind: operation.kind,
    store: operation.store ?? null,
    subject: operation.subject,
    state: operation.state,
    progress: orNull(progress, ({ done, total, unit }) => ({ done, total: total ?? null, unit })),
    startedAt: time(operation.startedAt),
    endedAt: orNull(operation.endedAt, time),
    error: orNull(operation.error && redact(operation.error), ({ code, reason, message, action }) => ({
      code,
      reason,
      message,
      action,
    })),
    result: (principal === undefined ? result : redactedResult(principal, operation.kind, result)) ?? null,
  };
}

export const tokenJson = (token: Token): wire.TokenJson => ({
  id: token.id,
  name: token.name,
  role: token.role,
  stores: [...token.stores],
  createdAt: time(token.createdAt),
  expiresAt: orNull(token.expiresAt, time),
});

/** The nodes that could not be reached, with the reason redacted for this caller. */
export const unreachedJson = (principal: Principal, unreached: readonly UnreachedNode[]): wire.UnreachedJson[] =>
  unreached.map(({ node, error }) => {
    const { reason, message } = redactedError(principal, error, 'in the log of the controller.');
    return { node, reason, message };
  });

export const nodeListJson = <T>(principal: Principal, { items, next, unreached }: NodeList<T>) => ({
  items,
  next: next ?? null,
  unreached: unreachedJson(principal, unreached),
});
