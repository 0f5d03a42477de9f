import { createHash } from 'node:crypto';
import { readdir } from 'node:fs/promises';
import { dirname } from 'node:path';
import type { Clock } from '#base/clock.ts';
import { createKeyedLock } from '#base/keyed-lock.ts';
import type { Log } from '#base/log.ts';
import { connectKeeper, type KeeperClient } from '#keeper/agent.ts';
import { KeeperError, type KeeperState } from '#keeper/protocol.ts';
import { isErrno } from '../mounter/paths.ts';
import { keeperFailure } from './errors.ts';
import { createStarting, type KeeperKind, program } from './starting.ts';
import { keeperUser } from './user.ts';

export interface UsedKeeper extends KeeperClient {
  /** It has had no data path that serves for so long that nobody should wait for one any more. */
  readonly isStuck: boolean;
}

export interface KeeperStatus {
  readonly name: string;
  /** Undefined: it does not answer, or has gone. */
  readonly state: KeeperState | undefined;
}

/** The keepers of this node, each with its data path. They outlive this process. */
export interface Keepers extends AsyncDisposable {
  /** With the keeper for such mounts, which is started where there is none. */
  use<T>(kind: KeeperKind, signal: AbortSignal, work: (keeper: UsedKeeper) => Promise<T>): Promise<T>;
  /** With the keeper that has a mount, whatever its store says by now. Undefined: none has it. */
  holding<T>(mount: string, signal: AbortSignal, work: (keeper: UsedKeeper) => Promise<T>): Promise<T | undefined>;
  /** Every keeper there is: those in use, and those that an earlier process left. */
  status(signal: AbortSignal): Promise<readonly KeeperStatus[]>;
  /** Replaces keepers and data paths by those that belong to this program, under mounts that are in use. */
  upgrade(signal: AbortSignal): Promise<readonly KeeperStatus[]>;
  /** Ends those that have had nothing to do since the last call. */
  tidy(signal: AbortSignal): Promise<void>;
  /** Ends those that have nothing to do. */
  endIdle(signal: AbortSignal): Promise<void>;
}

export interface KeepersOptions {
  readonly clock: Clock;
  readonly log: Log;
  /** Each keeper has its own in it. */
  readonly folder: string;
  readonly version: string;
  /** A keeper has gone, or lost a mount: somebody should see what is still served. */
  readonly doubted: () => void;
  /** Nobody waits for longer than this for a data path that serves. Left out: a minute. */
  readonly stuckMs?: number;
}

interface Slot {
  readonly name: string;
  client: KeeperClient | undefined;
  state: KeeperState | undefined;
  users: number;
  idleRounds: number;
  /** Since when it has mounts and nobody who serves them. */
  troubledSince: number | undefined;
}

const idleRounds = 2;
/** A successor takes a fraction of a second, and is tried again for as long as this. */
const usualStuckMs = 60_000;

