import { isIP } from 'node:net';

/**
 * The local end of a connection. If no port is given, bind a free one before connecting: a port that the kernel chooses during connect(2) may
 * be shared with connections to other servers, and then cannot be bound again after this connection is lost.
 */
export function localAddressOptions(
  host: string,
  localPort: number | undefined,
): { readonly localPort?: number; readonly localAddress?: string } {
  if (localPort !== undefined) return { localPort };
  const family = isIP(host);
  return family === 0 ? {} : { localAddress: family === 4 ? '0.0.0.0' : '::' };
}
