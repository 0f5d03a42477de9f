import type { Socket } from 'node:net';

/** Inside of Node's sockets, and not documented: the system's number of the connection, where it has one. */
export function descriptorOf(socket: Socket): number | undefined {
  const { _handle } = socket as unknown as { readonly _handle?: { readonly fd?: number } | null };
  return _handle?.fd !== undefined && _handle.fd >= 0 ? _handle.fd : undefined;
}
