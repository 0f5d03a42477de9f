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
  readonly mountEnded?: AbortSignal;
}

const changingOperations = [
  ...(['setattr', 'symlink', 'mknod', 'mkdir', 'unlink', 'rmdir', 'rename', 'link'] as const),
  ...(['create', 'write', 'open'] as const),
];

const writeFlags = constants.O_WRONLY | constants.O_RDWR | constants.O_TRUNC;

type AnyOperation = (...args: never[]) => unknown;

/**
 * Delays operations that change something until `ready` resolves. Reads are not delayed, nor FLUSH, FSYNC and RELEASE:
 * buffered writes and the removal of hidden names wait by themselves. A waiting request can be interrupted.
 */
export function holdUntilDrained(operations: Partial<Operations>, parts: HoldUntilDrainedParts): Partial<Operations> {
  const { clock, ready, softMs: timeoutMs = Number.POSITIVE_INFINITY, mountEnded } = parts;
  const waitFor = createRequestWait({ clock, timeoutMs, calls: createCalls({ clock, timeoutMs, mountEnded }) });

  /** The request is the last argument of each operation. */
  const holdOperation =
    (operation: AnyOperation, mustWait: AnyOperation = () => true): AnyOperation =>
    (...args) => {
      const drained = ready();
      if (drained === undefined || !(mustWait(...args) as boolean)) return operation(...args);
      return waitFor(args.at(-1) as unknown as Request, (signal) => unlessAborted(drained, signal)).then(() =>
        operation(...args),
      );
    };

  const conditions: Readonly<Partial<Record<keyof Operations, AnyOperation>>> = {
    open: (_id: number, flags: number) => (flags & writeFlags) !== 0,
  };
  const all = changingOperations.flatMap((name) => {
    const does = operations[name] as AnyOperation | undefined;
    return does === undefined ? [] : [[name, holdOperation(does, conditions[name])]];
  });
  return { ...operations, ...(Object.fromEntries(all) as Partial<Operations>) };
}
