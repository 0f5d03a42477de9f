import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, constants, mkdirSync, openSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { type Clock, systemClock } from '#base/clock.ts';
import type { MountSpec } from '#datapath/mount-spec.ts';
import type { KeeperClient } from '#keeper/keeper-client.ts';
import { dataPathFlags } from '#keeper/node-flags.ts';
import type { KeeperState } from '#keeper/protocol.ts';
import type { StartedKeeper } from '#keeper/start-keeper.ts';
import { startUnmountWatchdog } from './fuse-mount.ts';
import { createKeeperFixture, eventually } from './keeper/keeper-process.ts';
import { type NfsAddress, openExport } from './nfs-export.ts';
import { createScratchFolder } from './scratch-folder.ts';

const run = promisify(execFile);
/** The maximum length of log text in an error. */
const shownLog = 20_000;
const sources = join(import.meta.dirname, '..', 'datapath', 'main.ts');

/** The NFS server and directory of a mount. */
export interface Source {
  readonly host: string;
  readonly port: number;
  /** The file handle of a directory, in base64. */
  readonly root: string;
}

export interface KeeperMount {
  readonly at: string;
  on(name: string): string;
  /** Aborts the mount and fails all waiting requests, as the agent does when no process serves it. */
  abort(): Promise<void>;
  /** Flushes all dirty data to the server's disk within that time. Returns how many files are incomplete there. */
  flush(ms: number): Promise<number>;
  /** The number of requests in the kernel without an answer. */
  waiting(): Promise<number>;
}

/** Mounts as in production: a keeper, a serving data path, and a standby. */
export interface KeeperMounts extends AsyncDisposable {
  readonly folder: string;
  mount(source: Source, options?: Partial<MountSpec>): Promise<KeeperMount>;
  /**
   * Resolves when one data path serves and one is on standby. If a data path died often, the state is `failing`,
   * although one serves.
   */
  ready(): Promise<KeeperState>;
  /** Sends SIGKILL to the serving data path. Resolves when another one serves. */
  killDataPath(): Promise<void>;
  /** Stops the data path with SIGSTOP, which the keeper detects. Resolves when another one serves. */
  hangDataPath(): Promise<void>;
  upgrade(): Promise<void>;
  /** Starts a new keeper, which takes over all descriptors. */
  replaceKeeper(): Promise<void>;
  /** Sends SIGKILL to the keeper. The data path hands all descriptors to the next one. */
  killKeeper(): Promise<void>;
  readonly keeper: StartedKeeper;
  /** The logs of keepers and data paths. */
  log(): string;
}

export interface KeeperMountOptions {
  /** A command prefix that runs another command in another network namespace. */
  readonly enter?: readonly string[];
  /** The program of the data path. */
  readonly program?: string;
  /** Prefix of the folder's name. The path of a socket has at most 107 characters. */
  readonly prefix?: string;
  /** The limit for starting a keeper and for reaching a state. An emulated machine needs more than the default. */
  readonly limitMs?: number;
}

