import type { Clock } from '#base/clock.ts';
import type { Scope } from '#base/log.ts';
import { endsWithin } from '#base/wait.ts';
import { isAccessDenied } from './access-denial.ts';
import { errorReason } from './error-reasons.ts';
import { type StowageError, stowageError } from './errors.ts';
import type { Room, StoreName } from './model.ts';
import { volumeName } from './names.ts';
import type { Store } from './ports.ts';
import { namesOf } from './store-facets.ts';
import type { Stores } from './stores.ts';

/** Tracks which stores answer, so that callers do not wait for a store that does not. Concerns stores that other hosts can change. */
export interface StoreLiveness {
  /**
   * Asks the store to list its names; false if it did not answer. Skips the question, with true, for an open store that only we can change,
   * and, with false, for a store that was recently late.
   */
  list(name: StoreName, scope: Scope, ask: (open: Store) => Promise<void>): Promise<boolean>;
  /** Like `list` for a single name. Asks even if the list was late, since a long list can take long, unless the server does not answer at all. */
  look(name: StoreName, scope: Scope, ask: (open: Store) => Promise<void>): Promise<boolean>;
  /** The stores whose last list was late. */
  late(names: readonly StoreName[]): readonly StoreName[];
  /** Asks now, and returns the open stores that do not answer. */
  silent(names: readonly StoreName[], scope: Scope): Promise<ReadonlySet<string>>;
  /** The free space of open stores that answer soon. A list must not wait longer for this than for `silent`. */
  rooms(names: readonly StoreName[], scope: Scope): Promise<ReadonlyMap<string, Room>>;
  /** Why the store denied access when it was last opened or asked. Undefined: it did not. */
  refusal(name: StoreName): StowageError | undefined;
}

/** The kinds of questions to a store. One can be unanswered while another is answered. */
type Question = 'list' | 'look' | 'ping' | 'room';

/** A healthy store lists its names within this time. */
const patienceMs = 3_000;
/** The timeout of a ping and of the free space, which take a single call. */
const onePatienceMs = 2_000;
/** A store that takes longer than `quickMs` to fail is not asked again for `restMs`. */
const quickMs = 1_000;
const restMs = 10_000;

/** A name to look up; such a volume need not exist. */
const anyName = volumeName('access');

/** True if the failure may be a denial, which only a ping can tell. */
const isUncertain = (question: Question, { reason }: StowageError): boolean =>
  (question === 'list' || question === 'look') && errorReason(reason)?.mayBeDenial === true;

