import { nfsProgram, type RpcClient, RpcError } from '#wire/nfs3/index.ts';

/** An RPC client that counts its calls and knows which of them can change anything. */
export type CountedRpc = RpcClient & { readonly sentCalls: number };

/** RFC 1813, section 3.3: SETATTR, WRITE to LINK, COMMIT. */
const changingProcedures: ReadonlySet<number> = new Set([2, 7, 8, 9, 10, 11, 12, 13, 14, 15, 21]);

/** A call that only reads has no effect, so its error must not say that it may have been done. */
const withoutMaybeDone = (cause: unknown): unknown =>
  cause instanceof RpcError && cause.maybeDone
    ? new RpcError(cause.message, { failure: cause.failure, cause: cause.cause })
    : cause;

export function createCountedRpc(rpc: RpcClient): CountedRpc {
  let sent = 0;
  return {
    call: (procedure, args, options, recover) => {
      sent++;
      if (procedure.program === nfsProgram && changingProcedures.has(procedure.number))
        return rpc.call(procedure, args, options, recover);
      return rpc.call(procedure, args, options, (cause, since) => {
        const error = withoutMaybeDone(cause);
        if (recover === undefined) throw error;
        return recover(error, since);
      });
    },
    get pending() {
      return rpc.pending;
    },
    get address() {
      return rpc.address;
    },
    get sentCalls() {
      return sent;
    },
    close: () => rpc.close(),
    [Symbol.dispose]: () => rpc.close(),
  };
}