export function createKeepers(options: KeepersOptions): Keepers {
  const { clock, log, folder, version, doubted, stuckMs = usualStuckMs } = options;
  const slots = new Map<string, Slot>();
  const opening = createKeyedLock();
  const closing = new AbortController();

  const slotOf = (name: string): Slot => {
    const slot = slots.get(name) ?? {
      ...{ name, client: undefined, state: undefined, users: 0, idleRounds: 0, troubledSince: undefined },
    };
    slots.set(name, slot);
    return slot;
  };
  const starting = createStarting({ clock, log, folder, version });
  const { socketOf } = starting;

  const isStuck = ({ troubledSince }: Slot): boolean =>
    troubledSince !== undefined && clock.elapsed() - troubledSince > stuckMs;

  function watch(slot: Slot, { mounts, active }: KeeperState): void {
    if (mounts === 0 || active?.ready === true) slot.troubledSince = undefined;
    else if (slot.troubledSince === undefined) {
      slot.troubledSince = clock.elapsed();
      clock.after(stuckMs + 1_000, () => {
        if (!isStuck(slot) || closing.signal.aborted) return;
        log.error('no data path serves any more: its mounts are ended and made anew', { keeper: slot.name });
        doubted();
      });
    }
  }

  /** Undefined: nobody listens there. */
  async function connect(slot: Slot): Promise<KeeperClient | undefined> {
    const user = await keeperUser(folder);
    try {
      const client: KeeperClient = connectKeeper({
        ...{ path: socketOf(slot.name), user, clock, version },
        changed: (state) => {
          const hasLost = state.mounts < (slot.state?.mounts ?? 0);
          slot.state = state;
          watch(slot, state);
          if (hasLost && !closing.signal.aborted) doubted();
        },
        closed: () => {
          if (slot.client !== client) return;
          slot.client = undefined;
          slot.state = undefined;
          slot.troubledSince = undefined;
          if (closing.signal.aborted) return;
          log.warn('a keeper is gone', { keeper: slot.name });
          doubted();
        },
      });
      slot.client = client;
      return client;
    } catch (cause) {
      if (isErrno(cause, 'ENOENT', 'ECONNREFUSED')) return undefined;
      throw cause;
    }
  }

  async function reach(slot: Slot, kind: KeeperKind, signal: AbortSignal): Promise<KeeperClient> {
    using _ = await opening.hold([slot.name], signal);
    const there = slot.client ?? (await connect(slot));
    if (there !== undefined) return there;
    await starting.start(slot.name, kind, signal);
    const started = await connect(slot);
    if (started === undefined) throw new KeeperError('gone', 'the keeper has gone');
    return started;
  }

  /** Of those that run, in use by this process or not. */
  async function running(signal: AbortSignal): Promise<readonly Slot[]> {
    const names = (await readdir(folder).catch(() => [])).filter(
      (name) => /^(host|net-)/.test(name) && !name.includes('.'),
    );
    const found: Slot[] = [];
    for (const name of names) {
      const slot = slotOf(name);
      using _ = await opening.hold([name], signal);
      try {
        if (slot.client !== undefined || (await connect(slot)) !== undefined) found.push(slot);
      } catch (cause) {
        log.warn('a keeper does not answer', { keeper: name, why: String(cause) });
        found.push(slot);
      }
    }
    return found;
  }

  async function statusOf({ name, client }: Slot, signal: AbortSignal): Promise<KeeperStatus> {
    return { name, state: await client?.status(signal).catch(() => undefined) };
  }

  async function endIf(slot: Slot, isDue: () => boolean, signal: AbortSignal): Promise<void> {
    using _ = await opening.hold([slot.name], signal);
    const { client } = slot;
    if (client === undefined || slot.users > 0) return;
    const state = await client.status(signal).catch(() => undefined);
    if (state?.mounts !== 0 || slot.users > 0 || !isDue()) return;
    slot.client = undefined;
    slot.state = undefined;
    await client.end(signal).catch((cause: unknown) => log.warn('a keeper could not be ended', { why: String(cause) }));
    client[Symbol.dispose]();
  }

  /** Nobody ends it meanwhile. */
  async function used<T>(
    slot: Slot,
    signal: AbortSignal,
    client: () => Promise<KeeperClient>,
    work: (keeper: UsedKeeper) => Promise<T>,
  ): Promise<T> {
    slot.users++;
    slot.idleRounds = 0;
    try {
      return await work({ ...(await client()), isStuck: isStuck(slot) });
    } catch (cause) {
      signal.throwIfAborted();
      throw keeperFailure(cause, dirname(socketOf(slot.name)));
    } finally {
      slot.users--;
    }
  }

  return {
    use: (kind, signal, work) => {
      const slot = slotOf(nameOf(kind));
      return used(slot, signal, () => reach(slot, kind, signal), work);
    },
    holding: async (mount, signal, work) => {
      for (const slot of await running(signal)) {
        const client = async (): Promise<KeeperClient> => {
          if (slot.client === undefined) throw new KeeperError('gone', 'the keeper has gone');
          return slot.client;
        };
        const found = await used(slot, signal, client, async (keeper) =>
          (await keeper.list(signal)).includes(mount) ? { result: await work(keeper) } : undefined,
        );
        if (found !== undefined) return found.result;
      }
      return undefined;
    },
    status: async (signal) => Promise.all((await running(signal)).map((slot) => statusOf(slot, signal))),
    upgrade: async (signal) => {
      const all = await running(signal);
      const failures: unknown[] = [];
      // One that cannot be replaced keeps no other from it.
      for (const slot of all) await replace(slot, signal).catch((cause: unknown) => failures.push(cause));
      if (failures.length > 0) throw failures[0];
      return Promise.all(all.map((slot) => statusOf(slot, signal)));
    },
    tidy: async (signal) => {
      for (const slot of await running(signal)) await endIf(slot, () => ++slot.idleRounds > idleRounds, signal);
    },
    endIdle: async (signal) => {
      for (const slot of await running(signal)) await endIf(slot, () => true, signal);
    },
    [Symbol.asyncDispose]: async () => {
      closing.abort();
      for (const { client } of slots.values()) client?.[Symbol.dispose]();
    },
  };

  /** First the keeper, which takes everything over from the one before; then what it serves with. */
  async function replace(slot: Slot, signal: AbortSignal): Promise<void> {
    try {
      using _ = await opening.hold([slot.name], signal);
      const before = slot.client;
      await starting.again(slot.name, signal);
      // The one before closes its end; until then it would be asked.
      slot.client = undefined;
      before?.[Symbol.dispose]();
      const client = await connect(slot);
      if (client === undefined) throw new KeeperError('gone', 'the keeper has gone');
      if (((await client.status(signal)).mounts ?? 0) > 0) await client.upgrade(program, signal);
    } catch (cause) {
      signal.throwIfAborted();
      throw keeperFailure(cause, dirname(socketOf(slot.name)));
    }
  }
}

/** Short: a socket's path has little room. */
function nameOf({ network, privilegedPorts }: KeeperKind): string {
  const where =
    network === undefined ? 'host' : `net-${createHash('sha256').update(network).digest('hex').slice(0, 8)}`;
  return privilegedPorts ? `${where}-low` : where;
}
