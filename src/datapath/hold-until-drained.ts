import { constants } from 'node:fs';
import type { Clock } from '#base/clock.ts';
import type { Operations, Request } from '#wire/fuse/operations.ts';
import { createCalls } from './calls.ts';
import { createRequestWait } from './request-wait.ts';
import { unlessAborted } from './unless-aborted.ts';

export interface HoldUntilDrainedParts {
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

type AnyOperation = (...args: never[]) => unknown;

/**
 * What changes something waits for as long as `ready` gives something to wait for; what only reads does not. Nor do FLUSH, FSYNC
 * and RELEASE: what was written behind, and the removal of a hidden name, wait by themselves. Whoever waits can be
 * interrupted, as when waiting for the server.
 */
export function holdUntilDrained(operations: Partial<Operations>, parts: HoldUntilDrainedParts): Partial<Operations> {
  const { clock, ready, softMs: timeoutMs = Number.POSITIVE_INFINITY, ended } = parts;
  const waitFor = createRequestWait({ clock, timeoutMs, calls: createCalls({ clock, timeoutMs, ended }) });

  /** Operations have the request as their last argument. */
  const later =
    (does: AnyOperation, isMeant: AnyOperation = () => true): AnyOperation =>
    (...args) => {
      const first = ready();
      if (first === undefined || !(isMeant(...args) as boolean)) return does(...args);
      return waitFor(args.at(-1) as unknown as Request, (signal) => unlessAborted(first, signal)).then(() =>
        does(...args),
      );
    };

  const conditions: Readonly<Partial<Record<keyof Operations, AnyOperation>>> = {
    open: (_id: number, flags: number) => (flags & writing) !== 0,
  };
  const all = changing.flatMap((name) => {
    const does = operations[name] as AnyOperation | undefined;
    return does === undefined ? [] : [[name, later(does, conditions[name])]];
  });
  return { ...operations, ...(Object.fromEntries(all) as Partial<Operations>) };
}
