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
 * A machine within this one: mounts, network and processes are its own and end with it, even when the test process is
 * killed. What is mounted here, where mounts are shared, is seen there; what is mounted there is not seen here.
 */
export interface Machine extends AsyncDisposable {
  /** The words to put before a program so that it runs there. It is a child of the first word's process. */
  readonly inside: readonly [string, ...string[]];
  /**
   * The same, but for its process id, which is one of this machine: the program is the process that was started, can be
   * signalled, and does not end with the machine. Its mounts are seen inside.
   */
  readonly beside: readonly [string, ...string[]];
}

// /run is empty, and /etc and /var/lib are copy-on-write views, so that keys, plugin folders, locks and sockets that
// programs insist on are not put on this machine. Slave and shared at once: it follows this machine, and containers that
// ask for it get a shared folder.
const setUp = [
  'set -e',
  'mount -t tmpfs -o mode=0755 stowage-run /run',
  'mount -t tmpfs -o mode=1777 stowage-shm /dev/shm',
  'for at in etc var/lib; do',
  '  top="$1/machine/$at"',
  '  mkdir -p "$top/upper" "$top/work"',
  '  mount -t overlay -o "lowerdir=/$at,upperdir=$top/upper,workdir=$top/work" "stowage-overlay" "/$at"',
  'done',
  // Of the view alone: a Stowage of this machine may run, and what changes below a view shows through it.
  'rm -rf /var/lib/stowage',
  'ip link set lo up',
  'mount --make-rshared /',
];
// The first process waits for all others: those whose parents ended are its children.
const hold = ['echo it is up', 'sleep infinity & wait'];

// A process of outside has no entry in the process table that is mounted inside.
const ownProc = 'mount --make-private /proc && mount -t proc proc /proc && exec "$@"';

export interface MachineOptions {
  /** Where it keeps what is its own, and that it is called by. */
  readonly folder: string;
  /** What else its first process does, as lines of shell; `$1` is the folder. */
  readonly more?: readonly string[];
  /** With control groups of its own, in which it sees nothing else. Whoever starts it removes them: `removeCgroups`. */
  readonly groups?: boolean;
}

export async function startMachine(options: MachineOptions, signal: AbortSignal): Promise<Machine> {
  const { folder, more = [], groups = false } = options;
  const own = join(folder, 'machine');
  await mkdir(own, { recursive: true });
  const namespaces = ['--net', '--pid', ...slaveMounts, '--mount-proc', '--fork', '--kill-child'];
  const last = [...more, ...hold];
  // The namespace's top is where its first process is at that moment.
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
    // The kernel ends all others before the first one is gone.
    [Symbol.asyncDispose]: () => endOf(outer, first),
  };
}

async function endOf(outer: Daemon, first: number): Promise<void> {
  if (childrenOf(outer.pid).includes(first)) process.kill(first, 'SIGKILL');
  await outer.ended;
}

/** A program inside, started from here, that tests stop, kill and start again. */
export interface MachineProcess {
  /** Tells it to end, and kills it when it does not. */
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

/** Runs a program inside to its end; gives what it printed, without the last newline. */
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
