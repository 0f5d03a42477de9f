import { realpath } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { isAtOrBelow, type MountEntry, readMountTable } from '#clients/mounter/mountinfo.ts';

/** Names each mount that was left behind: one line each, with where it is. */
export type MountCheck = () => Promise<readonly string[]>;

/** Looks now, and when it is asked. Only what names Stowage or lies in the temporary folder counts. */
export async function createMountCheck(): Promise<MountCheck> {
  const folder = await realpath(tmpdir());
  const before = new Set((await readMountTable()).entries.map(keyOf));
  const ours = ({ at, root, source }: MountEntry): boolean =>
    isAtOrBelow(at, folder) || [at, root, source].some((text) => text.includes('stowage'));
  return async () => {
    const { entries } = await readMountTable();
    const stayed = entries.filter((entry) => before.has(keyOf(entry)));
    const isFromOutside = outside(stayed);
    const left = entries.filter((entry) => !stayed.includes(entry) && ours(entry) && !isFromOutside(entry));
    return left.map(({ at, type, source }) => `${at} (${type} of ${source})`);
  };
}

/**
 * What others mount outside is seen here too. Such a mount follows another, in a peer group of its own; one that was made
 * here follows none, or is a bind of something that `stayed`, and in its group. Numbers of groups that ended come again.
 */
function outside(stayed: readonly MountEntry[]): (entry: MountEntry) => boolean {
  const groups = new Set(stayed.flatMap(({ propagation }) => propagation.filter(isGroup)));
  return ({ propagation }) =>
    propagation.some((word) => word.startsWith('master:')) && !propagation.some((word) => groups.has(word));
}

const isGroup = (word: string): boolean => word.startsWith('shared:');
const keyOf = ({ id, at }: MountEntry): string => `${id} ${at}`;
