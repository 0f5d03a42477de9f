import { once } from 'node:events';
import { type AddressInfo, connect, createServer } from 'node:net';
import { expect, onTestFinished, test } from 'vitest';
import { startReplayingProxy } from './replaying-proxy.ts';
import { asRecord, onRecords, procedureOf, reply, uint32s } from './rpc-records.ts';

const mkdir = 9;
const call = (xid: number): Buffer => asRecord(uint32s(xid, 0, 2, 100_003, 3, mkdir));

test('delivers a late copy again if the server drops it because it has not finished the first one', async () => {
  let copies = 0;
  const server = createServer((socket) => {
    socket.on('error', () => undefined);
    onRecords(socket, (record) => {
      // Drops the second copy, as nfs-ganesha does.
      if (procedureOf(record) === mkdir && ++copies !== 2) socket.write(reply(record.xid));
    });
  });
  onTestFinished(() => void server.close());
  await once(server.listen(0, '127.0.0.1'), 'listening');
  using proxy = await startReplayingProxy({ host: '127.0.0.1', port: (server.address() as AddressInfo).port });
  const dial = async () => {
    const socket = connect(proxy.port, proxy.host).on('error', () => undefined);
    onTestFinished(() => void socket.destroy());
    await once(socket, 'connect');
    return socket;
  };
  const first = proxy.holdCall(mkdir);
  const lost = await dial();
  lost.write(call(1));
  await Promise.all([first.held, once(lost.resume(), 'close')]);
  const client = await dial();
  const answers: number[] = [];
  onRecords(client, ({ xid }) => answers.push(xid));
  client.write(call(1));
  await expect.poll(() => answers).toEqual([1]);
  await first.release();
  expect(copies).toBeGreaterThanOrEqual(3);
  await expect.poll(() => answers.length).toBeGreaterThanOrEqual(2);
});
