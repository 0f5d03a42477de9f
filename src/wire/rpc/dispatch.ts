import { crc32 } from 'node:zlib';
import { XdrError, type XdrReader } from '../xdr/reader.ts';
import { accepted, badCredential, failed, type ReceivedCall, tooWeak, wrongRpcVersion } from './call-reader.ts';
import type { Layout, ReplayCache } from './replay-cache.ts';
import type { Caller, Reply, ServedProcedure, ServedProgram } from './server.ts';

export interface Performing {
  readonly programs: ReadonlyMap<number, ReadonlyMap<number, ServedProgram>>;
  readonly replays: ReplayCache;
  /** Of procedures that are called so often that others' answers would be forgotten too soon. */
  readonly frequentReplays: ReplayCache;
  readonly replaysByPort: boolean;
  readonly admits: (caller: Caller) => boolean;
  readonly onError: (what: string, cause: unknown) => void;
}

export function byNumber(programs: readonly ServedProgram[]): Performing['programs'] {
  const numbers = new Map<number, Map<number, ServedProgram>>();
  for (const program of programs) {
    const versions = numbers.get(program.number) ?? new Map<number, ServedProgram>();
    numbers.set(program.number, versions.set(program.version, program));
  }
  return numbers;
}

/** Does what a call asks for. Undefined: it is not answered. */
export function perform(
  call: ReceivedCall,
  reader: XdrReader,
  shared: Performing,
): Layout | undefined | Promise<Layout | undefined> {
  if (call.rpcVersion !== 2) return wrongRpcVersion;
  const versions = shared.programs.get(call.program);
  if (versions === undefined) return failed(1);
  const program = versions.get(call.version);
  if (program === undefined) return failed(2, Math.min(...versions.keys()), Math.max(...versions.keys()));
  const procedure = program.procedures.get(call.procedure);
  if (procedure === undefined) return failed(3);
  const { caller } = call;
  if (caller === undefined) return badCredential;
  if (call.procedure !== 0 && !shared.admits(caller)) return tooWeak;
  if (procedure.once === undefined || procedure.once === false) return run(procedure, reader, caller, shared.onError);
  // Of data only the beginning is compared, so everything else must be the same.
  const isByPort = shared.replaysByPort || procedure.once === 'frequent';
  const from = isByPort ? `${caller.address} ${caller.port}` : caller.address;
  // The certificate decides what a caller may reach: an answer to one certificate must not go to another.
  const key = `${from} ${call.xid} ${call.program} ${call.procedure} ${fingerprint(reader)} ${caller.certificate ?? ''}`;
  const replays = procedure.once === 'frequent' ? shared.frequentReplays : shared.replays;
  return replays.once(key, () => run(procedure, reader, caller, shared.onError));
}

/** As Linux tells calls apart: the whole of a large WRITE would cost more to sum up than to write. */
const summed = 256;
const fingerprint = ({ buffer, at, end }: XdrReader): string =>
  `${end - at} ${crc32(buffer.subarray(at, Math.min(end, at + summed)))}`;

function run(
  procedure: ServedProcedure,
  reader: XdrReader,
  caller: Caller,
  onError: (what: string, cause: unknown) => void,
): Layout | Promise<Layout> {
  const success =
    (reply: Reply): Layout =>
    (writer) => {
      accepted(writer, 0);
      return reply(writer);
    };
  const failure = (cause: unknown): Layout => {
    // The arguments could not be read, or something of our own went wrong.
    if (cause instanceof XdrError) return failed(4);
    onError(`${procedure.name} failed`, cause);
    return failed(5);
  };
  try {
    const reply = procedure.handle(reader, caller);
    return reply instanceof Promise ? reply.then(success, failure) : success(reply);
  } catch (cause) {
    return failure(cause);
  }
}
