import type { Daemon } from './daemon.ts';

/** An NFS server that somebody else wrote, run by a test for itself on loopback. */
export interface NfsServer extends AsyncDisposable {
  readonly host: string;
  readonly nfsPort: number;
  readonly mountPort: number;
  /** Another one after `restart`. */
  readonly pid: number;
  /** Returns when it stands still: the kernel still takes connections, nobody answers on them. */
  freeze(): Promise<void>;
  thaw(): void;
  /** Asks it to end, and waits until it has. */
  stop(): Promise<void>;
  kill(): Promise<void>;
  /** Ends it if it runs, without asking, and starts it at the same address. */
  restart(): Promise<void>;
}

export async function nfsServer(
  where: Pick<NfsServer, 'host' | 'nfsPort' | 'mountPort'>,
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
    ...where,
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
