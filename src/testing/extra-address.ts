import { once } from 'node:events';
import { connect, createServer, type Socket } from 'node:net';
import { onTestFinished } from 'vitest';

/** Another address of a server. It forwards connections until a test cuts it. It ends with the test. */
export interface ExtraAddress {
  /** Refuses new connections and closes the open ones. */
  cut(): Promise<void>;
  /** The number of open connections, and of all connections so far. */
  readonly open: number;
  readonly used: number;
}

export async function openExtraAddress(
  host: string,
  port: number,
  to: { readonly host: string; readonly port: number },
): Promise<ExtraAddress> {
  const clients = new Set<Socket>();
  let used = 0;
  const listener = createServer((client) => {
    used++;
    clients.add(client);
    const server = connect(to);
    for (const [one, other] of [
      [client, server],
      [server, client],
    ] as const) {
      one.on('error', () => undefined).on('close', () => other.destroy());
      one.pipe(other);
    }
    client.on('close', () => clients.delete(client));
  }).listen(port, host);
  await once(listener, 'listening');
  const end = (): void => {
    listener.close();
    for (const client of clients) client.destroy();
  };
  onTestFinished(end);
  return {
    cut: async () => {
      const closed = once(listener, 'close');
      end();
      await closed;
    },
    get open() {
      return clients.size;
    },
    get used() {
      return used;
    },
  };
}
