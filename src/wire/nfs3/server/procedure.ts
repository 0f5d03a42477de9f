import type { Reply, ServedProcedure } from '../../rpc/server.ts';
import { XdrError, XdrReader } from '../../xdr/reader.ts';
import type { XdrWriter } from '../../xdr/writer.ts';
import { nfsStatus } from '../status.ts';
import type { Export } from './export.ts';
import { FileMoved } from './exported-tree.ts';
import type { Credentials } from './identities.ts';
import type { Node } from './nodes.ts';
import { refuse, statusOf } from './refusal.ts';

export type ProcedureHandler = (exported: Export, reader: XdrReader, who: Credentials) => Reply | Promise<Reply>;

export interface ProcedureDefinition {
  readonly number: number;
  readonly name: string;
  /** The number of words after a status other than 0: optional attributes that are left out, each a FALSE. */
  readonly failureWords: number;
  /** A second execution would differ from the first. */
  readonly nonIdempotent?: ServedProcedure['nonIdempotent'];
  readonly handle: ProcedureHandler;
}

export const successReply =
  (write: (writer: XdrWriter) => void): Reply =>
  (writer) => {
    writer.u32(0);
    write(writer);
    return undefined;
  };

/** Returns the reply once the changes of these nodes are on the disk. */
export function replyWhenDurable(exported: Export, reply: Reply, ...nodes: readonly Node[]): Reply | Promise<Reply> {
  if (!exported.isDurable) return reply;
  return exported.durability.syncChanges(nodes).then(() => reply);
}

/** How often one call searches for a file that has a valid handle and is not at its known path. */
const maxSearches = 4;

export function servedProcedure(
  exported: Export,
  { name, failureWords, nonIdempotent, handle }: ProcedureDefinition,
): ServedProcedure {
  const failureReply = createFailureReply(failureWords);

  function failureReplyTo(cause: unknown): Reply {
    // The client retries, and that call then waits for the search.
    if (cause instanceof FileMoved) return failureReply(nfsStatus.JUKEBOX);
    if (cause instanceof XdrError) throw cause;
    const status = statusOf(cause);
    if (status === undefined || status === nfsStatus.IO) exported.onError(`${name} failed`, cause);
    return failureReply(status ?? nfsStatus.SERVERFAULT);
  }

  async function handleAfterSearch(first: FileMoved, args: Buffer, who: Credentials): Promise<Reply> {
    let moved = first;
    for (let search = 0; search < maxSearches; search++) {
      const found = await exported.search.find(moved.node);
      if (found === undefined) moved.node.isDeleted = true;
      exported.tree.descriptors.startTurn();
      try {
        return await handle(exported, readerOf(args), who);
      } catch (cause) {
        if (!(cause instanceof FileMoved)) throw cause;
        moved = cause;
      }
    }
    return refuse('JUKEBOX');
  }

  return {
    name,
    ...(nonIdempotent === undefined ? {} : { nonIdempotent }),
    handle: (reader, caller) => {
      const who = exported.identities.credentialsOf(caller);
      const { offset: at } = reader;
      exported.tree.descriptors.startTurn();
      try {
        const reply = handle(exported, reader, who);
        return reply instanceof Promise ? reply.catch(failureReplyTo) : reply;
      } catch (cause) {
        if (!(cause instanceof FileMoved)) return failureReplyTo(cause);
        return handleAfterSearch(cause, Buffer.from(reader.buffer.subarray(at, reader.end)), who).catch(failureReplyTo);
      }
    },
  };
}

function createFailureReply(failureWords: number): (status: number) => Reply {
  const replies = new Map<number, Reply>();
  return (status) => {
    const known = replies.get(status);
    if (known !== undefined) return known;
    const reply: Reply = (writer) => {
      writer.u32(status);
      for (let i = 0; i < failureWords; i++) writer.u32(0);
      return undefined;
    };
    replies.set(status, reply);
    return reply;
  };
}

export function readerOf(bytes: Buffer): XdrReader {
  return new XdrReader().reset(bytes, new DataView(bytes.buffer, bytes.byteOffset, bytes.length), 0, bytes.length);
}
