import { once } from 'node:events';
import { connect, createServer, type Socket } from 'node:net';
import { describe, expect, test } from 'vitest';
import { libc } from '#base/linux/libc.ts';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { drainConnections } from './drain-connections.ts';

const neverAborts = new AbortController().signal;

/**
 * A connection whose client is gone, except for a copy of its descriptor. The server may not have read all data yet.
 */
async function createAbandonedConnection(sent: string) {
  const server = createServer({ allowHalfOpen: true, pauseOnConnect: true });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const client = connect((server.address() as { readonly port: number }).port, '127.0.0.1');
  const [[peer]] = (await Promise.all([once(server, 'connection'), once(client, 'connect')])) as unknown as [[Socket]];
  const { fd } = (client as unknown as { readonly _handle: { readonly fd: number } })._handle;
  const copy: number = libc().func('int dup(int fd)')(fd);
  await new Promise((resolve) => client.write(sent, resolve));
  client.destroy();
  peer.on('error', () => undefined);
  return {
    copy,
    peer,
    [Symbol.dispose]: () => {
      peer.destroy();
      server.close();
    },
  };
}

const settlesSoon = async (promise: Promise<unknown>): Promise<boolean> =>
  await Promise.race([promise.then(() => true), new Promise<boolean>((resolve) => setTimeout(resolve, 100, false))]);

describe('draining the connections of a predecessor', () => {
  test('ends when the server has read everything and closed the connections', async () => {
    const clock = createFakeClock();
    using abandoned = await createAbandonedConnection('an old call');
    const neverResolves = new Promise<never>(() => undefined);
    const draining = drainConnections(
      [abandoned.copy],
      { clock, waitUntilAnswering: () => neverResolves },
      neverAborts,
    );
    expect(await settlesSoon(draining)).toBe(false);
    let read = '';
    abandoned.peer.on('data', (chunk) => {
      read += String(chunk);
      abandoned.peer.write('an answer that no request waits for');
    });
    await once(abandoned.peer.resume(), 'end');
    expect(read).toBe('an old call');
    expect(await settlesSoon(draining)).toBe(false);
    abandoned.peer.end();
    await draining;
  });

  test('resets connections that the server does not close, although it answers other calls', async () => {
    const clock = createFakeClock();
    using abandoned = await createAbandonedConnection('x');
    const { promise: answering, resolve: answer } = Promise.withResolvers<void>();
    const draining = drainConnections([abandoned.copy], { clock, waitUntilAnswering: () => answering }, neverAborts);
    clock.advance(60_000);
    expect(await settlesSoon(draining)).toBe(false);
    answer();
    expect(await settlesSoon(draining)).toBe(false);
    clock.advance(10_000);
    await draining;
  });

  test('ends at once for broken connections', async () => {
    using abandoned = await createAbandonedConnection('x');
    abandoned.peer.resetAndDestroy();
    await drainConnections(
      [abandoned.copy],
      { clock: createFakeClock(), waitUntilAnswering: async () => undefined },
      neverAborts,
    );
  });

  test('stops when the signal aborts', async () => {
    using abandoned = await createAbandonedConnection('x');
    const stop = new AbortController();
    const draining = drainConnections(
      [abandoned.copy],
      { clock: createFakeClock(), waitUntilAnswering: async () => undefined },
      stop.signal,
    );
    stop.abort(new Error('enough'));
    await expect(draining).rejects.toThrow('enough');
  });

  test('returns at once without connections', async () => {
    await drainConnections(
      [],
      { clock: createFakeClock(), waitUntilAnswering: () => new Promise(() => undefined) },
      neverAborts,
    );
  });
});
