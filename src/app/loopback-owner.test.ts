import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { connect, createServer, type Socket } from 'node:net';
import { describe, expect, onTestFinished, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { asOrdinaryUser } from '#testbed/ordinary-user.ts';
import { isFromUsers } from './loopback-owner.ts';

const own = process.getuid?.() ?? 0;

/** The server's side of a connection. */
async function accepted(host: string, call: (port: number) => void): Promise<Socket> {
  const server = createServer().listen(0, host);
  onTestFinished(() => void server.close());
  await once(server, 'listening');
  call((server.address() as { readonly port: number }).port);
  const [socket] = (await once(server, 'connection')) as [Socket];
  onTestFinished(() => void socket.destroy());
  return socket;
}

describe.skipIf(lacks('linux'))('the owner of a loopback connection', () => {
  const expectOwnerReported = async (host: string): Promise<void> => {
    const socket = await accepted(host, (port) => {
      const caller = connect(port, host);
      onTestFinished(() => void caller.destroy());
    });
    expect(isFromUsers([own], socket)).toBe(true);
    expect(isFromUsers([own + 1], socket)).toBe(false);
  };
  test.each(['127.0.0.1', '127.8.9.10'])('is reported by the kernel: %s', expectOwnerReported);
  test.skipIf(lacks('ipv6')).each(['::1', '::ffff:127.0.0.1'])('is reported by the kernel: %s', expectOwnerReported);

  test('is unknown, and not root, once the connection is closed', async () => {
    const { promise: closed, resolve } = Promise.withResolvers<void>();
    const socket = await accepted('127.0.0.1', (port) => {
      const caller = connect(port, '127.0.0.1', () => caller.end('too late', resolve));
      onTestFinished(() => void caller.destroy());
    });
    await closed;
    expect(isFromUsers([own, 0], socket)).toBe(false);
  });
});

describe.skipIf(lacks('linux', 'root', 'ordinary-user'))('another user', () => {
  test('is not one of our users', async () => {
    const socket = await accepted('127.0.0.1', (port) => {
      const calling = `require('node:net').connect(${port}, '127.0.0.1')`;
      const [file, args] = asOrdinaryUser([process.execPath, '--eval', calling]);
      const child = spawn(file, args, { stdio: 'ignore' });
      onTestFinished(() => void child.kill());
    });
    expect(isFromUsers([0], socket)).toBe(false);
    expect(isFromUsers([65_534], socket)).toBe(true);
  });
});

describe('the table of connections', () => {
  const socket = { remoteAddress: '127.0.0.1', remotePort: 0x365, localPort: 0x504b };
  const line = (local: string, remote: string, state: string, uid: number): string =>
    `  66: ${local} ${remote} ${state} 00000000:00000000 00:00000000 00000000  ${uid}        0 1633881 2 00000000 20 0`;
  const ours = '0100007F:0365';
  const server = '0100007F:504B';

  test.each([
    ["the client's end of the connection", line(ours, server, '01', 7), true],
    ["the server's end of the connection", line(server, ours, '01', 7), false],
    ['another port', line('0100007F:0366', server, '01', 7), false],
    ['another address', line('0200007F:0365', server, '01', 7), false],
    ['another server', line(ours, '0100007F:504C', '01', 7), false],
    ['another user', line(ours, server, '01', 8), false],
    ['a connection in TIME_WAIT', line(ours, server, '06', 7), false],
    ['a connection through a dual-stack socket', line(mapped(ours), mapped(server), '01', 7), true],
  ])('%s', (_what, row, expected) => {
    expect(isFromUsers([7], socket, () => ['  sl  local_address rem_address', row, ''])).toBe(expected);
  });

  test('a line that the first read skipped is found by the second', () => {
    const reads = [[], [line(ours, server, '01', 7)]];
    expect(isFromUsers([7], socket, () => reads.shift() ?? [])).toBe(true);
  });
});

function mapped(address: string): string {
  return `0000000000000000FFFF0000${address}`;
}
