import type { Clock } from '#base/clock.ts';
import { Errno } from '#wire/fuse/errno.ts';
import type { Operations, Request } from '#wire/fuse/operations.ts';

export interface SoftDeadlineParts {
  readonly clock: Clock;
  /** `soft`: EIO after this time. Undefined: `hard`. */
  readonly softMs: number | undefined;
  /**
   * By journal place: the age of a request that a predecessor had read. Set only while that request starts, since
   * places are reused.
   */
  readonly ages: ReadonlyMap<number, number>;
}

type AnyOperation = (...args: never[]) => unknown;

/**
 * On a `soft` mount a request's deadline continues in the successor. When it passes, the request is interrupted and
 * ends with EIO.
 */
export function withSoftDeadline(
  operations: Partial<Operations>,
  { clock, softMs, ages }: SoftDeadlineParts,
): Partial<Operations> {
  if (softMs === undefined) return operations;

  async function within(does: AnyOperation, args: readonly unknown[], request: Request, ms: number): Promise<unknown> {
    using limit = clock.deadline(ms, request.signal);
    const { uid, gid, pid, slot: place, resent } = request;
    const limited: Request = { uid, gid, pid, slot: place, resent, signal: limit.signal };
    try {
      return await does(...([...args.slice(0, -1), limited] as never[]));
    } catch (cause) {
      const isOurs = limit.signal.aborted && !request.signal.aborted;
      throw isOurs && cause instanceof Errno && cause.code === 'EINTR' ? new Errno('EIO', cause) : cause;
    }
  }

  const limited =
    (does: AnyOperation): AnyOperation =>
    (...args) => {
      const request = args.at(-1) as unknown as Request;
      const age = ages.get(request.slot);
      return age === undefined ? does(...args) : within(does, args, request, Math.max(0, softMs - age));
    };
  const all = Object.entries(operations).map(([name, does]) => [
    name,
    name === 'forget' ? does : limited(does as AnyOperation),
  ]);
  return Object.fromEntries(all) as Partial<Operations>;
}
