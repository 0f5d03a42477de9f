import { constants } from 'node:fs';
import { unlessAborted } from '#base/aborted.ts';
import type { Clock } from '#base/clock.ts';
import type { Operations, Request } from '#wire/fuse/operations.ts';
import { createCalls } from './calls.ts';
import { createRequestWait } from './request-wait.ts';

export interface HoldUntilDrainedParts {
  readonly clock: Clock;
  /** Resolves when changes may start. Undefined: now. */
  readonly ready: () => Promise<void> | undefined;
  /** `soft`: EIO after this time. Undefined: `hard`. */
  readonly softMs: number | undefined;
  /** Aborts when the mount is gone: nothing is started after that. */
  readonly ended?: AbortSignal;
}

const changingOperations = [
  ...(['setattr', 'symlink', 'mknod', 'mkdir', 'unlink', 'rmdir', 'rename', 'link'] as const),
  ...(['create', 'write', 'open'] as const),
];

const writing = constants.O_WRONLY | constants.O_RDWR | constants.O_TRUNC;

type AnyOperation = (...args: never[]) => unknown;

/**
 * Delays operations that change something until `ready` resolves. Reads are not delayed, nor FLUSH, FSYNC and RELEASE:
 * buffered writes and the removal of hidden names wait by themselves. A waiting request can be interrupted.
 */
export function holdUntilDrained(operations: Partial<Operations>, parts: HoldUntilDrainedParts): Partial<Operations> {
  const { clock, ready, softMs: timeoutMs = Number.POSITIVE_INFINITY, ended } = parts;
  const waitFor = createRequestWait({ clock, timeoutMs, calls: createCalls({ clock, timeoutMs, ended }) });

  /** The request is the last argument of each operation. */
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
  const all = changingOperations.flatMap((name) => {
    const does = operations[name] as AnyOperation | undefined;
    return does === undefined ? [] : [[name, later(does, conditions[name])]];
  });
  return { ...operations, ...(Object.fromEntries(all) as Partial<Operations>) };
}
