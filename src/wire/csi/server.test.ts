import { mkdtempDisposable } from 'node:fs/promises';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, describe, expect, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { type GrpcClient, grpcClient } from '#testing/grpc-client.ts';
import { Identity } from './generated/csi.ts';
import {
  createMethods,
  encodeFrame,
  encodeStatusMessage,
  type GrpcCall,
  type GrpcStatus,
  parseTimeout,
} from './grpc.ts';
import { createGrpcServer, type GrpcServer, type GrpcServerOptions } from './server.ts';

const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  for (const clean of cleanups.splice(0).reverse()) await clean();
});

interface TestServer {
  readonly client: GrpcClient;
  readonly path: string;
  readonly grpc: GrpcServer;
}

/** Starts a server with one method, Probe, which calls `probe`. */
async function startServer(
  probe: (call: GrpcCall) => Promise<boolean>,
  limits: GrpcServerOptions['limits'] = {},
  statusOf: (thrown: unknown) => GrpcStatus = (thrown) => ({ code: 13, message: String(thrown) }),
): Promise<TestServer> {
  const folder = await mkdtempDisposable(join(tmpdir(), 'stowage-csi-'));
  cleanups.push(() => folder[Symbol.asyncDispose]());
  const path = join(folder.path, 'csi.sock');
  const grpc = createGrpcServer({
    methods: createMethods(Identity, { probe: async (_request, call) => ({ ready: await probe(call) }) }),
    clock: systemClock(),
    statusOf,
    limits,
  });
  const { promise, resolve } = Promise.withResolvers<void>();
  grpc.server.listen(path, resolve);
  await promise;
  const client = grpcClient(path);
  cleanups.push(
    () => grpc.close(0),
    () => client.session.destroy(),
  );
  return { client, path, grpc };
}

/** Rejects when the call is aborted, like a handler that observes its signal. */
const untilAborted = ({ signal }: GrpcCall): Promise<never> =>
  new Promise((_resolve, reject) => signal.addEventListener('abort', () => reject(signal.reason), { once: true }));

describe('a call', () => {
  test('is answered with a message', async () => {
    const { client } = await startServer(async () => true);
    await expect(client.call(Identity.method.probe, {})).resolves.toMatchObject({ ready: true });
  });

  test('that fails returns the status from statusOf, also with non-ASCII text', async () => {
    const { client } = await startServer(
      () => Promise.reject(new Error('no')),
      {},
      () => ({ code: 9, message: '50 % of “it” is\nin use' }),
    );
    await expect(client.call(Identity.method.probe, {})).rejects.toMatchObject({
      code: 9,
      message: '50 % of “it” is\nin use',
    });
  });

  test('to an unknown method returns UNIMPLEMENTED', async () => {
    const { client } = await startServer(async () => true);
    await expect(client.call(Identity.method.getPluginInfo, {})).rejects.toMatchObject({
      code: 12,
      message: 'there is no method /csi.v1.Identity/GetPluginInfo',
    });
  });

  test("ends at the caller's deadline", async () => {
    const { client } = await startServer(untilAborted);
    await expect(client.call(Identity.method.probe, {}, { 'grpc-timeout': '30m' })).rejects.toMatchObject({
      message: 'DeadlineExceeded: no answer within 30 ms',
    });
  });

  test("without a deadline ends at the server's limit", async () => {
    const { client } = await startServer(untilAborted, { callMs: 30 });
    await expect(client.call(Identity.method.probe, {})).rejects.toMatchObject({ code: 13 });
  });

  test('is aborted when its caller disconnects', async () => {
    const abortReason = Promise.withResolvers<unknown>();
    const started = Promise.withResolvers<void>();
    const { client } = await startServer(async (call) => {
      started.resolve();
      return await untilAborted(call).catch((reason: unknown) => {
        abortReason.resolve(reason);
        throw reason;
      });
    });
    const pendingCall = client.call(Identity.method.probe, {}).catch(() => undefined);
    await started.promise;
    client.session.destroy();
    await expect(abortReason.promise).resolves.toMatchObject({ message: 'the caller has gone' });
    await pendingCall;
  });
});

