import { readdir } from 'node:fs/promises';
import { type Clock, DeadlineExceeded } from '#base/clock.ts';
import { isErrno } from '#base/errno.ts';
import { createKeyedLock, type KeyedLock } from '#base/keyed-lock.ts';
import type { Log } from '#base/log.ts';
import { createDescriptorCopies, type DescriptorCopies } from '#keeper/descriptor-copies.ts';
import { connectKeeper, type KeeperClient } from '#keeper/keeper-client.ts';
import { KeeperError, type KeeperState, outOfReach } from '#keeper/protocol.ts';
import { isServed } from '#keeper/serving-lock.ts';
import { type Answers, createAnswers } from './answers.ts';
import { holdToo } from './second-holder.ts';
import type { Starting } from './starting.ts';

/** A keeper that is used, or may be there. */
export interface Slot {
  readonly name: string;
  client: KeeperClient | undefined;
  /** It did not answer, and could not be killed. */
  isOutOfReach: boolean;
  answers: Answers | undefined;
  /** Of what it holds, where it may be killed with all that is its own. */
  readonly copies: DescriptorCopies | undefined;
  state: KeeperState | undefined;
  users: number;
  idleRounds: number;
  /** Since when it has mounts and nobody who serves them. */
  troubledSince: number | undefined;
  /** What becomes of it if that lasts. */
  ending: Disposable | undefined;
}

/** A keeper was ended because it was of no more use, and with it what it had. */
export interface GivenUp {
  readonly keeper: string;
  readonly why: string;
  /** Undefined: it did not say. */
  readonly mounts: readonly string[] | undefined;
}

export interface SlotsOptions {
  readonly clock: Clock;
  readonly log: Log;
  readonly folder: string;
  readonly version: string;
  readonly stuckMs: number;
  /** So long copies are held without a keeper to give them to. */
  readonly aloneMs: number;
  readonly starting: Starting;
  readonly doubted: () => void;
  readonly gaveUp: (what: GivenUp) => void;
}

export interface Slots extends Disposable {
  of(name: string): Slot;
  /** Who starts, connects to or ends a keeper holds its name. */
  readonly opening: KeyedLock;
  /** Undefined: nobody listens there. */
  connect(slot: Slot): Promise<KeeperClient | undefined>;
  /** Of those that run, in use by this process or not. One that its data path has lost is started again. */
  running(signal: AbortSignal): Promise<readonly Slot[]>;
  /** The one of that name, if it runs. */
  runningOf(name: string, signal: AbortSignal): Promise<Slot | undefined>;
  /** Whoever is connected to next is another one. */
  forget(slot: Slot): void;
  /** Throws soon where it does not answer. */
  mountsOf(slot: Slot, signal: AbortSignal): Promise<readonly string[]>;
  isStuck(slot: Slot): boolean;
  /** Throws where it does not answer and only whoever has its container can end it. */
  checkReach(slot: Slot): void;
}

/** Longer than a new keeper waits for a data path that has lost its own. */
const listMs = 6_000;
const endMs = 10_000;
/** Longer than a keeper waits for a data path that has lost its own. */
const shareMs = 10_000;
const regainMs = { shortest: 20, longest: 500 } as const;

const newSlot = (name: string, copies: DescriptorCopies | undefined): Slot => ({
  name,
  client: undefined,
  answers: undefined,
  state: undefined,
  users: 0,
  idleRounds: 0,
  troubledSince: undefined,
  ending: undefined,
  isOutOfReach: false,
  copies,
});

/** Undefined: no keeper listens there. */
function connected(how: Parameters<typeof connectKeeper>[0]): KeeperClient | undefined {
  try {
    return connectKeeper(how);
  } catch (cause) {
    if (isErrno(cause, 'ENOENT', 'ECONNREFUSED')) return undefined;
    throw cause;
  }
}

