import { existsSync } from 'node:fs';
import { connect } from 'node:net';
import { describe, expect, onTestFinished, test, vi } from 'vitest';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { emptyResult, servedPlugins } from '#testing/plugin.ts';

const it = servedPlugins();

describe('many concurrent calls', () => {
  test('calls beyond the limit are rejected, and the others are answered', async () => {
    const call = await it.start('stowage-local', { limits: { maxCalls: 20 } });
    const gate = it.local.close('create');
    const names = Array.from({ length: 20 }, (_, index) => `v${index}`);
    const made = names.map((Name) => call('VolumeDriver.Create', { Name }));
    await vi.waitFor(() => expect(gate.waiting()).toBe(20));
    expect(await call('VolumeDriver.Get', { Name: 'v1' })).toEqual({
      status: 409,
      Err: 'too many calls are in flight. Try again in a moment.',
    });
    gate.open();
    expect(await Promise.all(made)).toEqual(names.map(() => emptyResult));
    expect(await call('VolumeDriver.Get', { Name: 'v1' })).toMatchObject(emptyResult);
  });

  test('hundreds of concurrent calls are all answered', async () => {
    await it.make('local', 'a');
    const call = await it.start();
    const calls = await Promise.all(Array.from({ length: 500 }, () => call('VolumeDriver.Get', { Name: 'a' })));
    expect(calls.every(({ Err }) => Err === '')).toBe(true);
  });
});

describe('a plugin that stops', () => {
  test.each([true, false])('waits briefly for reads (answered: %s)', async (isAnswered) => {
    const call = await it.start('stowage');
    await call('VolumeDriver.Create', { Name: 'there' });
    const reading = it.nfs.close('get');
    onTestFinished(() => reading.open());
    const got = call('VolumeDriver.Get', { Name: 'there' });
    await reading.reached;
    const since = performance.now();
    const closed = call.served.close(30_000);
    if (isAnswered) reading.open();
    expect(await got).toMatchObject(isAnswered ? { Volume: { Name: 'there' }, Err: '' } : { status: 503 });
    await closed;
    expect(performance.now() - since).toBeLessThan(20_000);
  });

  test('waits for changes in flight, and accepts no new calls', async () => {
    const call = await it.start();
    const changing = it.local.close('create');
    const made = call('VolumeDriver.Create', { Name: 'a' });
    await changing.reached;
    const closed = call.served.close(10_000);
    await isGone(call.at);
    await expect(call('VolumeDriver.List', {})).rejects.toMatchObject({ code: expect.stringMatching(/ENOENT|ECONN/) });
    changing.open();
    expect(await made).toEqual(emptyResult);
    await closed;
  });

  test('answers a call on a connection that was opened before the stop', async () => {
    // The clock does not advance, so no deadline passes.
    const clock = createFakeClock();
    const call = await it.start('stowage-local', { clock });
    const methods = ['List', 'Create', 'List', 'Create'];
    const startedCalls = await Promise.all(methods.map((method) => begin(call.at, `VolumeDriver.${method}`)));
    await vi.waitFor(async () => expect(await call.connections()).toBe(startedCalls.length));
    const closed = call.served.close(10_000);
    await isGone(call.at);
    for (const finish of startedCalls) expect(await finish({ Name: 'a' })).toMatch(/^HTTP\/1\.1 200 [\s\S]*"Err":""/);
    await closed;
  });

  test('also answers connections that it had not accepted yet', async () => {
    const call = await it.start();
    // The kernel has connected them when this returns; the server has not accepted them when it closes.
    const calls = Array.from({ length: 50 }, () => call('VolumeDriver.List', {}));
    const closed = call.served.close(10_000);
    expect(await Promise.all(calls)).toEqual(calls.map(() => ({ Volumes: [], Err: '' })));
    await closed;
  });

  test('cancels calls that take longer than the grace period', async () => {
    const call = await it.start();
    const changing = it.local.close('create');
    const made = call('VolumeDriver.Create', { Name: 'a' });
    await changing.reached;
    await call.served.close(0);
    expect(await made).toMatchObject({ status: 503, Err: expect.stringContaining('Stowage is stopping') });
  });
});

test('each connection serves one call, since Docker retries a call on a closed connection without its body', async () => {
  const call = await it.start();
  const list = async () => await call.raw('POST', '/VolumeDriver.List', '{}', { connection: 'keep-alive' });
  expect((await list()).headers.connection).toBe('close');
  await vi.waitFor(async () => expect(await call.connections()).toBe(0));
});

const isGone = (at: string): Promise<void> => vi.waitFor(() => expect(existsSync(at)).toBe(false));

/** Sends a part of the call, and the rest when told to; then returns the whole answer. */
async function begin(at: string, method: string): Promise<(message: object) => Promise<string>> {
  const { promise: open, resolve } = Promise.withResolvers<void>();
  const socket = connect(at, () => socket.write(`POST /${method} HTTP/1.1\r\n`, () => resolve()));
  let text = '';
  socket.on('data', (data) => {
    text += String(data);
  });
  const ended = new Promise((resolve) => socket.once('close', resolve));
  await open;
  return async (message) => {
    const body = JSON.stringify(message);
    socket.write(`content-length: ${body.length}\r\n\r\n${body}`);
    await ended;
    return text;
  };
}