describe('the server', () => {
  const path = '/csi.v1.Identity/Probe';
  test.each([
    ['a message that is too large', Buffer.alloc(3_000), 8, 'a message has at most 2048 bytes'],
    ['no message', Buffer.alloc(0), 13, 'the request has no message'],
    ['half a message', encodeFrame(new Uint8Array(9)).subarray(0, 8), 13, 'the request is not exactly one message'],
    ['a compressed message', Buffer.from([1, 0, 0, 0, 0]), 12, 'compressed messages are not supported'],
    ['bytes that are not a message', encodeFrame(Buffer.from([0xff, 0xff])), 3, 'the message is not a ProbeRequest'],
  ])('refuses %s before any method runs', async (_what, body, code, message) => {
    const { client } = await startServer(async () => true, { messageBytes: 2_048 });
    await expect(client.callBytes(path, body)).rejects.toMatchObject({ code, message });
    await expect(client.call(Identity.method.probe, {})).resolves.toMatchObject({ ready: true });
  });

  test('refuses a request that is not gRPC', async () => {
    const { client } = await startServer(async () => true);
    const sent = client.callBytes(path, encodeFrame(new Uint8Array()), { 'content-type': 'application/json' });
    await expect(sent).rejects.toThrow('HTTP 415');
  });

  test('refuses a malformed timeout', async () => {
    const { client } = await startServer(async () => true);
    const sent = client.call(Identity.method.probe, {}, { 'grpc-timeout': 'soon' });
    await expect(sent).rejects.toMatchObject({ code: 13, message: 'the header grpc-timeout is malformed' });
  });

  test('refuses calls beyond the limit', async () => {
    const held = Promise.withResolvers<boolean>();
    let started = 0;
    const { client, path: socket } = await startServer(
      () => {
        started++;
        return held.promise;
      },
      { calls: 2 },
    );
    const heldCalls = [client.call(Identity.method.probe, {}), client.call(Identity.method.probe, {})];
    await expect.poll(() => started).toBe(2);
    const otherClient = grpcClient(socket);
    cleanups.push(() => otherClient.session.destroy());
    const message = 'too many calls in flight';
    await expect(otherClient.call(Identity.method.probe, {})).rejects.toMatchObject({ code: 14, message });
    held.resolve(true);
    await Promise.all(heldCalls);
  });

  test('does not count calls that have ended towards the limit', async () => {
    let isWell = true;
    const { client } = await startServer(
      async () => {
        isWell = !isWell;
        if (isWell) throw new Error('no');
        return true;
      },
      { calls: 1 },
    );
    for (let i = 0; i < 3; i++) {
      await expect(client.call(Identity.method.probe, {})).resolves.toMatchObject({ ready: true });
      await expect(client.call(Identity.method.probe, {})).rejects.toMatchObject({ code: 13 });
    }
  });

  test('closes connections beyond the limit', async () => {
    const { client, path: socket } = await startServer(async () => true, { connections: 1 });
    await client.call(Identity.method.probe, {});
    const { promise, resolve } = Promise.withResolvers<void>();
    connect(socket)
      .on('close', () => resolve())
      .on('error', () => undefined);
    await promise;
  });
});

describe('closing the server', () => {
  test('waits for calls in flight', async () => {
    const held = Promise.withResolvers<boolean>();
    const started = Promise.withResolvers<void>();
    const { client, grpc } = await startServer(() => {
      started.resolve();
      return held.promise;
    });
    const pendingCall = client.call(Identity.method.probe, {});
    await started.promise;
    const closed = grpc.close(60_000);
    held.resolve(true);
    await expect(pendingCall).resolves.toMatchObject({ ready: true });
    await closed;
  });

  test('aborts calls that take too long', async () => {
    const started = Promise.withResolvers<void>();
    const { client, grpc } = await startServer((call) => {
      started.resolve();
      return untilAborted(call);
    });
    const pendingCall = client.call(Identity.method.probe, {});
    const refusal = expect(pendingCall).rejects.toMatchObject({ code: 14, message: 'the server is stopping' });
    await started.promise;
    await grpc.close(0);
    await refusal;
  });
});

test('parseTimeout parses all units', () => {
  expect(['1H', '2M', '3S', '4m', '5000u', '1n'].map(parseTimeout)).toEqual([3_600_000, 120_000, 3_000, 4, 5, 1]);
  expect(parseTimeout(undefined)).toBeUndefined();
});

test('a status message is percent-encoded', () => {
  expect(encodeStatusMessage('ä 5%\n')).toBe('%C3%A4 5%25%0A');
});
