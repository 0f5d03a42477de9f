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

const stopTimeoutMs = 20_000;
const runTimeoutMs = 60_000;

/**
 * A machine within this one, in mount, network and PID namespaces of its own. It ends with the test process, even if
 * that is killed. It sees mounts of this machine where mounts are shared; this machine does not see the mounts of the
 * other one.
 */
export interface Machine extends AsyncDisposable {
  /** A command prefix that runs a program in the machine, as a child process of the prefix. */
  readonly inside: readonly [string, ...string[]];
  /**
   * Like `inside`, but in the PID namespace of this machine: the program is the spawned process itself, can receive
   * signals, and does not end with the machine. The machine sees mounts of the program.
   */
  readonly beside: readonly [string, ...string[]];
}

// /run is empty, and /etc and /var/lib are copy-on-write views, so that keys, plugin folders, locks and sockets of
// programs do not end up on this machine. Mounts are both slave and shared: they follow this machine, and containers
// can request a shared folder.
const setUpLines = [
  'set -e',
  'mount -t tmpfs -o mode=0755 stowage-run /run',
  'mount -t tmpfs -o mode=1777 stowage-shm /dev/shm',
  'for at in etc var/lib; do',
  '  top="$1/machine/$at"',
  '  mkdir -p "$top/upper" "$top/work"',
  '  mount -t overlay -o "lowerdir=/$at,upperdir=$top/upper,workdir=$top/work" "stowage-overlay" "/$at"',
  'done',
  // Removes the folder from the view only. A Stowage on this machine may be running, and its changes would show through
  // the view.
  'rm -rf /var/lib/stowage',
  'ip link set lo up',
  'mount --make-rshared /',
];
// Process 1 adopts orphans and must reap them.
const holdLines = ['echo it is up', 'sleep infinity & wait'];

// A process from outside does not appear in the mounted /proc of the PID namespace.
const mountOwnProc = 'mount --make-private /proc && mount -t proc proc /proc && exec "$@"';

export interface MachineOptions {
  /** The folder of the machine's files. Its path also identifies the machine. */
  readonly folder: string;
  /** More shell lines for process 1 of the machine. `$1` is the folder. */
  readonly more?: readonly string[];
  /** Whether the machine has its own cgroups and sees no others. The caller removes them with `removeCgroups`. */
  readonly groups?: boolean;
}

export async function startMachine(options: MachineOptions, signal: AbortSignal): Promise<Machine> {
  const { folder, more = [], groups = false } = options;
  const logFolder = join(folder, 'machine');
  await mkdir(logFolder, { recursive: true });
  const namespaces = ['--net', '--pid', ...slaveMounts, '--mount-proc', '--fork', '--kill-child'];
  const last = [...more, ...holdLines];
  // The root of a cgroup namespace is the group of its first process at the time of its creation.
  const script = groups
    ? [...setUpLines, ...joinCgroup, 'exec unshare --cgroup sh -c "$2" sh "$1"']
    : [...setUpLines, ...last];
  const rest = groups ? [['set -e', ...remountOwnCgroups, ...last].join('\n')] : [];
  const outer = await startDaemon({
    command: [onPath('unshare') ?? 'unshare', ...namespaces, 'sh', '-c', script.join('\n'), 'sh', folder, ...rest],
    logFile: join(logFolder, 'log'),
    isReady: (log) => log.includes('it is up'),
    signal,
  });
  const [first] = childrenOf(outer.pid);
  if (first === undefined) throw new Error('the first process of the machine has ended');
  const enterCommand = [onPath('nsenter') ?? 'nsenter', '--target', `${first}`, '--net', '--mount'] as const;
  return {
    inside: [
      ...enterCommand,
      '--pid',
      ...(groups ? ['--cgroup', '--', 'sh', '-c', enterCgroupNamespace, 'sh'] : ['--']),
    ],
    beside: [...enterCommand, '--', 'unshare', '--mount', '--propagation', 'unchanged', 'sh', '-c', mountOwnProc, 'sh'],
    // The kernel kills all other processes before process 1 is gone.
    [Symbol.asyncDispose]: () => waitForEnd(outer, first),
  };
}

async function waitForEnd(outer: Daemon, first: number): Promise<void> {
  if (childrenOf(outer.pid).includes(first)) process.kill(first, 'SIGKILL');
  await outer.ended;
}

/** A program inside the machine that tests can stop, kill and restart. */
export interface MachineProcess {
  /** Sends SIGTERM, and later SIGKILL if the program does not end. */
  stop(): Promise<void>;
  kill(): Promise<void>;
}

export async function startInside(
  machine: Machine,
  options: Omit<Parameters<typeof startDaemon>[0], 'command'> & { readonly command: readonly string[] },
): Promise<MachineProcess> {
  const outer = await startDaemon({ ...options, command: [...machine.inside, ...options.command] });
  const signalChildren = (name: NodeJS.Signals): void => {
    for (const pid of childrenOf(outer.pid)) process.kill(pid, name);
  };
  const kill = async (): Promise<void> => {
    signalChildren('SIGKILL');
    await outer.ended;
  };
  return {
    kill,
    stop: async () => {
      signalChildren('SIGTERM');
      const timer = new AbortController();
      const killAfterTimeout = delay(stopTimeoutMs, undefined, { signal: timer.signal }).then(kill, () => undefined);
      await outer.ended;
      timer.abort();
      await killAfterTimeout;
    },
  };
}

/** Runs a program inside the machine to its end. Returns its output without the last newline. */
export async function runInside({ inside }: Pick<Machine, 'inside'>, ...words: readonly string[]): Promise<string> {
  const [file, ...args] = inside;
  return (await promisify(execFile)(file, [...args, ...words], { timeout: runTimeoutMs })).stdout.trimEnd();
}

function childrenOf(pid: number): readonly number[] {
  try {
    const children = readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8');
    return children.split(' ').filter(Boolean).map(Number);
  } catch {
    return [];
  }
}
