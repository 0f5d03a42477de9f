const forSmallness = /^--(optimize-for-size|expose-gc|max-semi-space-size\b.*)$/;

/**
 * What makes an idle process small would only make one that serves files slow: by a tenth at one call in flight, by a third
 * at 64. Its young memory is bounded all the same; without that it grew to 340 MB instead of 280 for the same speed. The
 * same as bin/stowage does for `nfs serve`.
 */
export const servingFlags = (flags: readonly string[]): readonly string[] => [
  '--max-semi-space-size=16',
  ...flags.filter((flag) => !forSmallness.test(flag)),
];
