/** Set by `npm run test:long`. */
const isLong = process.env['STOWAGE_TEST_LONG'] === '1';

/**
 * How much chaos, fuzzing or load a test makes. `npm test` runs what shows that the thing is tested at all: each kind of fault several times.
 * `npm run test:long` looks for what happens seldom.
 */
export const sized = <T>(sizes: { readonly usual: T; readonly long: T }): T => (isLong ? sizes.long : sizes.usual);
