import { readFileSync } from 'node:fs';
import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { cachedBuild, repository } from '#testbed/component.ts';
import type { Daemon } from '#testbed/daemon.ts';
import { ganeshaDaemon, quietEnvironment } from '#testbed/ganesha.ts';
import type { Cluster } from '#testbed/kubernetes/cluster.ts';
import { addresses } from '#testbed/kubernetes/network.ts';
import { digest } from '#testbed/rootfs.ts';

/** An NFS server that nodes can reach, on the address of the control plane. */
export interface Filer extends AsyncDisposable, Pick<Daemon, 'freeze' | 'thaw'> {
  /** The URI of a store on the server. */
  readonly uri: string;
  /** The URI and options for the spec of a Store object. */
  readonly spec: { readonly uri: string; readonly options: Readonly<Record<string, string>> };
  /** The exported folder on this machine. */
  readonly exported: string;
}

const [nfsPort, mountPort] = [20_490, 20_480];

const preload = (): string => {
  const source = join(repository, 'e2e', 'testbed', 'ganesha', 'preload.c');
  return cachedBuild('ganesha-preload', digest(readFileSync(source, 'utf8')), 'preload.so').tool();
};

/** Starts the server. It ends with the cluster at the latest. `folder` holds all its files. */
export async function startFiler(
  cluster: Cluster,
  signal: AbortSignal,
  folder = join(cluster.folder, 'filer'),
): Promise<Filer> {
  const exported = join(folder, 'export');
  await mkdir(exported, { recursive: true });
  const lines = readFileSync('/proc/self/mounts', 'utf8').split('\n');
  // The export is on the root file system of this machine, on /tmp, or in memory.
  const mounts = lines.filter((line) => ['/', '/tmp', '/dev/shm'].includes(line.split(' ')[1] ?? ''));
  await writeFile(join(folder, 'mounts'), `${mounts.join('\n')}\n`);
  const daemon = await ganeshaDaemon({
    folder,
    signal,
    commandPrefix: cluster.network.inside,
    exports: [{ path: exported, tag: '/export', squash: 'none' }],
    listen: { host: addresses.controlPlane, nfsPort, mountPort },
    env: { ...quietEnvironment(folder), LD_PRELOAD: preload(), STOWAGE_MOUNTS: join(folder, 'mounts') },
  });
  const baseUri = `nfs://${addresses.controlPlane}${exported}`;
  const options = { port: String(nfsPort), mountport: String(mountPort) };
  return {
    exported,
    uri: `${baseUri}?${new URLSearchParams(options)}`,
    spec: { uri: baseUri, options },
    freeze: daemon.freeze,
    thaw: daemon.thaw,
    [Symbol.asyncDispose]: () => daemon.kill(),
  };
}
