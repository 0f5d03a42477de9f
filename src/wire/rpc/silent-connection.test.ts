import { once } from 'node:events';
import * as fs from 'node:fs';
import { type AddressInfo, createServer } from 'node:net';
import { describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { lacks } from '#testbed/lacks.ts';
import { certificate } from '#testing/certificate.ts';
import { startProxy } from '#testing/cutting-proxy.ts';
import { exportedByGanesha } from '#testing/exported-folder.ts';
import { user } from '#testing/nfs-export.ts';
import { onRecords, procedureOf } from '#testing/rpc-records.ts';
import { createNfsClient } from '../nfs3/client.ts';
import { type CallOptions, createRpcClient, type RpcClient, type RpcClientOptions } from './client.ts';
import type { Procedure } from './procedure.ts';
import { createRpcServer, type RpcServerOptions, type ServedProcedure } from './server.ts';

const stallMs = 200;
/** The options of a call of a `hard` mount. */
const withoutDeadline: CallOptions = { deadlineMs: Number.POSITIVE_INFINITY };

describe.skipIf(lacks('root', 'ganesha'))(
  'a client whose connection to a server with one address died silently',
  () => {
    const it = exportedByGanesha();

    test.each([1, 3])('resends pending calls on a new connection, with %d connections', async (connections) => {
      const proxy = await startProxy({ host: it.server.host, port: it.server.nfsPort });
      const common = { clock: systemClock(), identity: user(0), stallMs, connections };
      using rpc = createRpcClient({ ...common, addresses: [proxy] });
      const nfs = createNfsClient(rpc, systemClock());
      await Promise.all(Array.from({ length: connections }, () => nfs.null()));
      proxy.stallOpen();
      const names = Array.from({ length: 30 }, (_, i) => `sub-${i}`);
      await Promise.all(names.map((name) => nfs.mkdir(it.directory, name, { mode: 0o755 }, withoutDeadline)));
      expect(fs.readdirSync(it.folder).toSorted()).toEqual(names.toSorted());
    });

    test('continues its calls after the whole network was silent for a while', async () => {
      const proxy = await startProxy({ host: it.server.host, port: it.server.nfsPort });
      using rpc = createRpcClient({ clock: systemClock(), identity: user(0), stallMs, addresses: [proxy] });
      const nfs = createNfsClient(rpc, systemClock());
      await nfs.null();
      proxy.stall();
      const pendingMkdir = nfs.mkdir(it.directory, 'made', { mode: 0o755 }, withoutDeadline);
      // Wait until the client has tried a new connection, without success.
      await expect.poll(() => proxy.connections, { timeout: 30_000 }).toBeGreaterThan(2);
      await proxy.down();
      await proxy.up();
      await pendingMkdir;
      expect(fs.readdirSync(it.folder)).toEqual(['made']);
    });
  },
);

describe('a server that is slow', () => {
  const program = 200_000;
  const common = { program, version: 1 };
  const work: Procedure<undefined, undefined> = {
    ...common,
    number: 1,
    name: 'WORK',
    encode: () => undefined,
    decode: () => undefined,
  };

  interface SlowServer {
    readonly port: number;
    readonly received: { null: number; work: number };
    finish(): void;
  }

  /** Starts a server whose WORK returns after `finish()`. `answersNull`: NULL does not wait for that. */
  async function slowServer(tls?: RpcServerOptions['tls'], answersNull = true): Promise<SlowServer> {
    const received = { null: 0, work: 0 };
    const { promise: finished, resolve: finish } = Promise.withResolvers<void>();
    const emptyReply = (): undefined => undefined;
    const countingProcedure = (name: 'null' | 'work', until: () => unknown): ServedProcedure => ({
      name,
      handle: async () => {
        received[name]++;
        await until();
        return emptyReply;
      },
    });
    const procedures = new Map([
      [0, countingProcedure('null', () => (answersNull ? undefined : finished))],
      [1, countingProcedure('work', () => finished)],
    ]);
    const server = createRpcServer({ programs: [{ number: program, version: 1, procedures }], tls });
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    onTestFinished(() => void server.close());
    return { port: (server.address() as AddressInfo).port, received, finish };
  }

  function client(port: number, options: Partial<RpcClientOptions> = {}): RpcClient {
    const addresses = [{ host: '127.0.0.1', port }] as const;
    const rpc = createRpcClient({ clock: systemClock(), stallMs, addresses, ...options });
    onTestFinished(() => rpc.close());
    return rpc;
  }

  async function waitForWork(
    { port, received, finish }: SlowServer,
    options?: Partial<RpcClientOptions>,
  ): Promise<void> {
    const done = client(port, options).call(work, undefined, withoutDeadline);
    // Each liveness check sends NULL on both connections.
    await expect.poll(() => received.null, { timeout: 30_000 }).toBeGreaterThanOrEqual(6);
    finish();
    await done;
    expect(received.work).toBe(1);
  }

  test('keeps its connection if it answers NULL', async () => {
    await waitForWork(await slowServer());
  });

  test.skipIf(lacks('openssl'))('keeps its TLS connection if it answers NULL', async () => {
    const { key, cert } = certificate('server');
    await waitForWork(await slowServer({ key, cert }), { tls: { options: { ca: cert }, ...common } });
  });

  test('keeps its connection if it is frozen on every connection', async () => {
    const { port, received, finish } = await slowServer(undefined, false);
    const done = client(port).call(work, undefined, withoutDeadline);
    await expect.poll(() => received.null, { timeout: 30_000 }).toBeGreaterThanOrEqual(4);
    finish();
    await done;
    expect(received.work).toBe(1);
  });

  test('keeps the new connection if it answers no query after the connection was lost', async () => {
    const queriesByConnection: number[] = [];
    const server = createServer((socket) => {
      const connection = queriesByConnection.push(0) - 1;
      socket.on('error', () => undefined);
      onTestFinished(() => void socket.destroy());
      onRecords(socket, (call) => {
        if (procedureOf(call) === work.number) socket.resetAndDestroy();
        // Do not count the NULL calls of liveness checks, which have their own xid.
        else if (call.xid !== 0xffff_ffff) queriesByConnection[connection] = (queriesByConnection[connection] ?? 0) + 1;
      });
    });
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    onTestFinished(() => void server.close());
    const rpc = client((server.address() as AddressInfo).port);
    rpc.call({ ...work, mutates: () => true }, undefined, withoutDeadline).catch(() => undefined);
    // Each query has a deadline of two seconds. If one of them counted as late, each connection would get only one query.
    await expect.poll(() => Math.max(...queriesByConnection), { timeout: 40_000 }).toBeGreaterThanOrEqual(2);
  });
});