export async function startKeeperMounts(options: KeeperMountOptions = {}): Promise<KeeperMounts> {
  const { enter = [], program = sources, prefix, limitMs } = options;
  const scratch = createScratchFolder(prefix);
  const keepers = createKeeperFixture();
  const { signal } = keepers;
  const start = (): Promise<StartedKeeper> =>
    keepers.startKeeper({ program, enter, flags: dataPathFlags, clock: clockFor(limitMs) }).catch((cause: unknown) => {
      // The error quotes the log, because the log's folder is removed, or is inside a virtual machine.
      throw new Error(`no keeper: ${String(cause)}\n${keepers.log().slice(-shownLog)}`, { cause });
    });
  const control = join(scratch.folder, 'fusectl');
  let keeper = await start();
  let client: KeeperClient = keepers.client();
  let count = 0;
  // If a test times out, its process is killed. The watchdogs then abort the mounts, so that no process waits for them.
  const guards = new DisposableStack();

  const when = (isSo: (state: KeeperState) => boolean): Promise<KeeperState> =>
    eventually(() => client.status(signal), isSo, limitMs);
  const ready = (): Promise<KeeperState> =>
    when(({ doing, active, standby }) => doing !== 'moving' && active?.ready === true && standby !== null);

  async function endDataPath(by: 'SIGKILL' | 'SIGSTOP'): Promise<void> {
    const { active, takeovers } = await ready();
    process.kill(active?.pid ?? 0, by);
    await when((state) => state.takeovers > takeovers);
  }

  async function mount({ host, port, root }: Source, options: Partial<MountSpec> = {}): Promise<KeeperMount> {
    const name = `mnt-${++count}`;
    const at = join(scratch.folder, name);
    mkdirSync(at);
    const fd = openSync('/dev/fuse', constants.O_RDWR | constants.O_NONBLOCK);
    try {
      await attach(at, fd, options.checks);
      await client.adopt(name, { ...usualSpec, addresses: [host], port, root, ...options }, fd, signal);
    } finally {
      closeSync(fd);
    }
    guards.use(startUnmountWatchdog(at));
    const connection = join(control, connectionOf(at));
    return {
      at,
      on: (file) => join(at, file),
      abort: async () => void (await run('sh', ['-c', 'echo 1 >"$1"', 'sh', join(connection, 'abort')])),
      flush: (ms) => client.flush(name, ms, signal),
      waiting: async () => Number((await run('cat', [join(connection, 'waiting')])).stdout),
    };
  }

  mkdirSync(control);
  await run('mount', ['-t', 'fusectl', 'stowage-fusectl', control]);
  return {
    folder: scratch.folder,
    mount,
    ready,
    log: () => keepers.log(),
    get keeper() {
      return keeper;
    },
    killDataPath: () => endDataPath('SIGKILL'),
    hangDataPath: () => endDataPath('SIGSTOP'),
    upgrade: async () => {
      await ready();
      await client.upgrade(program, signal);
    },
    replaceKeeper: async () => {
      await ready();
      keeper = await start();
      client = keepers.client();
    },
    killKeeper: async () => {
      await ready();
      process.kill(keeper.pid, 'SIGKILL');
      await keeper.ended;
      keeper = await start();
      client = keepers.client();
    },
    [Symbol.asyncDispose]: async () => {
      // The end of the keeper aborts the mounts, so no request waits for a server that is down.
      await keepers[Symbol.asyncDispose]();
      scratch[Symbol.dispose]();
      guards.dispose();
    },
  };
}

/** A clock whose deadlines are at least `limitMs` long. */
function clockFor(limitMs = 0): Clock {
  const clock = systemClock();
  return { ...clock, deadline: (ms, parent) => clock.deadline(Math.max(ms, limitMs), parent) };
}

const usualSpec: Omit<MountSpec, 'addresses' | 'port' | 'root'> = {
  version: 1,
  connections: 2,
  privilegedPorts: false,
  tls: undefined,
  squash: 'none',
  uid: 65_534,
  gid: 65_534,
  softMs: undefined,
  readOnly: false,
  maxRead: 1024 * 1024,
  maxWrite: 1024 * 1024,
  cacheMs: 1000,
  locks: 'node',
};

async function attach(at: string, fd: number, checks: MountSpec['checks'] = 'kernel'): Promise<void> {
  const rights = ['user_id=0', 'group_id=0', 'allow_other', ...(checks === 'kernel' ? ['default_permissions'] : [])];
  const options = ['fd=3', 'rootmode=40000', ...rights].join(',');
  const child = spawn('mount', ['-i', '-t', 'fuse', '-o', options, 'stowage-test', at], {
    stdio: ['ignore', 'inherit', 'inherit', fd],
  });
  const [status] = await once(child, 'exit');
  if (status !== 0) throw new Error(`mount ended with ${status}`);
}

/**
 * The kernel names a FUSE connection by its minor device number. Read from the mount table, because a stat(2) on the
 * mount may hang.
 */
export function connectionOf(at: string): string {
  const lines = readFileSync('/proc/self/mountinfo', 'utf8').split('\n');
  const fields = lines.map((line) => line.split(' ')).findLast((one) => one[4] === at);
  const minor = fields?.[2]?.split(':')[1];
  if (minor === undefined) throw new Error(`${at} is not mounted`);
  return minor;
}

/** A folder of an export, as the client looks it up. */
export async function sourceOf(server: NfsAddress, folder: string): Promise<Source> {
  using opened = await openExport(server, folder);
  return { host: server.host, port: server.nfsPort, root: Buffer.from(opened.root).toString('base64') };
}

/** Repeats the work while `disturb` injects faults, until `often` faults were injected. Then lets the work finish. */
export async function runWithFaults(
  often: number,
  disturb: () => Promise<unknown>,
  work: (round: number) => Promise<unknown>,
): Promise<void> {
  let count = 0;
  let isDone = false;
  const working = (async () => {
    for (let round = 0; round === 0 || count < often; round++) await work(round);
  })().finally(() => {
    isDone = true;
  });
  working.catch(() => undefined);
  while (!isDone && count < often) {
    await disturb();
    count++;
  }
  await working;
}
