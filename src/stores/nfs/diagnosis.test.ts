import { once } from 'node:events';
import { type AddressInfo, createServer } from 'node:net';
import { expect, onTestFinished, test, vi } from 'vitest';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { createConnect } from './connect.ts';
import { parseOptions } from './options.ts';

test('whoever gives up does not wait until it is found out why a server is silent', async () => {
  let connections = 0;
  const silent = createServer((socket) => {
    connections++;
    socket.on('error', () => undefined);
  }).listen(0, '127.0.0.1');
  await once(silent, 'listening');
  onTestFinished(() => void silent.close());
  const { port } = silent.address() as AddressInfo;
  const clock = createFakeClock();
  const giveUp = new AbortController();
  const options = parseOptions(`nfs://127.0.0.1:${port}/export`, { timeout: '1s', retries: '0' });
  const connecting = createConnect(clock)(options, () => undefined, giveUp.signal);
  const refused = expect(connecting).rejects.toThrow(/no reply in time/);
  await vi.waitFor(() => expect(connections).toBe(1));
  clock.advance(1_050);
  // Tried once more, to see whether it hangs up; its time stands still from here on.
  await vi.waitFor(() => expect(connections).toBe(2));
  giveUp.abort();
  await refused;
}, 10_000);
