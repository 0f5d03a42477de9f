const powers: Readonly<Record<string, bigint>> = {
  '': 1n,
  k: 1n << 10n,
  m: 1n << 20n,
  g: 1n << 30n,
  t: 1n << 40n,
  p: 1n << 50n,
};

/**
 * Parses sizes as coreutils do: `1G`, `1Gi` and `1GiB` are 2^30, `1GB` is 10^9, a bare number is bytes. Undefined: not a size.
 * A fraction (`1.5G`) is rounded up to a byte.
 */
export function parseSize(text: string): bigint | undefined {
  const match = /^([0-9]{1,19})(?:\.([0-9]{1,6}))?\s*([kmgtp]?)(i?b?)$/i.exec(text.trim());
  if (match === null) return undefined;
  const [, whole = '', fraction = '', unit = '', suffix = ''] = match;
  if (unit === '' && suffix.toLowerCase().startsWith('i')) return undefined;
  const decimal = unit !== '' && suffix.toLowerCase() === 'b';
  const factor = decimal ? 1000n ** BigInt('kmgtp'.indexOf(unit.toLowerCase()) + 1) : powers[unit.toLowerCase()];
  if (factor === undefined) return undefined;
  const scale = 10n ** BigInt(fraction.length);
  return (BigInt(whole + fraction) * factor + scale - 1n) / scale;
}

/** Formats for people: `1.5GiB`. */
export function formatSize(bytes: bigint): string {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB'];
  let value = Number(bytes);
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit++;
  }
  const digits = value >= 100 || Number.isInteger(value) ? 0 : 1;
  return `${value.toFixed(digits)}${units[unit]}`;
}
