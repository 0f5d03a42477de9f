const units: Readonly<Record<string, number>> = {
  ms: 1,
  s: 1000,
  m: 60_000,
  h: 3_600_000,
  d: 86_400_000,
  w: 604_800_000,
};

/** Parses `90s`, `15m`, `12h`, `7d`, `2w`. Undefined: not a duration. */
export function parseDuration(text: string): number | undefined {
  const match = /^([0-9]{1,9})(ms|s|m|h|d|w)$/.exec(text.trim());
  const factor = match?.[2] === undefined ? undefined : units[match[2]];
  return match === null || factor === undefined ? undefined : Number(match[1]) * factor;
}

/** Uses the largest unit without a remainder, but never weeks: people and the documentation write `7d`. */
export function formatDuration(ms: number): string {
  for (const [unit, factor] of Object.entries(units).reverse())
    if (unit !== 'w' && ms >= factor && ms % factor === 0) return `${ms / factor}${unit}`;
  return `${ms}ms`;
}