export function createStoreLiveness(parts: {
  readonly clock: Clock;
  readonly stores: () => Pick<Stores, 'list' | 'view' | 'use'>;
}): StoreLiveness {
  const { clock, stores } = parts;
  /** Unanswered questions, and until when nobody waits for them. */
  const late = {
    list: new Map<StoreName, number>(),
    look: new Map<StoreName, number>(),
    ping: new Map<StoreName, number>(),
    room: new Map<StoreName, number>(),
  };
  /** The stores that denied access in their last answer. */
  const refusals = new Map<StoreName, { readonly question: Question; readonly failure: StowageError }>();
  const restOf = (question: Question, name: StoreName): number => (late[question].get(name) ?? 0) - clock.elapsed();
  const isLate = (name: StoreName, ...questions: Question[]): boolean =>
    questions.some((question) => restOf(question, name) > 0);

  /** Ignores free space: some servers report it to everybody, others to nobody, so it says nothing about access. */
  function keepRefusal(question: Question, name: StoreName, failure: StowageError | undefined): void {
    if (question === 'room') return;
    if (failure !== undefined && isAccessDenied(failure)) refusals.set(name, { question, failure });
    else if (failure === undefined ? provesAccess(question, name) : !isUncertain(question, failure))
      refusals.delete(name);
  }

  /** Some servers answer pings of hosts to which they deny everything else. A lookup succeeds even if the record cannot be read. */
  const provesAccess = (question: Question, name: StoreName): boolean =>
    ['ping', question].includes(refusals.get(name)?.question ?? 'ping') || question === 'list';

  /** Repeats a denied question, which the store may allow by now. */
  async function asksAgain(name: StoreName, scope: Scope): Promise<void> {
    const question = refusals.get(name)?.question;
    if (question === 'list' && !isLate(name, 'list'))
      await answers('list', name, scope, async (open) => void (await namesOf(open, scope)));
    if (question === 'look' && !isLate(name, 'look'))
      await answers('look', name, scope, async (open) => void (await open.get(anyName, scope)));
  }

  async function answers(
    question: Question,
    name: StoreName,
    scope: Scope,
    ask: (open: Store) => Promise<void>,
  ): Promise<boolean> {
    const owed = late[question];
    const since = clock.elapsed();
    /** A quick failure is cheap, so the store is asked again the next time. */
    const failed = (thrown: unknown): StowageError => {
      const now = clock.elapsed();
      if (now - since > quickMs) owed.set(name, now + restMs);
      else owed.delete(name);
      const failure = stowageError(thrown);
      if (!scope.signal.aborted) keepRefusal(question, name, failure);
      return failure;
    };
    const succeeded = (): void => {
      owed.delete(name);
      keepRefusal(question, name, undefined);
    };
    const asked = stores().use(name, ask);
    const isOneCall = question === 'ping' || question === 'room';
    if (!(await endsWithin(asked, isOneCall ? onePatienceMs : patienceMs, clock))) {
      owed.set(name, Number.POSITIVE_INFINITY);
      if (question === 'ping') refusals.delete(name);
      asked.then(succeeded, failed);
      // The server may close every connection at once, which this call may learn much later than a ping.
      if (!isOneCall) await pings(name, scope);
      return false;
    }
    try {
      await asked;
      succeeded();
      return true;
    } catch (thrown) {
      scope.signal.throwIfAborted();
      const hadRefusal = refusals.has(name);
      const failure = failed(thrown);
      // Only a ping can tell whether the server is down now or still closes every connection.
      if (hadRefusal && isUncertain(question, failure)) await pings(name, scope);
      if (question === 'room')
        scope.log.debug('free space of a store is unknown', { store: name, why: failure.message });
      else scope.log.warn('store did not answer', { store: name, question, why: failure.message });
      return false;
    }
  }

  /** Does not ping again while an earlier ping is unanswered. */
  const pings = async (name: StoreName, scope: Scope): Promise<boolean> =>
    restOf('ping', name) !== Number.POSITIVE_INFINITY &&
    (await answers('ping', name, scope, async (open) => await open.ping?.(scope)));

  async function isSilent(name: StoreName, scope: Scope): Promise<boolean> {
    const { store } = stores().view(name);
    if (store?.ping === undefined) return store !== undefined && isLate(name, 'list', 'look');
    if (!(await pings(name, scope))) return true;
    await asksAgain(name, scope);
    return false;
  }

  async function roomOf(name: StoreName, scope: Scope): Promise<Room | undefined> {
    if (stores().view(name).store?.room === undefined || isLate(name, 'ping', 'room')) return undefined;
    let room: Room | undefined;
    const isAnswered = await answers('room', name, scope, async (open) => {
      room = await open.room?.(scope);
    });
    return isAnswered ? room : undefined;
  }

  /** True if a lookup is worth trying. If other answers are late, pings the server first. */
  async function isThere(name: StoreName, { ping }: Store, scope: Scope): Promise<boolean> {
    if (ping === undefined) return !isLate(name, 'look');
    if (isLate(name, 'ping')) return false;
    return !isLate(name, 'list', 'look') || (await pings(name, scope));
  }

  return {
    list: async (name, scope, ask) => {
      const { store } = stores().view(name);
      if (store?.changedByOthers === undefined) return store !== undefined;
      return !isLate(name, 'list', 'ping') && (await answers('list', name, scope, ask));
    },
    look: async (name, scope, ask) => {
      const { store } = stores().view(name);
      if (store?.changedByOthers === undefined) return store !== undefined;
      return (await isThere(name, store, scope)) && (await answers('look', name, scope, ask));
    },
    late: (names) => names.filter((name) => isLate(name, 'list', 'ping')),
    silent: async (names, scope) => {
      const asked = await Promise.all(names.map((name) => isSilent(name, scope)));
      return new Set(names.filter((_name, index) => asked[index]));
    },
    rooms: async (names, scope) => {
      const asked = await Promise.all(names.map(async (name) => [name, await roomOf(name, scope)] as const));
      return new Map(asked.flatMap(([name, room]) => (room === undefined ? [] : [[name, room]])));
    },
    refusal: (name) => {
      // The store may have been removed since the caller listed it.
      const { store, problem } =
        stores()
          .list()
          .find(({ config }) => config.name === name) ?? {};
      if (store !== undefined) return refusals.get(name)?.failure;
      return problem !== undefined && isAccessDenied(problem) ? problem : undefined;
    },
  };
}