export function createSlots(options: SlotsOptions): Slots {
  const { clock, log, folder, version, stuckMs, aloneMs, starting, doubted, gaveUp } = options;
  const slots = new Map<string, Slot>();
  const opening = createKeyedLock();
  const closing = new AbortController();

  const of = (name: string): Slot => {
    const slot = slots.get(name) ?? newSlot(name, starting.areFound ? createDescriptorCopies() : undefined);
    slots.set(name, slot);
    return slot;
  };

  const isStuck = ({ troubledSince }: Slot): boolean =>
    troubledSince !== undefined && clock.elapsed() - troubledSince > stuckMs;

  function forget(slot: Slot): void {
    [slot.client, slot.answers, slot.state, slot.isOutOfReach] = [undefined, undefined, undefined, false];
    calm(slot);
  }

  function calm(slot: Slot): void {
    slot.ending?.[Symbol.dispose]();
    [slot.troubledSince, slot.ending] = [undefined, undefined];
  }

  function watch(slot: Slot, client: KeeperClient, { mounts, active }: KeeperState): void {
    if (mounts === 0 || active?.ready === true) calm(slot);
    else if (slot.troubledSince === undefined) {
      slot.troubledSince = clock.elapsed();
      endLater(slot, client);
    }
  }

  function endLater(slot: Slot, client: KeeperClient, isTold = false): void {
    slot.ending = clock.after(stuckMs + 1_000, () => {
      if (slot.client === client && isStuck(slot) && !closing.signal.aborted) void end(slot, client, isTold);
    });
  }

  /** With all that it has: what else it holds would only hold up the next data path, too. */
  async function end(slot: Slot, client: KeeperClient, isTold: boolean): Promise<void> {
    const why = 'no data path serves any more';
    log.error(`${why}: the keeper is ended, and its mounts are made anew`, { keeper: slot.name });
    const mounts = await mountsOf(slot, closing.signal).catch(() => undefined);
    slot.copies?.drop();
    using limit = clock.deadline(endMs, closing.signal);
    try {
      await client.end(limit.signal);
    } catch (cause) {
      if (closing.signal.aborted) return;
      log.warn('a keeper could not be ended, and is killed', { keeper: slot.name, why: String(cause) });
      if (!(await killed(slot, client))) unkillable(slot);
    }
    if (!isTold) gaveUp({ keeper: slot.name, why, mounts });
    // Usually told when its line is closed; if it lives on, at least what is known here is made anew.
    doubted();
    if (slot.client === client) endLater(slot, client, true);
  }

  async function kill(slot: Slot, client: KeeperClient): Promise<void> {
    const why = 'the keeper does not answer any more';
    log.error(`${why}, and is killed`, { keeper: slot.name });
    if (await killed(slot, client)) gaveUp({ keeper: slot.name, why, mounts: undefined });
    else unkillable(slot);
  }

  /** By ourselves, or by whoever started its container. */
  async function killed(slot: Slot, client: KeeperClient): Promise<boolean> {
    if (client.kill()) return true;
    return await starting.kill(slot.name).catch((cause: unknown) => {
      log.warn('a keeper could not be killed by its container engine', { keeper: slot.name, why: String(cause) });
      return false;
    });
  }

  function unkillable(slot: Slot): void {
    slot.isOutOfReach = true;
    log.error('a keeper could not be killed from here: restart the container that it runs in', { keeper: slot.name });
  }

  function checkReach({ answers, isOutOfReach }: Slot): void {
    if (isOutOfReach && answers?.isSilent === true) throw outOfReach('the keeper does not answer');
  }

  async function connect(slot: Slot): Promise<KeeperClient | undefined> {
    const user = await starting.user();
    const { copies } = slot;
    let said: KeeperState | undefined;
    const heard = (state: KeeperState): void => {
      said = state;
      // What one says that was replaced meanwhile is not about the next.
      if (client === undefined || slot.client !== client) return;
      const hasLost = state.mounts < (slot.state?.mounts ?? 0);
      slot.state = state;
      watch(slot, client, state);
      if (hasLost && !closing.signal.aborted) doubted();
    };
    const closed = (): void => gone(slot, client, answers);
    const path = starting.socketOf(slot.name);
    const client = connected({ user, copies, changed: heard, closed, path, clock, version });
    if (client === undefined) return undefined;
    const answers = createAnswers({ clock, status: client.status, hangs: () => void kill(slot, client) });
    if (copies !== undefined) await share(slot, client, copies);
    [slot.client, slot.answers] = [client, answers];
    if (said !== undefined) heard(said);
    return client;
  }

  async function share(slot: Slot, client: KeeperClient, copies: DescriptorCopies): Promise<void> {
    using limit = clock.deadline(shareMs, closing.signal);
    try {
      await holdToo(client, copies, { keeper: slot.name, log }, limit.signal);
    } catch (cause) {
      client[Symbol.dispose]();
      throw cause;
    }
  }

  function gone(slot: Slot, client: KeeperClient | undefined, answers: Answers): void {
    answers[Symbol.dispose]();
    if (slot.client !== client) return;
    forget(slot);
    if (closing.signal.aborted) return;
    log.warn('a keeper is gone', { keeper: slot.name });
    if ((slot.copies?.mounts.length ?? 0) > 0) void regain(slot);
    else doubted();
  }

  /** Who uses the mounts waits meanwhile. If no keeper comes, they get an error, and what is mounted is made anew. */
  async function regain(slot: Slot): Promise<void> {
    const since = clock.elapsed();
    const isWaiting = (): boolean => slot.client === undefined && (slot.copies?.mounts.length ?? 0) > 0;
    for (let ms: number = regainMs.shortest; isWaiting(); ms = Math.min(regainMs.longest, ms * 2)) {
      if (closing.signal.aborted) return;
      if (clock.elapsed() - since > aloneMs) {
        log.error('no keeper came: its mounts are given up, and made anew', { keeper: slot.name });
        slot.copies?.drop();
      } else await tryAgain(slot, ms).catch(() => undefined);
    }
    doubted();
  }

  async function tryAgain(slot: Slot, ms: number): Promise<void> {
    await clock.sleep(ms, closing.signal);
    using _ = await opening.hold([slot.name], closing.signal);
    if (slot.client !== undefined) return;
    await connect(slot).catch((cause: unknown) =>
      log.warn('a keeper does not take what it had', { keeper: slot.name, why: String(cause) }),
    );
  }

  /** A data path that lives goes on serving, and waits for a keeper to give everything to. */
  async function connectAgain(slot: Slot, signal: AbortSignal): Promise<boolean> {
    if (slot.client !== undefined || (await connect(slot)) !== undefined) return true;
    if (!isServed(starting.socketOf(slot.name))) return false;
    log.info('a data path has lost its keeper, and gets another', { keeper: slot.name });
    await starting.again(slot.name, signal);
    return (await connect(slot)) !== undefined;
  }

  async function runningOf(name: string, signal: AbortSignal): Promise<Slot | undefined> {
    const slot = of(name);
    // Nobody waits for an upgrade to see what there is.
    if (slot.client !== undefined) return slot;
    using _ = await opening.hold([name], signal);
    try {
      const isThere = (await connectAgain(slot, signal)) || (slot.copies?.mounts.length ?? 0) > 0;
      return isThere ? slot : undefined;
    } catch (cause) {
      log.warn('a keeper does not answer', { keeper: name, why: String(cause) });
      return slot;
    }
  }

  async function mountsOf(slot: Slot, signal: AbortSignal): Promise<readonly string[]> {
    const { client, answers, copies } = slot;
    checkReach(slot);
    // They wait for the next one.
    if (client === undefined && copies !== undefined && copies.mounts.length > 0) return copies.mounts;
    if (client === undefined) throw new KeeperError('gone', 'the keeper has gone');
    if (answers?.isSilent === true) throw new KeeperError('silent', 'the keeper does not answer');
    using limit = clock.deadline(listMs, signal);
    try {
      return await client.list(limit.signal);
    } catch (cause) {
      if (cause instanceof DeadlineExceeded) answers?.ask();
      throw cause;
    }
  }

  return {
    of,
    opening,
    connect,
    forget,
    runningOf,
    mountsOf,
    isStuck,
    checkReach,
    running: async (signal) => {
      const names = (await readdir(folder).catch(() => [])).filter(
        (name) => /^(host|net-)/.test(name) && !name.includes('.'),
      );
      return (await Promise.all(names.map((name) => runningOf(name, signal)))).filter((slot) => slot !== undefined);
    },
    [Symbol.dispose]: () => {
      closing.abort();
      for (const { client, copies } of slots.values()) {
        client?.[Symbol.dispose]();
        copies?.[Symbol.dispose]();
      }
    },
  };
}
