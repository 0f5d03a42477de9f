const smallnessFlags = /^--(optimize-for-size|expose-gc|max-semi-space-size\b.*)$/;

/**
 * The flags that make an idle process small would make a file server slow: by a tenth with one call in flight, by a third with 64. Its
 * young generation is limited nevertheless: without a limit it grew to 340 MB instead of 280, at the same speed. bin/stowage does the
 * same for `nfs serve`.
 */
export const servingFlags = (flags: readonly string[]): readonly string[] => [
  '--max-semi-space-size=16',
  ...flags.filter((flag) => !smallnessFlags.test(flag)),
];
