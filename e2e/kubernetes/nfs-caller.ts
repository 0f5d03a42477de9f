// Looks up directories by path on an NFS server, and prints the result of each path. Usage: node nfs-caller.ts CALL,
// where CALL is JSON.
import { systemClock } from '#base/clock.ts';
import { createRpcClient, MountError, mnt, mountProgram, mountVersion, RpcError } from '#wire/nfs3/index.ts';

export interface NfsCall {
  readonly host: string;
  readonly paths: readonly string[];
  /** Undefined: TLS is not used. */
  readonly tls?: { readonly servername: string; readonly ca: string; readonly cert?: string; readonly key?: string };
}

async function lookUp({ host, paths, tls }: NfsCall): Promise<Readonly<Record<string, string>>> {
  using rpc = createRpcClient({
    clock: systemClock(),
    addresses: [{ host, port: 2049 }],
    identity: { uid: 0, gid: 0, groups: [], machine: 'test' },
    dialRounds: 1,
    ...(tls === undefined ? {} : { tls: { options: tls, program: mountProgram, version: mountVersion } }),
  });
  const outcomes: Record<string, string> = {};
  for (const path of paths)
    outcomes[path] = await rpc.call(mnt, path, { deadlineMs: 20_000 }).then(
      () => 'mounted',
      (thrown: unknown) => {
        if (thrown instanceof MountError) return thrown.statusName ?? String(thrown);
        return thrown instanceof RpcError ? thrown.failure : String(thrown);
      },
    );
  return outcomes;
}

if (process.argv[1] === import.meta.filename)
  process.stdout.write(JSON.stringify(await lookUp(JSON.parse(process.argv[2] ?? ''))));
