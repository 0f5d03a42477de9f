const binary = ['Ki', 'Mi', 'Gi', 'Ti', 'Pi', 'Ei'];
const decimal: Readonly<Record<string, number>> = { n: -9, u: -6, m: -3, '': 0, k: 3, M: 6, G: 9, T: 12, P: 15, E: 18 };
const grammar = /^\+?(\d{0,30})(?:\.(\d{0,30}))?([eE][+-]?\d{1,2}|[KMGTPE]i|[numkMGTPE]?)$/;

/** Parses a Kubernetes quantity such as `1Gi`, `500M`, `1.5e9`, rounded up to a byte. Undefined: not a quantity. */
export function bytesOf(text: string | undefined): bigint | undefined {
  const [, whole = '', fraction = '', unit = ''] = grammar.exec(text ?? '') ?? [];
  if (whole === '' && fraction === '') return undefined;
  const power = binary.indexOf(unit) + 1;
  const exponent = /^[eE][+-]?\d/.test(unit) ? Number(unit.slice(1)) : (decimal[unit] ?? 0);
  const digits = BigInt(whole + fraction);
  const numerator = (power > 0 ? 1024n ** BigInt(power) : 1n) * 10n ** BigInt(Math.max(exponent, 0));
  const denominator = 10n ** BigInt(fraction.length + Math.max(-exponent, 0));
  return (digits * numerator + denominator - 1n) / denominator;
}

/** Formats exactly, in the largest binary unit without a fraction. */
export function quantityOf(bytes: bigint): string {
  const power = bytes === 0n ? -1 : binary.findLastIndex((_, at) => bytes % 1024n ** BigInt(at + 1) === 0n);
  return power === -1 ? String(bytes) : `${bytes / 1024n ** BigInt(power + 1)}${binary[power]}`;
}
