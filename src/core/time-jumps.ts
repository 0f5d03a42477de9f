import type { Clock } from '#base/clock.ts';
import type { Log } from '#base/log.ts';
import type { Records } from './ports.ts';

const hour = 3_600_000;
const settled = 'time was';

/**
 * Whether the time of day can be relied on to destroy what it says is old. A machine that starts with a wrong clock, or
 * whose clock is set far ahead, would empty the trash at once; so after a jump forward, also one over the time in which
 * Stowage did not run, nothing expires for an hour, in which the clock can be put right.
 */
export function createTimeJumps(parts: { readonly records: Records; readonly clock: Clock; readonly log: Log }): {
  /** Ask often: a jump is seen between two calls. */
  isReliable(): boolean;
} {
  const { records, clock, log } = parts;
  let noted = Number(records.settings.get(settled) ?? clock.now());
  let seen = { now: noted, elapsed: clock.elapsed() };
  let reliableFrom = 0;

  return {
    isReliable: () => {
      const [now, elapsed] = [clock.now(), clock.elapsed()];
      const expected = seen.now + (elapsed - seen.elapsed);
      seen = { now, elapsed };
      if (now - expected > hour) {
        reliableFrom = elapsed + hour;
        log.warn('the time of day went ahead; the trash is not emptied for an hour', {
          from: new Date(expected).toISOString(),
          to: new Date(now).toISOString(),
        });
      }
      if (elapsed < reliableFrom) return false;
      // Not at every call: it is a write to the disk.
      if (Math.abs(now - noted) >= hour || records.settings.get(settled) === undefined) {
        noted = now;
        records.settings.set(settled, String(now));
      }
      return true;
    },
  };
}
