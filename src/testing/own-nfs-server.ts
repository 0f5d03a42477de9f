import { mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { onTestFinished } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { createNfsClient, type NfsClient } from '#wire/nfs3/client.ts';
import { mnt } from '#wire/nfs3/mount.ts';
import { createNfsServer, type NfsServer, type NfsServerOptions } from '#wire/nfs3/server/server.ts';
import type { FileHandle } from '#wire/nfs3/structures.ts';
import { createRpcClient, type RpcClient, type RpcClientOptions } from '#wire/rpc/client.ts';

export interface Mounted {
  readonly nfs: NfsClient;
  readonly rpc: RpcClient;
  readonly root: FileHandle;
}

export interface OwnServer {
  readonly server: NfsServer;
  /** The exported directory. Its siblings must not be reachable. */
  readonly directory: string;
  readonly outside: string;
  readonly errors: string[];
  rpc(options?: Partial<RpcClientOptions>): RpcClient;
  mount(options?: Partial<RpcClientOptions>): Promise<Mounted>;
  /** Starts a new server for the same export on the same port, as after a crash. */
  restart(options?: Partial<NfsServerOptions>): Promise<void>;
}

/** The credentials of a user and a group with the same id. */
export const runAs = (uid: number, ...groups: readonly number[]) => ({
  identity: { uid, gid: uid, groups, machine: 'test' },
});

/** Stowage's NFS server on a new folder. It ends with the test. */
export async function startOwnServer(options: Partial<NfsServerOptions> = {}): Promise<OwnServer> {
  const folder = mkdtempSync(join(tmpdir(), 'stowage-nfs-server-'));
  const [directory, outside] = [join(folder, 'exported'), join(folder, 'outside')];
  for (const path of [directory, outside]) mkdirSync(path);
  const clock = systemClock();
  const errors: string[] = [];
  const start = (more: Partial<NfsServerOptions>): Promise<NfsServer> =>
    createNfsServer({
      clock,
      directory,
      state: join(folder, 'state'),
      port: 0,
      path: '/',
      squash: 'none',
      onError: (what, cause) => errors.push(`${what}: ${cause}`),
      ...options,
      ...more,
    });
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
  const own = { server: await start({}) };
  // Vitest runs these callbacks in reverse order of their registration.
  onTestFinished(() => own.server.close());
  const rpc = (more: Partial<RpcClientOptions> = {}): RpcClient => {
    const { host, port } = own.server;
    const client = createRpcClient({ clock, addresses: [{ host, port }], ...runAs(process.getuid?.() ?? 0), ...more });
    onTestFinished(() => client.close());
    return client;
  };
  return {
    get server() {
      return own.server;
    },
    directory,
    outside,
    errors,
    rpc,
    mount: async (more) => {
      const client = rpc(more);
      const { handle } = await client.call(mnt, options.path ?? '/');
      return { rpc: client, nfs: createNfsClient(client, clock), root: handle };
    },
    restart: async (more = {}) => {
      const { port } = own.server;
      await own.server.close();
      own.server = await start({ port, ...more });
    },
  };
}
