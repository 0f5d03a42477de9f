import { crc32 } from 'node:zlib';
import { XdrError, type XdrReader } from '../xdr/reader.ts';
import {
  acceptErrorReply,
  authBadCredential,
  authTooWeak,
  type ReceivedCall,
  rpcMismatch,
  writeAcceptedHead,
} from './call-reader.ts';
import type { ReplayCache, ReplyWriter } from './replay-cache.ts';
import type { Caller, Reply, ServedProcedure, ServedProgram } from './server.ts';

export interface DispatchContext {
  readonly programs: ReadonlyMap<number, ReadonlyMap<number, ServedProgram>>;
  readonly replays: ReplayCache;
  /** For procedures that are called so often that they would push other replies out of the cache. */
  readonly frequentReplays: ReplayCache;
  readonly replaysByPort: boolean;
  readonly isAllowed: (caller: Caller) => boolean;
  readonly onError: (what: string, cause: unknown) => void;
}

export function programsByNumber(programs: readonly ServedProgram[]): DispatchContext['programs'] {
  const byNumber = new Map<number, Map<number, ServedProgram>>();
  for (const program of programs) {
    const versions = byNumber.get(program.number) ?? new Map<number, ServedProgram>();
    byNumber.set(program.number, versions.set(program.version, program));
  }
  return byNumber;
}

/** Executes a call. Undefined: no reply is sent. */
export function dispatch(
  call: ReceivedCall,
  reader: XdrReader,
  context: DispatchContext,
): ReplyWriter | undefined | Promise<ReplyWriter | undefined> {
  if (call.rpcVersion !== 2) return rpcMismatch;
  const versions = context.programs.get(call.program);
  if (versions === undefined) return acceptErrorReply(1);
  const program = versions.get(call.version);
  if (program === undefined) return acceptErrorReply(2, Math.min(...versions.keys()), Math.max(...versions.keys()));
  const procedure = program.procedures.get(call.procedure);
  if (procedure === undefined) return acceptErrorReply(3);
  const { caller } = call;
  if (caller === undefined) return authBadCredential;
  if (call.procedure !== 0 && !context.isAllowed(caller)) return authTooWeak;
  if (procedure.nonIdempotent === undefined || procedure.nonIdempotent === false)
    return runProcedure(procedure, reader, caller, context.onError);
  // The fingerprint covers only the beginning of the data, so everything else must match, too.
  const isByPort = context.replaysByPort || procedure.nonIdempotent === 'frequent';
  const from = isByPort ? `${caller.address} ${caller.port}` : caller.address;
  // The certificate decides what a caller may access, so a reply to one certificate must not go to another.
  const key = `${from} ${call.xid} ${call.program} ${call.procedure} ${fingerprint(reader)} ${caller.certificate ?? ''}`;
  const replays = procedure.nonIdempotent === 'frequent' ? context.frequentReplays : context.replays;
  return replays.run(key, () => runProcedure(procedure, reader, caller, context.onError));
}

/** The same number of bytes as in Linux's nfsd: a checksum of a whole large WRITE would cost more than the write. */
const fingerprintBytes = 256;
const fingerprint = ({ buffer, offset: at, end }: XdrReader): string =>
  `${end - at} ${crc32(buffer.subarray(at, Math.min(end, at + fingerprintBytes)))}`;

function runProcedure(
  procedure: ServedProcedure,
  reader: XdrReader,
  caller: Caller,
  onError: (what: string, cause: unknown) => void,
): ReplyWriter | Promise<ReplyWriter> {
  const success =
    (reply: Reply): ReplyWriter =>
    (writer) => {
      writeAcceptedHead(writer, 0);
      return reply(writer);
    };
  const failure = (cause: unknown): ReplyWriter => {
    // XdrError: the arguments could not be decoded. Otherwise the server failed.
    if (cause instanceof XdrError) return acceptErrorReply(4);
    onError(`${procedure.name} failed`, cause);
    return acceptErrorReply(5);
  };
  try {
    const reply = procedure.handle(reader, caller);
    return reply instanceof Promise ? reply.then(success, failure) : success(reply);
  } catch (cause) {
    return failure(cause);
  }
}
