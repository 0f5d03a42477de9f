import { chmod, lstat, rm } from 'node:fs/promises';
import { connect, type Server } from 'node:net';
import { errnoOf } from '#base/errno.ts';
import { StowageError } from '#core/errors.ts';

/** A host that means all addresses of this machine, IPv4 and IPv6. */
export const allAddresses = '*';

/** Parses `host:port`, `:port`, `[v6]:port` or a port. `whole`: the host of `:port`. Undefined: `none`. */
export function parseListen(
  text: string,
  defaultHost: typeof allAddresses | '127.0.0.1' = '127.0.0.1',
): { readonly host: string; readonly port: number } | undefined {
  if (text === 'none') return undefined;
  const match = /^(?:\[([0-9a-fA-F:.]+)\]|([A-Za-z0-9.-]*)):([0-9]{1,5})$/.exec(
    /^[0-9]{1,5}$/.test(text) ? `:${text}` : text,
  );
  const port = Number(match?.[3]);
  const emptyHostDefault = text.startsWith(':') ? defaultHost : '127.0.0.1';
  if (match !== null && port <= 65_535) return { host: match[1] ?? (match[2] || emptyHostDefault), port };
  throw new StowageError(`'${text}' is not a valid listen address`, {
    code: 'invalid',
    reason: 'listen-invalid',
    action: 'Use an address such as 127.0.0.1:7878 or [::1]:7878, or none.',
  });
}

async function startListening(server: Server, start: () => void): Promise<void> {
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  server.once('error', reject);
  server.once('listening', resolve);
  try {
    start();
    await promise;
  } finally {
    server.off('error', reject);
    server.off('listening', resolve);
  }
}

/** Returns the actual address: port 0 becomes the assigned port. */
export async function listenTcp(server: Server, at: { readonly host: string; readonly port: number }): Promise<string> {
  const isAll = at.host === allAddresses;
  try {
    // Without a host Node listens on IPv6 and IPv4, or on IPv4 alone if the machine has no IPv6.
    await startListening(server, () => (isAll ? server.listen(at.port) : server.listen(at.port, at.host)));
  } catch (cause) {
    const why = errnoOf(cause) ?? '';
    const where = isAll ? `port ${at.port} on all addresses` : `${at.host}:${at.port}`;
    if (why === 'EADDRINUSE') {
      throw new StowageError(`cannot listen on ${where}: the port is in use`, {
        code: 'conflict',
        reason: 'port-in-use',
        action:
          'Another program, perhaps another Stowage, uses it. Choose another port: stowage up --listen 127.0.0.1:7879, or none.',
        cause,
      });
    }
    throw new StowageError(`cannot listen on ${where}: ${why}`, {
      code: 'unavailable',
      reason: 'listen-failed',
      action: 'Choose an address of this host: stowage up --listen 127.0.0.1:7878',
      cause,
    });
  }
  const found = server.address();
  const { address, port } = typeof found === 'object' && found !== null ? found : { address: at.host, port: at.port };
  const host = isAll ? address : at.host;
  return `http://${host.includes(':') ? `[${host}]` : host}:${port}`;
}

export async function listenSocket(server: Server, path: string): Promise<void> {
  if (Buffer.byteLength(path) > 107) {
    throw new StowageError(`the socket path is too long: ${path}`, {
      code: 'invalid',
      reason: 'socket-path-long',
      action: 'Choose a path of at most 107 bytes: stowage up --socket PATH',
    });
  }
  if (await acceptsConnections(path)) {
    throw new StowageError(`another process already listens on ${path}`, {
      code: 'conflict',
      reason: 'socket-in-use',
      action:
        'It is probably another Stowage. Stop it, or use a separate state folder and socket: stowage up --state DIR --socket PATH --listen none',
    });
  }
  await removeStaleSocket(path);
  try {
    await startListening(server, () => {
      // The mode must be right from the start: bind() creates the file according to the umask. It binds before listen() returns,
      // so nothing else in this process sees the changed umask.
      const before = process.umask(0o177);
      try {
        server.listen(path);
      } finally {
        process.umask(before);
      }
    });
  } catch (cause) {
    const why = errnoOf(cause) ?? '';
    throw new StowageError(`cannot listen on ${path}: ${why}`, {
      code: 'denied',
      reason: 'listen-failed',
      action: 'Check that its folder exists and is writable, or choose another path: stowage up --socket PATH',
      cause,
    });
  }
  await chmod(path, 0o600);
}

/** Removes the socket of a process that was killed. */
async function removeStaleSocket(path: string): Promise<void> {
  const existing = await lstat(path).catch(() => undefined);
  if (existing === undefined) return;
  if (existing.isSocket()) return await rm(path, { force: true });
  throw new StowageError(`${path} exists and is not a socket`, {
    code: 'conflict',
    reason: 'socket-path-taken',
    action: 'Move the file away, or choose another path: stowage up --socket PATH',
  });
}

async function acceptsConnections(path: string): Promise<boolean> {
  const { promise, resolve } = Promise.withResolvers<boolean>();
  const socket = connect(path);
  socket.setTimeout(2_000, () => resolve(true));
  socket.once('connect', () => resolve(true));
  socket.once('error', () => resolve(false));
  const result = await promise;
  socket.destroy();
  return result;
}
