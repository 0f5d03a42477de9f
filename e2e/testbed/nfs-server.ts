import type { Daemon } from './daemon.ts';

/** A third-party NFS server that a test runs on loopback. */
export interface NfsServer extends AsyncDisposable {
  readonly host: string;
  readonly nfsPort: number;
  readonly mountPort: number;
  /** The process id. It changes with a `restart`. */
  readonly pid: number;
  /** Resolves when the server has stopped. The kernel still accepts connections, but nothing answers. */
  freeze(): Promise<void>;
  thaw(): void;
  /** Sends SIGTERM and waits for the end. */
  stop(): Promise<void>;
  kill(): Promise<void>;
  /** Kills the server if it runs, and starts it at the same address. */
  restart(): Promise<void>;
}

export async function nfsServer(
  address: Pick<NfsServer, 'host' | 'nfsPort' | 'mountPort'>,
  start: () => Promise<Daemon>,
  cleanUp: () => Promise<void>,
): Promise<NfsServer> {
  let daemon: Daemon;
  try {
    daemon = await start();
  } catch (cause) {
    await cleanUp();
    throw cause;
  }
  return {
    ...address,
    get pid() {
      return daemon.pid;
    },
    freeze: () => daemon.freeze(),
    thaw: () => daemon.thaw(),
    stop: () => daemon.stop(),
    kill: () => daemon.kill(),
    restart: async () => {
      await daemon.kill();
      daemon = await start();
    },
    [Symbol.asyncDispose]: async () => {
      await daemon.kill();
      await cleanUp();
    },
  };
}
