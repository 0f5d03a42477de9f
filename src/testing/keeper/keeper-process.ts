import {
  closeSync,
  existsSync,
  mkdtempSync,
  openSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { systemClock } from '#base/clock.ts';
import { connectKeeper, type KeeperClient } from '#keeper/keeper-client.ts';
import type { KeeperState } from '#keeper/protocol.ts';
import { type StartedKeeper, type StartOptions, startKeeper } from '#keeper/start-keeper.ts';

/** The behaviour of data-path-program.ts. */
export interface Behaviour {
  readonly dies?: 'at once' | 'serving';
  readonly loadsForMs?: number;
  readonly stops?: boolean;
  /** The data path stays connected to this port. */
  readonly connectsToPort?: number;
  /** The data path releases the descriptors that its predecessor held. */
  readonly releasesHeld?: boolean;
  /** The number of dirty files that the data path reports. Undefined: it never reports. */
  readonly unwritten?: number;
}

/** What a data path recorded about a mount. */
export interface MountRecord {
  readonly as: string;
  readonly id: string;
  readonly spec: unknown;
  readonly pid: number;
  readonly version: string;
  /** Milliseconds since 1970, with fractions. */
  readonly at: number;
  readonly served?: number;
  readonly sockets?: readonly string[];
}

/** Keepers and their data paths in a temporary folder. */
export interface KeeperFixture extends AsyncDisposable {
  readonly folder: string;
  readonly socket: string;
  readonly signal: AbortSignal;
  /** Resolves when the keeper serves. */
  startKeeper(how?: Partial<StartOptions>): Promise<StartedKeeper>;
  client(changed?: (state: KeeperState) => void, user?: number): KeeperClient;
  behave(how: Behaviour): void;
  /** Passes a file to the keeper as if it were /dev/fuse. */
  adopt(client: KeeperClient, mount: string, spec?: unknown): Promise<void>;
  recordsOf(mount: string): readonly MountRecord[];
  /** The record with that number, as soon as it exists. */
  recordAfter(mount: string, count: number): Promise<MountRecord>;
  log(): string;
}

export const testProgram = join(import.meta.dirname, 'data-path-program.ts');
const defaultLimitMs = 20_000;

/** Polls until the result satisfies the condition. Throws at the limit. */
export async function eventually<T>(
  look: () => T | Promise<T>,
  isSo: (found: T) => boolean,
  limitMs = defaultLimitMs,
): Promise<T> {
  const until = performance.now() + limitMs;
  for (;;) {
    const found = await look();
    if (isSo(found)) return found;
    if (performance.now() > until) throw new Error(`never: ${isSo.toString()}: ${JSON.stringify(found)}`);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}

export function createKeeperFixture(): KeeperFixture {
  const folder = mkdtempSync(join(tmpdir(), 'stowage-keeper-'));
  const socket = join(folder, 'own', 'keeper.sock');
  const stop = new AbortController();
  const keepers: StartedKeeper[] = [];
  const clock = systemClock();
  const clients = new Set<KeeperClient>();
  const behave = (how: Behaviour): void => writeFileSync(join(folder, 'behaviour.json'), JSON.stringify(how));
  const read = (name: string): string =>
    existsSync(join(folder, name)) ? readFileSync(join(folder, name), 'utf8') : '';
  const recordsOf = (mount: string): readonly MountRecord[] =>
    read(mount)
      .split('\n')
      .filter((line) => line !== '')
      .map((line) => JSON.parse(line));
  behave({});

  return {
    folder,
    socket,
    behave,
    recordsOf,
    signal: stop.signal,
    startKeeper: async (how = {}) => {
      const keeper = await startKeeper(
        {
          clock,
          socket,
          program: testProgram,
          log: join(folder, 'log'),
          enter: [],
          flags: [],
          env: { PATH: process.env['PATH'] ?? '', STOWAGE_TEST_FOLDER: folder },
          ...how,
        },
        stop.signal,
      );
      keepers.push(keeper);
      return keeper;
    },
    client: (changed = () => undefined, user = 0) => {
      const client = connectKeeper({
        path: socket,
        user,
        clock,
        version: 'test',
        changed,
        closed: () => undefined,
      });
      clients.add(client);
      return client;
    },
    adopt: async (client, mount, spec = {}) => {
      const fd = openSync(join(folder, mount), 'a');
      try {
        await client.adopt(mount, spec, fd, stop.signal);
      } finally {
        closeSync(fd);
      }
    },
    recordAfter: async (mount, count) => {
      const all = await eventually(
        () => recordsOf(mount),
        (found) => found.length >= count,
      );
      return all[count - 1] as MountRecord;
    },
    log: () => read('log'),
    [Symbol.asyncDispose]: async () => {
      stop.abort();
      for (const client of clients) client[Symbol.dispose]();
      // A data path outlives its keeper, and one that is just starting would still write into the folder.
      await eventually(
        () => startedFor(folder),
        (pids) => {
          pids.forEach(kill);
          return pids.length === 0;
        },
      );
      await Promise.all(keepers.map(({ ended }) => ended));
      rmSync(folder, { recursive: true, force: true });
    },
  };
}

/** The processes whose environment names this folder. A zombie has no environment. */
function startedFor(folder: string): readonly number[] {
  return readdirSync('/proc')
    .map(Number)
    .filter((pid) => {
      try {
        return pid > 1 && readFileSync(`/proc/${pid}/environ`, 'utf8').includes(`STOWAGE_TEST_FOLDER=${folder}\0`);
      } catch {
        return false;
      }
    });
}

function kill(pid: number): void {
  try {
    process.kill(pid, 'SIGKILL');
  } catch {
    // The process has already ended.
  }
}
