import { execFile } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { systemClock } from '#base/clock.ts';
import { openExport, user } from '#testing/nfs-export.ts';
import { type Disturbance, type ReplayingProxyOptions, startReplayingProxy } from '#testing/replaying-proxy.ts';
import type { ResendNodes } from '#testing/resend-mutations.ts';
import { procedureOf } from '#testing/rpc-records.ts';
import { createNfsClient, type NfsClient } from '#wire/nfs3/client.ts';
import { createRpcClient, type RpcClientOptions } from '#wire/rpc/client.ts';
import type { Address } from '#wire/rpc/connection.ts';
import { pick } from '../crash/seeded-random.ts';

/** Clients of the guest's nfsd, and proxies in front of it. */

export const nfsd = { host: '127.0.0.1', port: 2049 } as const;
export const mountPort = 20_048;
export const secondAddress = { host: '127.0.0.3', source: '127.0.0.4' } as const;
const nfsdThreads = 8;

const exec = promisify(execFile);

export async function restartNfsd(): Promise<void> {
  const execOptions = { timeout: 60_000 };
  await exec('rpc.nfsd', ['0'], execOptions);
  await exec('rpc.nfsd', ['--no-udp', '--tcp', '--nfs-version', '3', String(nfsdThreads)], execOptions);
}

export interface TestDirectoryOptions {
  readonly stallMs?: number;
  readonly connections?: number;
  /** More addresses of the server for node A. */
  readonly moreAddresses?: readonly Address[];
}

/** A new directory of an export, and the two nodes that use it. */
export async function openTestDirectory(
  exported: string,
  { moreAddresses: more = [], ...options }: TestDirectoryOptions = {},
): Promise<ResendNodes & Disposable> {
  using opened = new DisposableStack();
  const { nfs: b, root } = opened.use(await openExport({ ...nfsd, nfsPort: nfsd.port, mountPort }, exported));
  const name = `work-${randomUUID()}`;
  const { handle: directory } = await b.mkdir(root, name, { mode: 0o755 });
  const proxy = opened.use(await startReplayingProxy(nfsd));
  const a = opened.use(connect({ ...options, addresses: [proxy, ...more] }));
  const resources = opened.move();
  return {
    proxy,
    a,
    b,
    directory,
    folder: join(exported, name),
    witnesses: root,
    [Symbol.dispose]: () => resources.dispose(),
  };
}

export function connect(
  options: Pick<RpcClientOptions, 'addresses'> & Partial<RpcClientOptions>,
): NfsClient & Disposable {
  const rpc = createRpcClient({ clock: systemClock(), identity: user(0), ...options });
  return Object.assign(createNfsClient(rpc, systemClock()), { [Symbol.dispose]: () => rpc.close() });
}

/** The procedures SETATTR, and WRITE to LINK. */
const changesData = (procedure: number): boolean => procedure === 2 || (procedure >= 7 && procedure <= 15);

export interface Disturbances extends ReplayingProxyOptions {
  readonly counts: Readonly<Record<Exclude<Disturbance, 'none'>, number>>;
}

/** Disturbs about one in eight calls that change something, and some other calls. */
export function disturbances(random: () => number, { late }: { readonly late: boolean }): Disturbances {
  const counts = { 'cut before the call': 0, 'lose the reply': 0, 'run the first copy late': 0 };
  const kinds = ['cut before the call', 'lose the reply', late ? 'run the first copy late' : 'lose the reply'] as const;
  return {
    counts,
    disturb: (call) => {
      const isChanging = changesData(procedureOf(call));
      if (random() > (isChanging ? 1 / 8 : 1 / 50)) return 'none';
      const kind = (isChanging ? pick(kinds, random) : undefined) ?? 'cut before the call';
      counts[kind]++;
      return kind;
    },
    lateMs: () => random() * 1500,
  };
}
