import type { Clock } from '#base/clock.ts';
import type { Scope } from '#base/log.ts';
import { isAccessDenied } from './access-denial.ts';
import type { StowageError } from './errors.ts';
import type { Room, StoreName } from './model.ts';
import { volumeName } from './names.ts';
import type { Store } from './ports.ts';
import { namesOf } from './store-facets.ts';
import { createStoreQuestions } from './store-questions.ts';
import type { Stores } from './stores.ts';

/** Tracks which stores answer, so that callers do not wait for a store that does not. Concerns stores that other hosts can change. */
export interface StoreLiveness {
  /**
   * Asks the store to list its names. Returns false if the store did not answer. Does not ask an open store that only we can change
   * (returns true), nor a store that was recently late (returns false).
   */
  list(name: StoreName, scope: Scope, ask: (open: Store) => Promise<void>): Promise<boolean>;
  /**
   * Like `list` for a single name. Asks even if the list was late, since a long list can take long, unless the server does not answer at
   * all.
   */
  lookUp(name: StoreName, scope: Scope, ask: (open: Store) => Promise<void>): Promise<boolean>;
  /** The stores whose last list was late. */
  lateStores(names: readonly StoreName[]): readonly StoreName[];
  /** Asks now, and returns the open stores that do not answer. */
  findSilent(names: readonly StoreName[], scope: Scope): Promise<ReadonlySet<string>>;
  /** The free space of open stores that answer soon. A list must not wait longer for this than for `silent`. */
  rooms(names: readonly StoreName[], scope: Scope): Promise<ReadonlyMap<string, Room>>;
  /** Why the store denied access when it was last opened or asked. Undefined: it did not. */
  denialOf(name: StoreName): StowageError | undefined;
}

/** The name for lookups that only test access. No volume needs to have it. */
const probeName = volumeName('access');

export function createStoreLiveness(parts: {
  readonly clock: Clock;
  readonly stores: () => Pick<Stores, 'list' | 'view' | 'use'>;
}): StoreLiveness {
  const { stores } = parts;
  const questions = createStoreQuestions(parts);
  const { late, denials } = questions;

  /** Repeats a denied question, which the store may allow by now. */
  async function repeatDenied(name: StoreName, scope: Scope): Promise<void> {
    const question = denials.questionOf(name);
    if (question === 'list' && !late.isLate(name, 'list'))
      await questions.ask('list', name, scope, async (open) => void (await namesOf(open, scope)));
    if (question === 'look' && !late.isLate(name, 'look'))
      await questions.ask('look', name, scope, async (open) => void (await open.get(probeName, scope)));
  }

  async function isSilent(name: StoreName, scope: Scope): Promise<boolean> {
    const { store } = stores().view(name);
    if (store?.ping === undefined) return store !== undefined && late.isLate(name, 'list', 'look');
    if (!(await questions.ping(name, scope))) return true;
    await repeatDenied(name, scope);
    return false;
  }

  async function roomOf(name: StoreName, scope: Scope): Promise<Room | undefined> {
    if (stores().view(name).store?.room === undefined || late.isLate(name, 'ping', 'room')) return undefined;
    let room: Room | undefined;
    const isAnswered = await questions.ask('room', name, scope, async (open) => {
      room = await open.room?.(scope);
    });
    return isAnswered ? room : undefined;
  }

  /** True if a lookup is worth trying. If other answers are late, pings the server first. */
  async function isWorthAsking(name: StoreName, { ping }: Store, scope: Scope): Promise<boolean> {
    if (ping === undefined) return !late.isLate(name, 'look');
    if (late.isLate(name, 'ping')) return false;
    return !late.isLate(name, 'list', 'look') || (await questions.ping(name, scope));
  }

  return {
    list: async (name, scope, ask) => {
      const { store } = stores().view(name);
      if (store?.changedByOthers === undefined) return store !== undefined;
      return !late.isLate(name, 'list', 'ping') && (await questions.ask('list', name, scope, ask));
    },
    lookUp: async (name, scope, ask) => {
      const { store } = stores().view(name);
      if (store?.changedByOthers === undefined) return store !== undefined;
      return (await isWorthAsking(name, store, scope)) && (await questions.ask('look', name, scope, ask));
    },
    lateStores: (names) => names.filter((name) => late.isLate(name, 'list', 'ping')),
    findSilent: async (names, scope) => {
      const silentFlags = await Promise.all(names.map((name) => isSilent(name, scope)));
      return new Set(names.filter((_name, index) => silentFlags[index]));
    },
    rooms: async (names, scope) => {
      const rooms = await Promise.all(names.map(async (name) => [name, await roomOf(name, scope)] as const));
      return new Map(rooms.flatMap(([name, room]) => (room === undefined ? [] : [[name, room]])));
    },
    denialOf: (name) => {
      // The store may have been removed since the caller listed it.
      const { store, problem } =
        stores()
          .list()
          .find(({ config }) => config.name === name) ?? {};
      if (store !== undefined) return denials.failureOf(name);
      return problem !== undefined && isAccessDenied(problem) ? problem : undefined;
    },
  };
}
