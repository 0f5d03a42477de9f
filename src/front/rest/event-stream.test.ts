import { mkdir } from 'node:fs/promises';
import { createServer } from 'node:http';
import { type AddressInfo, connect } from 'node:net';
import { join } from 'node:path';
import { beforeEach, describe, expect, onTestFinished, test, vi } from 'vitest';
import { type Api, createApi, startServer, type TestServer } from '#testing/server.ts';
import { type StreamOptions, streamEvents } from './event-stream.ts';

let server: TestServer;
let api: Api;

beforeEach(async () => {
  server = await startServer();
  onTestFinished(() => server[Symbol.asyncDispose]());
  api = await server.as('admin');
});

const publish = (count: number, store: string | undefined = 'local', data: unknown = {}): void => {
  for (let i = 0; i < count; i++) server.core.events.publish('test.event', `${i}`, store, data);
};

describe('following events', () => {
  test('starts with a position to resume from, then has all events in order', async () => {
    using stream = await api.follow();
    const hello = await stream.next();
    expect(hello).toMatchObject({ type: 'hello', id: `${server.core.events.epoch}-${server.core.events.lastSeq}` });
    await api.post('/v1/volumes', { name: 'a', labels: { x: '1' } });
    await api.post('/v1/volumes/a/rename', { name: 'b' });
    await api.delete('/v1/volumes/b');
    const seen = [];
    for (let i = 0; i < 9; i++) seen.push(await stream.next());
    expect(seen.map((event) => event?.type)).toEqual([
      'operation.started',
      'volume.created',
      'operation.ended',
      'operation.started',
      'volume.changed',
      'operation.ended',
      'operation.started',
      'volume.deleted',
      'operation.ended',
    ]);
    const numbers = seen.map((event) => Number(event?.id?.split('-')[1]));
    expect(numbers).toEqual([...numbers].sort((a, b) => a - b));
    expect(JSON.parse(seen[1]?.data ?? '')).toMatchObject({
      type: 'volume.created',
      at: expect.stringMatching(/Z$/),
      data: { name: 'a', store: 'local', labels: { x: '1' }, bytes: null },
    });
    expect(JSON.parse(seen[2]?.data ?? '').data).toMatchObject({ state: 'done', kind: 'volume.create' });
  });

  test('shows the progress of long operations', async () => {
    await mkdir(join(server.storeFolder, 'one'));
    await mkdir(join(server.storeFolder, 'two'));
    using stream = await api.follow();
    await stream.until('hello');
    await api.post('/v1/stores/local/adopt');
    const { data } = await stream.until('operation.progress');
    expect(JSON.parse(data).data).toMatchObject({
      kind: 'store.adopt',
      progress: { done: 0, total: 2, unit: 'directories' },
    });
  });

  test('a token for one store sees only that', async () => {
    await mkdir(join(server.folder, 'mine'));
    await api.post('/v1/stores', { name: 'mine', uri: `local://${join(server.folder, 'mine')}` });
    const scoped = await server.as('viewer', 'mine');
    using stream = await scoped.follow();
    await stream.until('hello');
    publish(3, undefined);
    await api.post('/v1/volumes', { name: 'a', store: 'local' });
    await api.post('/v1/volumes', { name: 'b', store: 'mine' });
    expect(JSON.parse((await stream.next())?.data ?? '').data).toMatchObject({ store: 'mine', subject: 'mine/b' });
    expect(JSON.parse((await stream.next())?.data ?? '').data).toMatchObject({ store: 'mine', name: 'b' });
  });

  test('needs a token', async () => {
    using stream = await server.remote().follow();
    expect(stream.status).toBe(401);
  });
});

describe('resuming an event stream', () => {
  const follow = (id: string) => api.follow({ 'last-event-id': id });
  const at = (seq: number): string => `${server.core.events.epoch}-${seq}`;

  test('continues after the last seen event, without gaps or duplicates', async () => {
    const last = server.core.events.lastSeq;
    publish(5);
    using stream = await follow(at(last + 2));
    publish(1);
    const seen = [];
    for (let i = 0; i < 4; i++) seen.push((await stream.next())?.id);
    expect(seen).toEqual([at(last + 3), at(last + 4), at(last + 5), at(last + 6)]);
  });

  test('replays a whole ring at once', async () => {
    const last = server.core.events.lastSeq;
    // More than a reader's buffers hold: 2048 events of 1 KiB.
    publish(2048, 'local', { filler: 'x'.repeat(1024) });
    using stream = await follow(at(last));
    for (let i = 1; i <= 2048; i++) expect((await stream.next())?.id).toBe(at(last + i));
  });

  test('sends a reset if too much was missed, and continues from there', async () => {
    const last = server.core.events.lastSeq;
    publish(2049);
    using stream = await follow(at(last));
    expect(await stream.next()).toMatchObject({ type: 'reset', id: at(server.core.events.lastSeq), data: '{}' });
    publish(1);
    expect(await stream.next()).toMatchObject({ type: 'test.event', id: at(server.core.events.lastSeq) });
  });

  test('sends a reset after a restart of the server', async () => {
    const id = at(server.core.events.lastSeq);
    await server.stop();
    await using next = await startServer({ folder: server.folder });
    using stream = await next.admin.follow({ 'last-event-id': id });
    expect(await stream.next()).toMatchObject({ type: 'reset' });
  });

  test.each(['', 'x', '-1', '-', 'EPOCH-', 'EPOCH-x', 'EPOCH--1', 'EPOCH-99999999', 'EPOCH-1e3', '../../etc'])(
    'from the invalid position %j sends a reset',
    async (id) => {
      publish(3);
      using stream = await follow(id.replace('EPOCH', server.core.events.epoch));
      expect(await stream.next()).toMatchObject({ type: 'reset' });
    },
  );
});

