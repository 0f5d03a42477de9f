import { once } from 'node:events';
import { type AddressInfo, createServer } from 'node:net';
import { expect, onTestFinished, test, vi } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { createConnect, identityOf } from './connect.ts';
import { ServerHangsUp } from './connection-errors.ts';
import { detectHangUp } from './diagnosis.ts';
import { createDial } from './dial.ts';
import { parseOptions } from './options.ts';

test('a caller that aborts does not wait for the diagnosis of a silent server', async () => {
  let connections = 0;
  const silent = createServer((socket) => {
    connections++;
    socket.on('error', () => undefined);
  }).listen(0, '127.0.0.1');
  await once(silent, 'listening');
  onTestFinished(() => void silent.close());
  const { port } = silent.address() as AddressInfo;
  const clock = createFakeClock();
  const controller = new AbortController();
  const options = parseOptions(`nfs://127.0.0.1:${port}/export`, { timeout: '1s', retries: '0' });
  const connecting = createConnect(clock)(options, () => undefined, controller.signal);
  const rejection = expect(connecting).rejects.toThrow(/no reply in time/);
  await vi.waitFor(() => expect(connections).toBe(1));
  clock.advance(1_050);
  // The second connection checks whether the server hangs up. The fake clock does not advance any more.
  await vi.waitFor(() => expect(connections).toBe(2));
  controller.abort();
  await rejection;
}, 10_000);

test('a server hangs up only if all of its addresses do', async () => {
  const startServer = async (host: string, port: number, hangsUp: boolean): Promise<number> => {
    const server = createServer((socket) => {
      socket.on('error', () => undefined);
      if (hangsUp) socket.destroy();
    }).listen(port, host);
    await once(server, 'listening');
    onTestFinished(() => void server.close());
    return (server.address() as AddressInfo).port;
  };
  const clock = systemClock();
  const { signal } = new AbortController();
  const findHangUp = async (addresses: readonly string[], port: number): Promise<Error | undefined> => {
    const options = parseOptions(`nfs://127.0.0.1:${port}/export`, {});
    const dial = await createDial(options, identityOf(options), undefined, clock);
    return await detectHangUp({ addresses, port, dial }, signal);
  };
  const port = await startServer('127.0.0.1', 0, true);
  expect(await findHangUp(['127.0.0.1'], port)).toBeInstanceOf(ServerHangsUp);
  await startServer('127.0.0.2', port, false);
  await startServer('127.0.0.3', port, true);
  expect(await findHangUp(['127.0.0.1', '127.0.0.2'], port)).toBeUndefined();
  expect(await findHangUp(['127.0.0.1', '127.0.0.3'], port)).toBeInstanceOf(ServerHangsUp);
  // Nothing listens there.
  expect(await findHangUp(['127.0.0.1', '127.0.0.4'], port)).toBeUndefined();
});
