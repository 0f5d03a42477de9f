import { isIP } from 'node:net';

/**
 * Where a connection starts. Without a port one is bound before connecting: a port that the system chooses while connecting may be shared with
 * connections to other servers, and could then not be bound again when this connection is lost.
 */
export function localEnd(
  host: string,
  localPort: number | undefined,
): { readonly localPort?: number; readonly localAddress?: string } {
  if (localPort !== undefined) return { localPort };
  const family = isIP(host);
  return family === 0 ? {} : { localAddress: family === 4 ? '0.0.0.0' : '::' };
}
