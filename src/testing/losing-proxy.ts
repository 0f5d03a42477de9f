import { once } from 'node:events';
import { closeSync, openSync, writeSync } from 'node:fs';
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';
import { joinSockets, onRecords, procedureOf, type RpcRecord, statusOf } from './rpc-records.ts';

/**
 * A proxy between the NFS client and a server. It tracks which data the server has committed. While the server is down,
 * a test can remove all uncommitted data from the server's disk, as if they had been in the server's memory only.
 */
export interface LosingProxy extends AsyncDisposable {
  readonly host: string;
  readonly port: number;
  /** The number of answered writes that the server may still lose. */
  readonly atRisk: number;
  /** Drops all answers from now on, and refuses new connections. */
  down(): Promise<void>;
  /** Overwrites uncommitted data of the file with zeros. The client writes to this file only, each byte once. */
  lose(file: string): void;
  up(): Promise<void>;
}

interface Write {
  readonly offset: number;
  readonly length: number;
  /** The number of the reply among all replies. 0: the server has not replied yet. */
  answered: number;
  isSafe: boolean;
}
type Call = { readonly write: Write } | { readonly commitSince: number };

const [writeProcedure, commitProcedure] = [7, 21];
const unstable = 0;
/** Clients in these tests write whole pages. */
const pageSize = 4096;

export async function startLosingProxy(to: { readonly host: string; readonly port: number }): Promise<LosingProxy> {
  const sockets = new Set<Socket>();
  const writes: Write[] = [];
  let answers = 0;
  let isDown = false;
  let listener: Server;
  let port = 0;

  function trackCall(call: RpcRecord): Call | undefined {
    if (procedureOf(call) === commitProcedure) return { commitSince: answers };
    if (procedureOf(call) !== writeProcedure) return undefined;
    const write: Write = { ...writtenRange(call), answered: 0, isSafe: false };
    writes.push(write);
    return { write };
  }

  /** A COMMIT covers the writes whose replies came before the COMMIT was sent. */
  function trackReply(call: Call | undefined, reply: RpcRecord): void {
    answers++;
    if (call === undefined || statusOf(reply) !== 0) return;
    if ('write' in call) {
      call.write.answered = answers;
      call.write.isSafe = repliedStability(reply) !== unstable;
    } else for (const one of writes) if (one.answered > 0 && one.answered <= call.commitSince) one.isSafe = true;
  }

  function onClient(client: Socket): void {
    const server = connect(to);
    const calls = new Map<number, Call | undefined>();
    joinSockets(sockets, client, server);
    onRecords(client, (call) => {
      if (isDown) return;
      calls.set(call.xid, trackCall(call));
      server.write(call.bytes);
    });
    onRecords(server, (reply) => {
      if (isDown) return;
      trackReply(calls.get(reply.xid), reply);
      calls.delete(reply.xid);
      client.write(reply.bytes);
    });
  }

  async function up(): Promise<void> {
    isDown = false;
    listener = createServer(onClient).listen(port, '127.0.0.1');
    await once(listener, 'listening');
    ({ port } = listener.address() as AddressInfo);
  }

  async function down(): Promise<void> {
    if (isDown) return;
    isDown = true;
    const closed = once(listener, 'close');
    listener.close();
    for (const socket of sockets) socket.destroy();
    await closed;
  }

  await up();
  return {
    host: '127.0.0.1',
    up,
    down,
    get port() {
      return port;
    },
    get atRisk() {
      return writes.filter(({ answered: when, isSafe }) => when > 0 && !isSafe).length;
    },
    lose: (file) => {
      // Committed data stay even if they were written again since, because the bytes are the same.
      const safe = new Set(writes.filter(({ isSafe }) => isSafe).flatMap(pagesOf));
      const fd = openSync(file, 'r+');
      for (const page of writes.flatMap(pagesOf))
        if (!safe.has(page)) writeSync(fd, Buffer.alloc(pageSize), 0, pageSize, page * pageSize);
      closeSync(fd);
      for (let i = writes.length - 1; i >= 0; i--) if (writes[i]?.isSafe === false) writes.splice(i, 1);
    },
    [Symbol.asyncDispose]: down,
  };
}

const pagesOf = ({ offset, length }: Write): number[] =>
  Array.from({ length: length / pageSize }, (_, i) => offset / pageSize + i);

/** The range of a WRITE call. It follows the RPC header, credential, verifier and file handle. */
function writtenRange({ bytes }: RpcRecord): { readonly offset: number; readonly length: number } {
  let at = 28;
  const skip = (): void => {
    at += 4 + 4 * Math.ceil(bytes.readUInt32BE(at) / 4);
  };
  for (let auth = 0; auth < 2; auth++) {
    at += 4;
    skip();
  }
  skip();
  return { offset: Number(bytes.readBigUInt64BE(at)), length: bytes.readUInt32BE(at + 8) };
}

/** The stability in a WRITE reply. It follows the status, the attributes before and after, and the count. */
function repliedStability({ bytes }: RpcRecord): number {
  let at = 32;
  for (const size of [24, 84]) at += 4 + (bytes.readUInt32BE(at) === 0 ? 0 : size);
  return bytes.readUInt32BE(at + 4);
}
