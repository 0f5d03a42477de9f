import type { CsiDriver } from '#core/csi-drivers.ts';
import type { Access } from '#core/model.ts';
import { areMountFlags, mountFlags, splitMountFlags } from '#core/mount-flags.ts';
import { quoted } from '#core/names.ts';
import type { StoreView } from '#core/stores.ts';
import { VolumeCapability_AccessMode_Mode as Mode, type VolumeCapability } from '#wire/csi/generated/csi.ts';
import { refuse, textIn } from './request-fields.ts';

/** What a capability comes to. */
export interface Wish {
  readonly access: Access;
  readonly readOnly: boolean;
  /** More than one node at a time. */
  readonly manyNodes: boolean;
  /** Only one node at a time has it, or may write to it. */
  readonly singleNodeWriter: 'never' | 'staged' | 'written';
  /** Only one pod at a time has it. */
  readonly singlePod: boolean;
  /** The group that shall be able to use it. Undefined: none was named. */
  readonly group: number | undefined;
  /** Undefined: whichever it has, or gets. */
  readonly filesystem: string | undefined;
}

type Rule = Pick<Wish, 'readOnly' | 'manyNodes' | 'singleNodeWriter' | 'singlePod'>;

const one: Rule = { readOnly: false, manyNodes: false, singleNodeWriter: 'staged', singlePod: false };
const many: Rule = { readOnly: false, manyNodes: true, singleNodeWriter: 'never', singlePod: false };

const rules: Readonly<Record<number, Rule>> = {
  [Mode.SINGLE_NODE_WRITER]: one,
  [Mode.SINGLE_NODE_READER_ONLY]: { ...one, readOnly: true },
  [Mode.SINGLE_NODE_SINGLE_WRITER]: { ...one, singlePod: true },
  [Mode.SINGLE_NODE_MULTI_WRITER]: one,
  [Mode.MULTI_NODE_READER_ONLY]: { ...many, readOnly: true },
  [Mode.MULTI_NODE_SINGLE_WRITER]: { ...many, singleNodeWriter: 'written' },
  [Mode.MULTI_NODE_MULTI_WRITER]: many,
};

export function wishFrom(capability: VolumeCapability | undefined, field = 'volume_capability'): Wish {
  if (capability === undefined) throw refuse(`${field} is missing`);
  const { accessType, accessMode } = capability;
  if (accessType.case === undefined) throw refuse(`${field} has no access type`);
  const rule = accessMode === undefined ? undefined : rules[accessMode.mode];
  if (rule === undefined) throw refuse(`${field} has no access mode that is known here`);
  if (accessType.case === 'block') return { ...rule, access: 'block', group: undefined, filesystem: undefined };
  const flags = splitMountFlags(accessType.value.mountFlags);
  // Which ones is not said: they may hold secrets.
  if (!areMountFlags(flags)) throw refuse(`only these mount flags are known here: ${mountFlags.join(', ')}`);
  const readOnly = rule.readOnly || flags.includes('ro');
  const { fsType, volumeMountGroup } = accessType.value;
  const filesystem = fsType === '' ? undefined : textIn(fsType, 'fs_type');
  return { ...rule, readOnly, access: 'filesystem', group: groupFrom(volumeMountGroup), filesystem };
}

/** The last number stands for none where the kernel is asked. */
const mostGroup = 0xffff_fffe;

function groupFrom(given: string): number | undefined {
  if (given === '') return undefined;
  const group = /^\d{1,10}$/.test(given) ? Number(given) : Number.NaN;
  if (!(group <= mostGroup)) throw refuse('volume_mount_group is not the number of a group');
  return group;
}

export function wishesFrom(all: readonly VolumeCapability[]): readonly [Wish, ...Wish[]] {
  const [first, ...rest] = all.map((one) => wishFrom(one, 'volume_capabilities'));
  if (first === undefined) throw refuse('volume_capabilities is missing');
  if (rest.some(({ access }) => access !== first.access))
    throw refuse('a volume is a file system or a block device, not both');
  return [first, ...rest];
}

/** Why not. Undefined: it can be had. */
export function cannotHave(wishes: readonly Wish[], driver: CsiDriver, view: StoreView): string | undefined {
  const { name } = view.config;
  if (!driver.multiNode && wishes.some(({ manyNodes }) => manyNodes))
    return `volumes of store '${name}' can be used on one node only`;
  const offered = view.store?.access;
  const missing = wishes.find(({ access }) => offered !== undefined && !offered.includes(access));
  if (missing !== undefined) return `store '${name}' has no ${missing.access} volumes`;
  const isDirectory = view.store !== undefined && view.store.filesystemFor === undefined;
  if (isDirectory && wishes.some(({ filesystem }) => filesystem !== undefined))
    return `volumes of store '${name}' are directories without a file system of their own, so fsType must be left out`;
  return undefined;
}

/** Why not. What is there is never made anew as another one. */
export function otherFilesystem(wishes: readonly Wish[], has: string | undefined): string | undefined {
  const wrong = wishes.find(({ filesystem }) => filesystem !== undefined && filesystem !== has)?.filesystem;
  if (wrong === undefined) return undefined;
  return `the file system ${quoted(wrong)} is wanted, and ${has ?? 'none of its own'} is what the volume has: fsType must be that, or be left out`;
}

/** The same for one that is to be made. A store that is not open says itself what is wrong. */
export const otherNewFilesystem = (
  wishes: readonly Wish[],
  { store }: Pick<StoreView, 'store'>,
  bytes: bigint | undefined,
): string | undefined =>
  store === undefined || bytes === undefined ? undefined : otherFilesystem(wishes, store.filesystemFor?.(bytes));

/** Only of the driver that says it sees to groups: else they are somebody else's business. */
export const groupOf = (
  { driver }: { readonly driver: CsiDriver },
  { group }: Pick<Wish, 'group'>,
): number | undefined => (driver.volumeMountGroup ? group : undefined);
