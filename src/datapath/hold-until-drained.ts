import { constants } from 'node:fs';
import type { Clock } from '#base/clock.ts';
import type { Operations, Request } from '#wire/fuse/operations.ts';
import { createCalls } from './calls.ts';
import { createPatience } from './request-wait.ts';
import { until } from './unless-aborted.ts';

export interface HeldBackParts {
  readonly clock: Clock;
  /** Gives something to wait for before anything is changed. */
  readonly ready: () => Promise<void> | undefined;
  /** `soft`: EIO for whoever has waited for so long. Undefined: `hard`. */
  readonly softMs: number | undefined;
  /** The mount is over: nothing is begun any more. */
  readonly ended?: AbortSignal;
}

const changing = [
  ...(['setattr', 'symlink', 'mknod', 'mkdir', 'unlink', 'rmdir', 'rename', 'link'] as const),
  ...(['create', 'write', 'open'] as const),
];

const writing = constants.O_WRONLY | constants.O_RDWR | constants.O_TRUNC;

type Does = (...args: never[]) => unknown;

/**
 * What changes something waits for as long as `ready` gives something to wait for; what only reads does not. Nor do FLUSH, FSYNC
 * and RELEASE: what was written behind, and the removal of a hidden name, wait by themselves. Whoever waits can be
 * interrupted, as when waiting for the server.
 */
export function heldBack(operations: Partial<Operations>, parts: HeldBackParts): Partial<Operations> {
  const { clock, ready, softMs: patienceMs = Number.POSITIVE_INFINITY, ended } = parts;
  const patience = createPatience({ clock, patienceMs, calls: createCalls({ clock, patienceMs, ended }) });

  /** Operations have the request as their last argument. */
  const later =
    (does: Does, isMeant: Does = () => true): Does =>
    (...args) => {
      const first = ready();
      if (first === undefined || !(isMeant(...args) as boolean)) return does(...args);
      return patience(args.at(-1) as unknown as Request, (signal) => until(first, signal)).then(() => does(...args));
    };

  const conditions: Readonly<Partial<Record<keyof Operations, Does>>> = {
    open: (_id: number, flags: number) => (flags & writing) !== 0,
  };
  const all = changing.flatMap((name) => {
    const does = operations[name] as Does | undefined;
    return does === undefined ? [] : [[name, later(does, conditions[name])]];
  });
  return { ...operations, ...(Object.fromEntries(all) as Partial<Operations>) };
}
