import { readFileSync } from 'node:fs';
import type { Socket } from 'node:net';

type ConnectionEnds = Pick<Socket, 'remoteAddress' | 'remotePort' | 'localPort'>;

/** The state ESTABLISHED. In all other states the kernel may report root as the owner. */
const established = '01';

/**
 * Whether a connection comes from a process of one of these users on this machine. The kernel reports the owners of both ends of a loopback
 * connection, so nothing that the client claims is needed.
 */
export function isFromUsers(uids: readonly number[], socket: ConnectionEnds, read = readTables): boolean {
  const port = portOf(socket.remotePort);
  const wanted = addressesOf(socket.remoteAddress ?? '').map((address) => `${address}:${port}`);
  const to = `:${portOf(socket.localPort)}`;
  const isConnectionOfUsers = (line: string): boolean => {
    // sl local_address rem_address st tx_queue:rx_queue tr:tm->when retrnsmt uid …
    const [, local = '', remote = '', state, , , , uid] = line.trim().split(/\s+/);
    return wanted.includes(local) && remote.endsWith(to) && state === established && uids.includes(Number(uid));
  };
  // Read twice: the kernel may skip a line of a long table while connections come and go.
  return read().some(isConnectionOfUsers) || read().some(isConnectionOfUsers);
}

function readTables(): string[] {
  return ['/proc/self/net/tcp', '/proc/self/net/tcp6'].flatMap((path) => {
    try {
      return readFileSync(path, 'latin1').split('\n');
    } catch {
      // This machine has no IPv6.
      return [];
    }
  });
}

const hex = (bytes: readonly number[]): string =>
  bytes.map((byte) => byte.toString(16).padStart(2, '0').toUpperCase()).join('');
const portOf = (port = 0): string => hex([port >> 8, port & 0xff]);

/** In the kernel's format: 32-bit words in host order, which is little-endian on all platforms of Node 24. */
function addressesOf(address: string): string[] {
  if (address === '::1') return [`${'0'.repeat(24)}01000000`];
  const bytes = address
    .replace(/^::ffff:/, '')
    .split('.')
    .map(Number)
    .reverse();
  return bytes.length === 4 ? [hex(bytes), `${'0'.repeat(16)}FFFF0000${hex(bytes)}`] : [];
}
