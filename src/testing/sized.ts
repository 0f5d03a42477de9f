/** Set by `npm run test:long`. */
const isLong = process.env['STOWAGE_TEST_LONG'] === '1';

/**
 * Sizes a chaos, fuzzing or load test. `npm test` injects each kind of fault several times. `npm run test:long` runs longer to find rare
 * failures.
 */
export const sized = <T>(sizes: { readonly usual: T; readonly long: T }): T => (isLong ? sizes.long : sizes.usual);
