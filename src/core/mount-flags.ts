/** The mount flags of a claim's class or a CSI request that a mount here has anyway, or can have. */
export const mountFlags: readonly string[] = ['defaults', 'rw', 'ro', 'nosuid', 'nodev'];

/** Each flag by itself: one entry can hold several, with commas between them. */
export const splitMountFlags = (entries: readonly string[]): readonly string[] =>
  entries.flatMap((entry) => entry.split(',')).map((flag) => flag.trim());

export const areMountFlags = (flags: readonly string[]): boolean =>
  flags.every((flag) => flag === '' || mountFlags.includes(flag));
