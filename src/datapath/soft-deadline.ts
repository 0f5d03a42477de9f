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
  readonly requestAges: ReadonlyMap<number, number>;
}

type AnyOperation = (...args: never[]) => unknown;

/**
 * On a `soft` mount a request's deadline continues in the successor. When it passes, the request is interrupted and
 * ends with EIO.
 */
export function withSoftDeadline(
  operations: Partial<Operations>,
  { clock, softMs, requestAges }: SoftDeadlineParts,
): Partial<Operations> {
  if (softMs === undefined) return operations;

  async function runWithin(
    operation: AnyOperation,
    args: readonly unknown[],
    request: Request,
    ms: number,
  ): Promise<unknown> {
    using limit = clock.deadline(ms, request.signal);
    const { uid, gid, pid, slot, resent } = request;
    const limitedRequest: Request = { uid, gid, pid, slot, resent, signal: limit.signal };
    try {
      return await operation(...([...args.slice(0, -1), limitedRequest] as never[]));
    } catch (cause) {
      const isOurs = limit.signal.aborted && !request.signal.aborted;
      throw isOurs && cause instanceof Errno && cause.code === 'EINTR' ? new Errno('EIO', cause) : cause;
    }
  }

  const withDeadline =
    (operation: AnyOperation): AnyOperation =>
    (...args) => {
      const request = args.at(-1) as unknown as Request;
      const age = requestAges.get(request.slot);
      return age === undefined ? operation(...args) : runWithin(operation, args, request, Math.max(0, softMs - age));
    };
  const all = Object.entries(operations).map(([name, does]) => [
    name,
    name === 'forget' ? does : withDeadline(does as AnyOperation),
  ]);
  return Object.fromEntries(all) as Partial<Operations>;
}
