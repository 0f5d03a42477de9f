import { realpath } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { isAtOrBelow, type MountEntry, readMountTable } from '#clients/mounter/mountinfo.ts';

/** Returns one line for each mount that was left behind, with its mount point. */
export type MountCheck = () => Promise<readonly string[]>;

/** Compares later mounts with the current ones. Only mounts with Stowage's name or in the temporary folder count. */
export async function createMountCheck(): Promise<MountCheck> {
  const folder = await realpath(tmpdir());
  const before = new Set((await readMountTable()).entries.map(keyOf));
  const ours = ({ at, root, source }: MountEntry): boolean =>
    isAtOrBelow(at, folder) || [at, root, source].some((text) => text.includes('stowage'));
  return async () => {
    const { entries } = await readMountTable();
    const stayed = entries.filter((entry) => before.has(keyOf(entry)));
    const isFromOutside = outsideFilter(stayed);
    const left = entries.filter((entry) => !stayed.includes(entry) && ours(entry) && !isFromOutside(entry));
    return left.map(({ at, type, source }) => `${at} (${type} of ${source})`);
  };
}

/**
 * Returns whether another program made a mount outside. Such mounts are visible here, too: each is a slave of another
 * mount, in a peer group of its own. A mount that was made here is no slave, or is a bind of a mount that `stayed`, in
 * the same peer group. The kernel reuses group numbers.
 */
function outsideFilter(stayed: readonly MountEntry[]): (entry: MountEntry) => boolean {
  const groups = new Set(stayed.flatMap(({ propagation }) => propagation.filter(isGroup)));
  return ({ propagation }) =>
    propagation.some((word) => word.startsWith('master:')) && !propagation.some((word) => groups.has(word));
}

const isGroup = (word: string): boolean => word.startsWith('shared:');
const keyOf = ({ id, at }: MountEntry): string => `${id} ${at}`;
