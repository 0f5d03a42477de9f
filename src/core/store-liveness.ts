import type { Clock } from '#base/clock.ts';
import type { Scope } from '#base/log.ts';
import { endsWithin } from '#base/wait.ts';
import { isAccessDenied } from './access-denial.ts';
import { type StowageError, stowageError } from './errors.ts';
import type { Room, StoreName } from './model.ts';
import { volumeName } from './names.ts';
import type { Store } from './ports.ts';
import { namesOf } from './store-facets.ts';
import type { Stores } from './stores.ts';

/** Which of the stores that others can change answer, and which are not worth waiting for. */
export interface StoreLiveness {
  /** Whether it has listed its names; what only we can change need not be asked. One that was late lately is not asked. */
  list(name: StoreName, scope: Scope, ask: (open: Store) => Promise<void>): Promise<boolean>;
  /** The same for one name, which is asked for unless the server does not answer at all: a long list takes its time. */
  look(name: StoreName, scope: Scope, ask: (open: Store) => Promise<void>): Promise<boolean>;
  /** Those whose names were not listed lately. */
  late(names: readonly StoreName[]): readonly StoreName[];
  /** Those that are open and do not answer, as of now. */
  silent(names: readonly StoreName[], scope: Scope): Promise<ReadonlySet<string>>;
  /** Those of them that are open and say it soon. A list must not wait longer for it than for `silent`. */
  rooms(names: readonly StoreName[], scope: Scope): Promise<ReadonlyMap<string, Room>>;
  /** Why the store denies access, as of when it was last opened or asked. Undefined: it does not. */
  refusal(name: StoreName): StowageError | undefined;
}

/** What is asked of a store: each can be owed while another is answered. */
type Question = 'list' | 'look' | 'ping' | 'room';

/** A store that is alive has listed its names by then. */
const patienceMs = 3_000;
/** Whether it is there at all takes it one call, and so does its free space. */
const onePatienceMs = 2_000;
/** Who took longer to fail is not asked again for a while. */
const quickMs = 1_000;
const restMs = 10_000;

/** Whether there is such a volume does not matter. */
const anyName = volumeName('access');

/** Whether it may be that the server ends every connection at once. Only a ping finds out. */
const isUncertain = (question: Question, { reason }: StowageError): boolean =>
  (question === 'list' || question === 'look') && ['nfs-connection-lost', 'nfs-timeout'].includes(reason);

export function createStoreLiveness(parts: {
  readonly clock: Clock;
  readonly stores: () => Pick<Stores, 'list' | 'view' | 'use'>;
}): StoreLiveness {
  const { clock, stores } = parts;
  /** Asked and not answered, and until when: nobody waits for those meanwhile. */
  const late = {
    list: new Map<StoreName, number>(),
    look: new Map<StoreName, number>(),
    ping: new Map<StoreName, number>(),
    room: new Map<StoreName, number>(),
  };
  /** Said by those that were asked last and denied access. */
  const refusals = new Map<StoreName, { readonly question: Question; readonly failure: StowageError }>();
  const restOf = (question: Question, name: StoreName): number => (late[question].get(name) ?? 0) - clock.elapsed();
  const isLate = (name: StoreName, ...questions: Question[]): boolean =>
    questions.some((question) => restOf(question, name) > 0);

  /** Free space is for everybody on some servers, and for nobody on others: it says nothing about access. */
  function keepRefusal(question: Question, name: StoreName, failure: StowageError | undefined): void {
    if (question === 'room') return;
    if (failure !== undefined && isAccessDenied(failure)) refusals.set(name, { question, failure });
    else if (failure === undefined ? provesAccess(question, name) : !isUncertain(question, failure))
      refusals.delete(name);
  }

  /** Some servers answer pings of hosts that they deny everything else. A lookup succeeds if only the record cannot be read. */
  const provesAccess = (question: Question, name: StoreName): boolean =>
    ['ping', question].includes(refusals.get(name)?.question ?? 'ping') || question === 'list';

  /** What was denied, which the store may allow by now. */
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
    /** One that says no at once costs nobody anything, and may say yes the next time. */
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
      // Perhaps the server ends every connection at once, which this call may learn much later.
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
      // Other calls cannot tell whether the server is down now or still ends every connection.
      if (hadRefusal && isUncertain(question, failure)) await pings(name, scope);
      if (question === 'room')
        scope.log.debug('free space of a store is unknown', { store: name, why: failure.message });
      else scope.log.warn('store did not answer', { store: name, question, why: failure.message });
      return false;
    }
  }

  /** Not asked again while it still owes the answer. */
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

  /** Whether one name can be asked for; where other answers are late, the server is asked first whether it is there. */
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
      // It may have been removed since its name was listed.
      const { store, problem } =
        stores()
          .list()
          .find(({ config }) => config.name === name) ?? {};
      if (store !== undefined) return refusals.get(name)?.failure;
      return problem !== undefined && isAccessDenied(problem) ? problem : undefined;
    },
  };
}