describe('ending an event stream', () => {
  test('streams end when the server stops', async () => {
    using stream = await api.follow();
    await stream.until('hello');
    const began = performance.now();
    await server.stop();
    expect(await stream.next()).toBeUndefined();
    expect(performance.now() - began).toBeLessThan(5_000);
  });

  /** A server of its own, to set its intervals. */
  async function paced(pace: Partial<StreamOptions>) {
    const stop = new AbortController();
    const left = Promise.withResolvers<void>();
    const own = createServer((request, response) =>
      streamEvents(server.core, request, response, {
        principal: { id: 'x', role: 'viewer', stores: [] },
        requestId: 'x',
        signal: stop.signal,
        stillAllowed: () => true,
        ...pace,
      }),
    );
    own.on('connection', (socket) => socket.once('close', () => left.resolve()));
    await new Promise<void>((resolve) => own.listen(0, '127.0.0.1', resolve));
    onTestFinished(() => {
      own.closeAllConnections();
      own.close();
    });
    const { port } = own.address() as AddressInfo;
    return { api: createApi({ host: '127.0.0.1', port }), port, stop, left: left.promise };
  }

  test('a reader that reads nothing is disconnected', async () => {
    const { port, left } = await paced({ heartbeatMs: 50, stuckMs: 200 });
    const socket = connect(port, '127.0.0.1');
    onTestFinished(() => void socket.destroy());
    socket.on('error', () => undefined);
    socket.pause();
    socket.write('GET /v1/events HTTP/1.1\r\nhost: x\r\n\r\n');
    // Until the kernel's socket buffers are full.
    const filling = setInterval(() => publish(50, 'local', { filler: 'x'.repeat(10_000) }), 5);
    onTestFinished(() => clearInterval(filling));
    await left;
  });

  test('a slow reader that fell out of the ring gets a reset', async () => {
    const { api: own } = await paced({});
    using stream = await own.follow();
    await stream.until('hello');
    // Synchronously, so that the stream cannot be written in between.
    publish(10_000, 'local', { filler: 'x'.repeat(2000) });
    const seen: (string | undefined)[] = [];
    for (;;) {
      const event = await stream.next();
      seen.push(event?.type);
      if (event?.type === 'reset') break;
    }
    expect(seen.length).toBeLessThan(10_000);
  });

  test('heartbeats carry the position, so that a reader that sees little can resume', async () => {
    const nobody = { id: 'x', role: 'viewer', stores: ['none'] } as const;
    const { port } = await paced({ heartbeatMs: 20, principal: nobody });
    const { body } = await fetch(`http://127.0.0.1:${port}/v1/events`);
    publish(5, 'local');
    const beat = `: still here\nid: ${server.core.events.epoch}-${server.core.events.lastSeq}\n\n`;
    let text = '';
    for await (const chunk of body ?? []) {
      text += Buffer.from(chunk).toString();
      if (text.includes(beat)) break;
    }
    expect(text).not.toContain('test.event');
  });

  test('a reader gets no event after its token was revoked', async () => {
    const { body } = await api.post('/v1/tokens', { name: 'x', role: 'viewer' });
    using stream = await server.remote(body.secret).follow();
    await stream.until('hello');
    publish(1);
    expect(await stream.next()).toMatchObject({ type: 'test.event' });
    await api.delete(`/v1/tokens/${body.id}`);
    publish(1);
    expect(await stream.next()).toBeUndefined();
  });

  test('a reader with a revoked token gets no reset either', async () => {
    let allowed = true;
    const { api: own } = await paced({ stillAllowed: () => allowed });
    using stream = await own.follow();
    await stream.until('hello');
    // Synchronously, and more than the ring holds: the reader falls out of the ring.
    publish(10_000, 'local', { filler: 'x'.repeat(2000) });
    allowed = false;
    for (;;) {
      const event = await stream.next();
      if (event === undefined) break;
      expect(event.type).toBe('test.event');
    }
  });

  test('a reader that lost its right is disconnected at the next heartbeat, even without events', async () => {
    let allowed = true;
    const { api: own } = await paced({ heartbeatMs: 20, stillAllowed: () => allowed });
    using stream = await own.follow();
    await stream.until('hello');
    allowed = false;
    expect(await stream.next()).toBeUndefined();
  });

  test('a stream that starts while the server stops ends at once', async () => {
    const { api: own, stop } = await paced({});
    stop.abort();
    using stream = await own.follow();
    await stream.until('hello');
    expect(await stream.next()).toBeUndefined();
  });

  test('a reader that disconnected is forgotten', async () => {
    const stream = await api.follow();
    await stream.until('hello');
    const since = vi.spyOn(server.core.events, 'eventsAfter');
    publish(1);
    expect(since).toHaveBeenCalled();
    stream[Symbol.dispose]();
    await vi.waitFor(() => {
      since.mockClear();
      publish(1);
      expect(since).not.toHaveBeenCalled();
    });
  });
});
