/** The mount flags of a StorageClass or CSI request that our mounts always have or can have. */
export const mountFlags: readonly string[] = ['defaults', 'rw', 'ro', 'nosuid', 'nodev'];

/** One entry can contain several flags, separated by commas. */
export const splitMountFlags = (entries: readonly string[]): readonly string[] =>
  entries.flatMap((entry) => entry.split(',')).map((flag) => flag.trim());

export const areMountFlags = (flags: readonly string[]): boolean =>
  flags.every((flag) => flag === '' || mountFlags.includes(flag));
