import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { connect, createServer, type Socket } from 'node:net';
import { describe, expect, onTestFinished, test } from 'vitest';
import { needs } from '#testbed/needs.ts';
import { asOrdinaryUser } from '#testbed/ordinary-user.ts';
import { isFrom } from './own-callers.ts';

const own = process.getuid?.() ?? 0;

/** The other end of a connection that somebody made to us. */
async function accepted(host: string, call: (port: number) => void): Promise<Socket> {
  const server = createServer().listen(0, host);
  onTestFinished(() => void server.close());
  await once(server, 'listening');
  call((server.address() as { readonly port: number }).port);
  const [socket] = (await once(server, 'connection')) as [Socket];
  onTestFinished(() => void socket.destroy());
  return socket;
}

describe.skipIf(needs('linux'))('who connects over loopback', () => {
  const isTold = async (host: string): Promise<void> => {
    const socket = await accepted(host, (port) => {
      const caller = connect(port, host);
      onTestFinished(() => void caller.destroy());
    });
    expect(isFrom([own], socket)).toBe(true);
    expect(isFrom([own + 1], socket)).toBe(false);
  };
  test.each(['127.0.0.1', '127.8.9.10'])('is told by the kernel: %s', isTold);
  test.skipIf(needs('ipv6')).each(['::1', '::ffff:127.0.0.1'])('is told by the kernel: %s', isTold);

  test('whose connection is over is nobody, and not root', async () => {
    const { promise: closed, resolve } = Promise.withResolvers<void>();
    const socket = await accepted('127.0.0.1', (port) => {
      const caller = connect(port, '127.0.0.1', () => caller.end('too late', resolve));
      onTestFinished(() => void caller.destroy());
    });
    await closed;
    expect(isFrom([own, 0], socket)).toBe(false);
  });
});

describe.skipIf(needs('linux', 'root', 'ordinary-user'))('another user', () => {
  test('is not us', async () => {
    const socket = await accepted('127.0.0.1', (port) => {
      const calling = `require('node:net').connect(${port}, '127.0.0.1')`;
      const [file, args] = asOrdinaryUser([process.execPath, '--eval', calling]);
      const child = spawn(file, args, { stdio: 'ignore' });
      onTestFinished(() => void child.kill());
    });
    expect(isFrom([0], socket)).toBe(false);
    expect(isFrom([65_534], socket)).toBe(true);
  });
});

describe('the table of connections', () => {
  const socket = { remoteAddress: '127.0.0.1', remotePort: 0x365, localPort: 0x504b };
  const line = (local: string, remote: string, state: string, uid: number): string =>
    `  66: ${local} ${remote} ${state} 00000000:00000000 00:00000000 00000000  ${uid}        0 1633881 2 00000000 20 0`;
  const ours = '0100007F:0365';
  const server = '0100007F:504B';

  test.each([
    ['the caller', line(ours, server, '01', 7), true],
    ['our own end', line(server, ours, '01', 7), false],
    ['another port', line('0100007F:0366', server, '01', 7), false],
    ['another address', line('0200007F:0365', server, '01', 7), false],
    ['another server', line(ours, '0100007F:504C', '01', 7), false],
    ['another user', line(ours, server, '01', 8), false],
    ['one that waits for its end', line(ours, server, '06', 7), false],
    ['through a socket for both kinds of addresses', line(mapped(ours), mapped(server), '01', 7), true],
  ])('%s', (_what, row, expected) => {
    expect(isFrom([7], socket, () => ['  sl  local_address rem_address', row, ''])).toBe(expected);
  });

  test('a line that was passed over at first is found', () => {
    const reads = [[], [line(ours, server, '01', 7)]];
    expect(isFrom([7], socket, () => reads.shift() ?? [])).toBe(true);
  });
});

function mapped(address: string): string {
  return `0000000000000000FFFF0000${address}`;
}
