import { systemClock } from '#base/clock.ts';
import { createNfsClient, type NfsClient } from '#wire/nfs3/client.ts';
import { mnt } from '#wire/nfs3/mount.ts';
import type { FileHandle } from '#wire/nfs3/structures.ts';
import { createRpcClient, type RpcClient, type RpcClientOptions } from '#wire/rpc/client.ts';
import type { Identity } from '#wire/rpc/message.ts';

/** An export of an NFS server that Stowage's own client has mounted. */
export interface OpenExport extends Disposable {
  readonly nfs: NfsClient;
  readonly rpc: RpcClient;
  readonly root: FileHandle;
}

export interface NfsAddress {
  readonly host: string;
  readonly nfsPort: number;
  readonly mountPort: number;
}

export const user = (uid: number, gid = uid, groups: readonly number[] = []): Identity => ({
  uid,
  gid,
  groups,
  machine: 'stowage-test',
});

export function rpcTo(
  host: string,
  port: number,
  options: Partial<Omit<RpcClientOptions, 'addresses'>> = {},
): RpcClient & Disposable {
  const rpc = createRpcClient({ clock: systemClock(), addresses: [{ host, port }], deadlineMs: 20_000, ...options });
  return Object.assign(rpc, { [Symbol.dispose]: () => rpc.close() });
}

export async function openExport(
  server: NfsAddress,
  path: string,
  options: Partial<Omit<RpcClientOptions, 'addresses'>> = {},
): Promise<OpenExport> {
  const rpcOptions = { identity: user(0), ...options };
  using mounting = rpcTo(server.host, server.mountPort, rpcOptions);
  const { handle: root } = await mounting.call(mnt, path);
  const rpc = rpcTo(server.host, server.nfsPort, rpcOptions);
  return { rpc, root, nfs: createNfsClient(rpc, systemClock()), [Symbol.dispose]: () => rpc.close() };
}
