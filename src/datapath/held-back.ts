import { constants } from 'node:fs';
import type { Clock } from '#base/clock.ts';
import { Errno } from '#wire/fuse/errno.ts';
import type { Operations, Request } from '#wire/fuse/operations.ts';
import { createCalls } from './calls.ts';
import { until } from './until.ts';

export interface HeldBackParts {
  readonly clock: Clock;
  /** Gives something to wait for before anything is changed. */
  readonly ready: () => Promise<void> | undefined;
  /** Whether the file was removed while open: then its last name goes with the last close. */
  readonly isHidden: (node: number) => boolean;
  /** `soft`: EIO for whoever has waited for so long. Undefined: `hard`. */
  readonly softMs: number | undefined;
}

const changing = [
  ...(['setattr', 'symlink', 'mknod', 'mkdir', 'unlink', 'rmdir', 'rename', 'link', 'create', 'write'] as const),
  ...(['open', 'release'] as const),
];

const writing = constants.O_WRONLY | constants.O_RDWR | constants.O_TRUNC;

type Does = (...args: never[]) => unknown;

/**
 * What changes something waits for as long as `ready` gives something to wait for; what only reads does not, nor do ends of
 * open files, of which the kernel lets only so many wait. FLUSH and FSYNC send nothing but what was written behind, which
 * waits by itself. Whoever waits can be interrupted, as when waiting for the server.
 */
export function heldBack(operations: Partial<Operations>, parts: HeldBackParts): Partial<Operations> {
  const { clock, ready, isHidden, softMs = Number.POSITIVE_INFINITY } = parts;
  const calls = createCalls({ clock, patienceMs: softMs });

  async function patiently(what: Promise<void>, signal: AbortSignal): Promise<void> {
    if (softMs === Number.POSITIVE_INFINITY) return await until(what, signal);
    using limit = clock.deadline(softMs, signal);
    await until(what, limit.signal);
  }

  async function wait(what: Promise<void>, request: Request): Promise<void> {
    try {
      await calls.wait(request, (signal) => patiently(what, signal));
    } catch (cause) {
      throw cause instanceof Errno ? cause : new Errno('EIO', cause);
    }
  }

  /** Operations have the request as their last argument. */
  const later =
    (does: Does, isMeant: Does = () => true): Does =>
    (...args) => {
      const first = ready();
      if (first === undefined || !(isMeant(...args) as boolean)) return does(...args);
      return wait(first, args.at(-1) as unknown as Request).then(() => does(...args));
    };

  const conditions: Readonly<Partial<Record<keyof Operations, Does>>> = {
    open: (_id: number, flags: number) => (flags & writing) !== 0,
    release: isHidden,
  };
  const all = changing.flatMap((name) => {
    const does = operations[name] as Does | undefined;
    return does === undefined ? [] : [[name, later(does, conditions[name])]];
  });
  return { ...operations, ...(Object.fromEntries(all) as Partial<Operations>) };
}
