import { execFile } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { promisify } from 'node:util';
import { onPath } from './component.ts';
import { type Daemon, startDaemon } from './daemon.ts';
import { slaveMounts } from './mount-namespace.ts';
import { enterCgroupNamespace, joinCgroup, remountOwnCgroups } from './own-cgroups.ts';

const stopDeadline = 20_000;
const runDeadline = 60_000;

/**
 * A machine within this one, in its own mount, network and PID namespaces. It ends with the test process, even if that is
 * killed. It sees mounts of this machine where mounts are shared; this machine does not see its mounts.
 */
export interface Machine extends AsyncDisposable {
  /** A command prefix that runs a program in it, as a child of the prefix's process. */
  readonly inside: readonly [string, ...string[]];
  /**
   * The same, but in the PID namespace of this machine: the program is the spawned process itself, can be signalled, and does not end
   * with the machine. The machine sees its mounts.
   */
  readonly beside: readonly [string, ...string[]];
}

// /run is empty, and /etc and /var/lib are copy-on-write views, so the keys, plugin folders, locks and sockets of
// programs do not end up on this machine. Mounts are slave and shared at once: they follow this machine, and containers can
// request a shared folder.
const setUp = [
  'set -e',
  'mount -t tmpfs -o mode=0755 stowage-run /run',
  'mount -t tmpfs -o mode=1777 stowage-shm /dev/shm',
  'for at in etc var/lib; do',
  '  top="$1/machine/$at"',
  '  mkdir -p "$top/upper" "$top/work"',
  '  mount -t overlay -o "lowerdir=/$at,upperdir=$top/upper,workdir=$top/work" "stowage-overlay" "/$at"',
  'done',
  // Removes it from the view only. A Stowage on this machine may run, and its changes would show through the view.
  'rm -rf /var/lib/stowage',
  'ip link set lo up',
  'mount --make-rshared /',
];
// Process 1 adopts orphans and must wait for them.
const hold = ['echo it is up', 'sleep infinity & wait'];

// A process from outside is not in the mounted /proc of the PID namespace.
const ownProc = 'mount --make-private /proc && mount -t proc proc /proc && exec "$@"';

export interface MachineOptions {
  /** The folder of its files. Its path also identifies the machine. */
  readonly folder: string;
  /** More shell lines for its process 1; `$1` is the folder. */
  readonly more?: readonly string[];
  /** With its own cgroups, in which it sees no others. The caller removes them with `removeCgroups`. */
  readonly groups?: boolean;
}

export async function startMachine(options: MachineOptions, signal: AbortSignal): Promise<Machine> {
  const { folder, more = [], groups = false } = options;
  const own = join(folder, 'machine');
  await mkdir(own, { recursive: true });
  const namespaces = ['--net', '--pid', ...slaveMounts, '--mount-proc', '--fork', '--kill-child'];
  const last = [...more, ...hold];
  // The root of a cgroup namespace is the group of its first process at that moment.
  const script = groups ? [...setUp, ...joinCgroup, 'exec unshare --cgroup sh -c "$2" sh "$1"'] : [...setUp, ...last];
  const rest = groups ? [['set -e', ...remountOwnCgroups, ...last].join('\n')] : [];
  const outer = await startDaemon({
    command: [onPath('unshare') ?? 'unshare', ...namespaces, 'sh', '-c', script.join('\n'), 'sh', folder, ...rest],
    logFile: join(own, 'log'),
    isReady: (log) => log.includes('it is up'),
    signal,
  });
  const [first] = childrenOf(outer.pid);
  if (first === undefined) throw new Error('the first process of the machine has ended');
  const enter = [onPath('nsenter') ?? 'nsenter', '--target', `${first}`, '--net', '--mount'] as const;
  return {
    inside: [...enter, '--pid', ...(groups ? ['--cgroup', '--', 'sh', '-c', enterCgroupNamespace, 'sh'] : ['--'])],
    beside: [...enter, '--', 'unshare', '--mount', '--propagation', 'unchanged', 'sh', '-c', ownProc, 'sh'],
    // The kernel kills all other processes before process 1 is gone.
    [Symbol.asyncDispose]: () => endOf(outer, first),
  };
}

async function endOf(outer: Daemon, first: number): Promise<void> {
  if (childrenOf(outer.pid).includes(first)) process.kill(first, 'SIGKILL');
  await outer.ended;
}

/** A program inside that tests can stop, kill and restart. */
export interface MachineProcess {
  /** Sends SIGTERM, and SIGKILL if it does not end. */
  stop(): Promise<void>;
  kill(): Promise<void>;
}

export async function startInside(
  machine: Machine,
  options: Omit<Parameters<typeof startDaemon>[0], 'command'> & { readonly command: readonly string[] },
): Promise<MachineProcess> {
  const outer = await startDaemon({ ...options, command: [...machine.inside, ...options.command] });
  const tell = (name: NodeJS.Signals): void => {
    for (const pid of childrenOf(outer.pid)) process.kill(pid, name);
  };
  const kill = async (): Promise<void> => {
    tell('SIGKILL');
    await outer.ended;
  };
  return {
    kill,
    stop: async () => {
      tell('SIGTERM');
      const patience = new AbortController();
      const late = delay(stopDeadline, undefined, { signal: patience.signal }).then(kill, () => undefined);
      await outer.ended;
      patience.abort();
      await late;
    },
  };
}

/** Runs a program inside to its end. Returns its output without the last newline. */
export async function runInside({ inside }: Pick<Machine, 'inside'>, ...words: readonly string[]): Promise<string> {
  const [file, ...args] = inside;
  return (await promisify(execFile)(file, [...args, ...words], { timeout: runDeadline })).stdout.trimEnd();
}

function childrenOf(pid: number): readonly number[] {
  try {
    const listed = readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8');
    return listed.split(' ').filter(Boolean).map(Number);
  } catch {
    return [];
  }
}
