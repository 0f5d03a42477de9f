import type { Socket } from 'node:net';

/** An undocumented internal of Node's sockets: the descriptor of the connection. Undefined: it has none. */
export function descriptorOf(socket: Socket): number | undefined {
  const { _handle } = socket as unknown as { readonly _handle?: { readonly fd?: number } | null };
  return _handle?.fd !== undefined && _handle.fd >= 0 ? _handle.fd : undefined;
}
