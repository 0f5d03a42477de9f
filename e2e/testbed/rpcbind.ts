import { execFile } from 'node:child_process';
import { randomBytes, randomInt } from 'node:crypto';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { type Component, commandFailure, missingPrograms } from './component.ts';
import { type Daemon, startDaemon } from './daemon.ts';
import { type GaneshaOptions, ganeshaDaemon, quietEnvironment } from './ganesha.ts';
import { slaveMounts } from './mount-namespace.ts';
import { type NfsServer, nfsServer } from './nfs-server.ts';

const programs = ['rpcbind', 'rpcinfo', 'ip', 'unshare', 'nsenter'];

/** rpcbind listens on every address and has only one set of services, so it needs a network of its own. */
export const rpcbind: Component = {
  what: 'rpcbind, and a network of its own for it',
  probe: () =>
    missingPrograms(...programs) ??
    commandFailure('unshare', ['--net', 'ip', 'link', 'add', 'stowage-a', 'type', 'veth', 'peer', 'name', 'stowage-b']),
  command: 'npm run testbed, as root',
  packages: () => (missingPrograms(...programs) === undefined ? [] : ['rpcbind', 'iproute2', 'util-linux']),
};

// $1 names the outer end of the veth pair, $2 is the process whose network gets it, $3 and $4 are the addresses of the
// outer and inner end. The shell stays, because rpcbind changes its user and would then not be notified of the test's
// end.
const innerScript = [
  'set -e',
  'mount -t tmpfs -o mode=0755 stowage-run /run',
  'ip link set lo up',
  // This shell is process 1 of its PID namespace.
  'nsenter "--net=/proc/$2/ns/net" ip link add "$1" type veth peer name eth0 netns 1',
  'ip address add "$4/30" dev eth0',
  'ip link set eth0 up',
  'nsenter "--net=/proc/$2/ns/net" ip address add "$3/30" dev "$1"',
  'nsenter "--net=/proc/$2/ns/net" ip link set "$1" up',
  'rpcbind -f &',
  'until rpcinfo -p 127.0.0.1; do sleep 0.05; done',
  'echo rpcbind is there',
  'wait',
].join('\n');

/** Starts nfs-ganesha on a host of its own, whose rpcbind on port 111 knows the ports of MOUNT and NFS. Needs root. */
export async function startGaneshaWithRpcbind({ exports, signal }: GaneshaOptions): Promise<NfsServer> {
  const folder = await mkdtemp(join(tmpdir(), 'stowage-rpcbind-'));
  const link = `stowage-${randomBytes(3).toString('hex')}`;
  const net = `198.18.${randomInt(256)}.${randomInt(64) * 4}`;
  const [outerAddress, host] = [1, 2].map((n) => net.replace(/\d+$/, (last) => `${Number(last) + n}`)) as [
    string,
    string,
  ];
  const namespaces = ['--net', '--pid', ...slaveMounts, '--fork', '--kill-child'];
  let network: Daemon | undefined;
  const cleanUp = async (): Promise<void> => {
    // The kernel would remove the interface by itself, but later.
    await promisify(execFile)('ip', ['link', 'delete', link], { timeout: 10_000 }).catch(() => undefined);
    await network?.kill();
    await rm(folder, { recursive: true, force: true });
  };
  const start = async (): Promise<Daemon> => {
    network ??= await startDaemon({
      command: ['unshare', ...namespaces, 'sh', '-c', innerScript, 'sh', link, `${process.pid}`, outerAddress, host],
      logFile: join(folder, 'rpcbind.log'),
      isReady: (log) => log.includes('rpcbind is there'),
      signal,
    });
    const enter = ['net', 'mnt'].map((kind) => `--${kind === 'mnt' ? 'mount' : kind}=/proc/${network?.pid}/ns/${kind}`);
    const listen = { host: '0.0.0.0', nfsPort, mountPort };
    return await ganeshaDaemon({
      folder,
      exports,
      listen,
      signal,
      env: quietEnvironment(folder),
      commandPrefix: ['nsenter', ...enter, '--'],
    });
  };
  return await nfsServer({ host, nfsPort, mountPort }, start, cleanUp);
}

/** Not the default ports, so that only a client that asked rpcbind finds them. */
const [nfsPort, mountPort] = [20_490, 20_480];
