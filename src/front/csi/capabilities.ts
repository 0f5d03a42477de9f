import type { CsiDriver } from '#core/csi-drivers.ts';
import type { Access } from '#core/model.ts';
import { areMountFlags, mountFlags, splitMountFlags } from '#core/mount-flags.ts';
import { quoted } from '#core/names.ts';
import type { StoreView } from '#core/store-view.ts';
import { VolumeCapability_AccessMode_Mode as Mode, type VolumeCapability } from '#wire/csi/generated/csi.ts';
import { invalidRequest, requiredText } from './request-fields.ts';

/** A VolumeCapability in Stowage's terms. */
export interface RequestedCapability {
  readonly access: Access;
  readonly readOnly: boolean;
  /** More than one node at a time. */
  readonly multiNode: boolean;
  /** `staged`: only one node at a time may stage it. `written`: only one node at a time may publish it for writing. */
  readonly singleNodeWriter: 'never' | 'staged' | 'written';
  /** Only one pod at a time may use it. */
  readonly singlePod: boolean;
  /** The gid from `volume_mount_group`; undefined if the field is empty. */
  readonly group: number | undefined;
  /** Undefined: any file system. */
  readonly filesystem: string | undefined;
}

type AccessModeRule = Pick<RequestedCapability, 'readOnly' | 'multiNode' | 'singleNodeWriter' | 'singlePod'>;

const singleNode: AccessModeRule = { readOnly: false, multiNode: false, singleNodeWriter: 'staged', singlePod: false };
const multiNode: AccessModeRule = { readOnly: false, multiNode: true, singleNodeWriter: 'never', singlePod: false };

const accessModeRules: Readonly<Record<number, AccessModeRule>> = {
  [Mode.SINGLE_NODE_WRITER]: singleNode,
  [Mode.SINGLE_NODE_READER_ONLY]: { ...singleNode, readOnly: true },
  [Mode.SINGLE_NODE_SINGLE_WRITER]: { ...singleNode, singlePod: true },
  [Mode.SINGLE_NODE_MULTI_WRITER]: singleNode,
  [Mode.MULTI_NODE_READER_ONLY]: { ...multiNode, readOnly: true },
  [Mode.MULTI_NODE_SINGLE_WRITER]: { ...multiNode, singleNodeWriter: 'written' },
  [Mode.MULTI_NODE_MULTI_WRITER]: multiNode,
};

export function parseCapability(
  capability: VolumeCapability | undefined,
  field = 'volume_capability',
): RequestedCapability {
  if (capability === undefined) throw invalidRequest(`${field} is missing`);
  const { accessType, accessMode } = capability;
  if (accessType.case === undefined) throw invalidRequest(`${field} has no access type`);
  const rule = accessMode === undefined ? undefined : accessModeRules[accessMode.mode];
  if (rule === undefined) throw invalidRequest(`${field} has no known access mode`);
  if (accessType.case === 'block') return { ...rule, access: 'block', group: undefined, filesystem: undefined };
  const flags = splitMountFlags(accessType.value.mountFlags);
  // Don't quote the flags: they may contain secrets.
  if (!areMountFlags(flags)) throw invalidRequest(`only these mount flags are supported: ${mountFlags.join(', ')}`);
  const readOnly = rule.readOnly || flags.includes('ro');
  const { fsType, volumeMountGroup } = accessType.value;
  const filesystem = fsType === '' ? undefined : requiredText(fsType, 'fs_type');
  return { ...rule, readOnly, access: 'filesystem', group: parseGroup(volumeMountGroup), filesystem };
}

/** 2^32 - 1 means "no change" to chown(2). */
const maxGid = 0xffff_fffe;

function parseGroup(given: string): number | undefined {
  if (given === '') return undefined;
  const group = /^\d{1,10}$/.test(given) ? Number(given) : Number.NaN;
  if (!(group <= maxGid)) throw invalidRequest('volume_mount_group is not a gid');
  return group;
}

export function parseCapabilities(
  all: readonly VolumeCapability[],
): readonly [RequestedCapability, ...RequestedCapability[]] {
  const [first, ...rest] = all.map((one) => parseCapability(one, 'volume_capabilities'));
  if (first === undefined) throw invalidRequest('volume_capabilities is missing');
  if (rest.some(({ access }) => access !== first.access))
    throw invalidRequest('volume_capabilities mixes file system and block access');
  return [first, ...rest];
}

/** Why the store can't provide one of the capabilities; undefined if it can provide all of them. */
export function unsupportedBecause(
  requestedCapabilities: readonly RequestedCapability[],
  driver: CsiDriver,
  view: StoreView,
): string | undefined {
  const { name } = view.config;
  if (!driver.multiNode && requestedCapabilities.some(({ multiNode }) => multiNode))
    return `volumes of store '${name}' can be used on one node only`;
  const offered = view.store?.access;
  const missing = requestedCapabilities.find(({ access }) => offered !== undefined && !offered.includes(access));
  if (missing !== undefined) return `store '${name}' has no ${missing.access} volumes`;
  const isDirectory = view.store !== undefined && view.store.filesystemFor === undefined;
  if (isDirectory && requestedCapabilities.some(({ filesystem }) => filesystem !== undefined))
    return `volumes of store '${name}' are directories on a shared file system, so fsType must not be set`;
  return undefined;
}

/** Why the file system doesn't fit; undefined if it fits. An existing file system is never reformatted. */
export function filesystemMismatch(
  requestedCapabilities: readonly RequestedCapability[],
  has: string | undefined,
): string | undefined {
  const wrong = requestedCapabilities.find(
    ({ filesystem }) => filesystem !== undefined && filesystem !== has,
  )?.filesystem;
  if (wrong === undefined) return undefined;
  const own = has === undefined ? 'no file system of its own' : `the file system ${quoted(has)}`;
  return `the volume has ${own}, not ${quoted(wrong)}: omit fsType${has === undefined ? '' : ` or set it to ${quoted(has)}`}`;
}

/** The same for a new volume. Undefined also if the store is not open: creating the volume then fails with the store's own error. */
export const newVolumeFilesystemMismatch = (
  requestedCapabilities: readonly RequestedCapability[],
  { store }: Pick<StoreView, 'store'>,
  bytes: bigint | undefined,
): string | undefined =>
  store === undefined || bytes === undefined
    ? undefined
    : filesystemMismatch(requestedCapabilities, store.filesystemFor?.(bytes));

/** Undefined if the driver does not announce VOLUME_MOUNT_GROUP: then the kubelet changes the group itself. */
export const mountGroupOf = (
  { driver }: { readonly driver: CsiDriver },
  { group }: Pick<RequestedCapability, 'group'>,
): number | undefined => (driver.volumeMountGroup ? group : undefined);
