import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, globSync, openSync, readFileSync, rmdirSync } from 'node:fs';
import { mkdir, mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { promisify } from 'node:util';
import { onPath } from './component.ts';
import { slaveMounts } from './mount-namespace.ts';

const startDeadline = 30_000;
const stopDeadline = 20_000;
const commandDeadline = 120_000;

/** A Docker engine of the test's own: nothing of it is seen by, or sees, one that the machine may have. */
export interface Engine {
  readonly socket: string;
  /** Sockets put here are Docker plugins. */
  readonly plugins: string;
  /** Runs the client; gives what it printed, without the last newline. */
  docker(...args: readonly string[]): Promise<string>;
  /** Ends engine and containers, and removes all that they left. */
  [Symbol.asyncDispose](): Promise<void>;
}

// Network, mounts and processes are the engine's own and end with it. /run is empty and /etc a copy-on-write view, so
// that the key, the plugin folder and the sockets it insists on are not put on the machine.
const inside = [
  'set -e',
  'mount -t tmpfs -o mode=0755 stowage-run /run',
  'mkdir -p /run/docker/plugins',
  'mount --bind "$1/plugins" /run/docker/plugins',
  'mount -t overlay -o "lowerdir=/etc,upperdir=$1/etc,workdir=$1/etc-work" stowage-etc /etc',
  'ip link set lo up',
  'shift',
  'exec "$@"',
].join('\n');

export async function startDockerd(signal: AbortSignal): Promise<Engine> {
  const folder = await mkdtemp(join(tmpdir(), 'stowage-dockerd-'));
  for (const name of ['plugins', 'etc', 'etc-work', 'client', 'tmp']) await mkdir(join(folder, name));
  const socket = join(folder, 'docker.sock');
  const logFile = join(folder, 'log');
  const output = openSync(logFile, 'a');
  const namespaces = ['--net', '--pid', ...slaveMounts, '--mount-proc', '--fork', '--kill-child'];
  // The engine dies with the test process, even when that is killed.
  const args = [
    '--pdeathsig',
    'KILL',
    'unshare',
    ...namespaces,
    'sh',
    '-c',
    inside,
    'sh',
    folder,
    ...dockerd(folder, socket),
  ];
  // An engine that finds its containerd slow to answer has it write down its stacks among the temporary files.
  const env = { ...process.env, TMPDIR: join(folder, 'tmp') };
  const child = spawn(onPath('setpriv') ?? 'setpriv', args, { env, stdio: ['ignore', output, output] });
  closeSync(output);
  const ended = once(child, 'exit');
  const engine: Engine = {
    socket,
    plugins: join(folder, 'plugins'),
    docker: (...words) => client(folder, socket, words, signal),
    [Symbol.asyncDispose]: async () => {
      await stop(child.pid, ended);
      removeCgroups(basename(folder));
      await rm(folder, { recursive: true, force: true });
    },
  };
  try {
    const limit = AbortSignal.any([signal, AbortSignal.timeout(startDeadline)]);
    const early = ended.then(([code]) => Promise.reject(new Error(`dockerd ended with ${code}`)));
    await Promise.race([ready(engine, limit), early]);
  } catch (cause) {
    const log = await readFile(logFile, 'utf8');
    await engine[Symbol.asyncDispose]();
    throw new Error(`dockerd did not start:\n${log.slice(-2_000)}`, { cause });
  }
  return engine;
}

function dockerd(folder: string, socket: string): readonly string[] {
  return [
    onPath('dockerd') ?? 'dockerd',
    ...['--data-root', join(folder, 'root'), '--exec-root', join(folder, 'exec'), '--pidfile', join(folder, 'pid')],
    ...['--host', `unix://${socket}`, '--cgroup-parent', `/${basename(folder)}`],
    ...['--bridge', 'none', '--iptables=false', '--ip6tables=false', '--ip-forward=false', '--userland-proxy=false'],
  ];
}

async function client(folder: string, socket: string, words: readonly string[], signal: AbortSignal): Promise<string> {
  const { stdout } = await promisify(execFile)(onPath('docker') ?? 'docker', ['--host', `unix://${socket}`, ...words], {
    // Without the person's own contexts and credentials.
    env: { PATH: process.env['PATH'], DOCKER_CONFIG: join(folder, 'client') },
    maxBuffer: 16 * 1024 * 1024,
    signal,
    timeout: commandDeadline,
  });
  return stdout.trimEnd();
}

async function ready(engine: Engine, signal: AbortSignal): Promise<void> {
  for (;;) {
    try {
      await engine.docker('version', '--format', '{{.Server.Version}}');
      return;
    } catch {
      await delay(100, undefined, { signal });
    }
  }
}

/** First as the engine wants it, so that containers end in order; then their process namespace as a whole. */
async function stop(pid: number | undefined, ended: Promise<unknown>): Promise<void> {
  if (pid === undefined) return;
  const tell = (target: number, name: NodeJS.Signals): void => {
    try {
      process.kill(target, name);
    } catch {
      // It ended by itself.
    }
  };
  for (const inner of childrenOf(pid)) tell(inner, 'SIGTERM');
  const patience = new AbortController();
  const late = delay(stopDeadline, 'late' as const, { signal: patience.signal });
  if ((await Promise.race([ended, late.catch(() => undefined)])) === 'late') tell(pid, 'SIGKILL');
  patience.abort();
  await ended;
}

function childrenOf(pid: number): readonly number[] {
  try {
    const listed = readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8');
    return listed.split(' ').filter(Boolean).map(Number);
  } catch {
    return [];
  }
}

/** The kernel keeps empty groups; there is one tree per controller. */
function removeCgroups(name: string): void {
  const found = globSync([`/sys/fs/cgroup/${name}`, `/sys/fs/cgroup/*/${name}`]);
  const all = found.flatMap((top) => [top, ...globSync(`${top}/**/`).map((path) => path.replace(/\/$/, ''))]);
  for (const path of [...new Set(all)].sort((a, b) => b.length - a.length)) {
    try {
      rmdirSync(path);
    } catch {
      // Already gone with its container.
    }
  }
}
