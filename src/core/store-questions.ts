import type { Clock } from '#base/clock.ts';
import type { Scope } from '#base/log.ts';
import { endsWithin } from '#base/wait.ts';
import { isAccessDenied } from './access-denial.ts';
import { errorReason } from './error-reasons.ts';
import { type StowageError, stowageError } from './errors.ts';
import type { StoreName } from './model.ts';
import type { Store } from './ports.ts';
import type { Stores } from './stores.ts';

/** The kinds of questions to a store. One can be unanswered while another is answered. */
type Question = 'list' | 'look' | 'ping' | 'room';

/** A healthy store lists its names within this time. */
const listTimeoutMs = 3_000;
/** The timeout of a ping and of the free space, which take a single call. */
const pingTimeoutMs = 2_000;
/** A store that takes longer than `maxQuickFailureMs` to fail is not asked again for `slowFailurePauseMs`. */
const maxQuickFailureMs = 1_000;
const slowFailurePauseMs = 10_000;

/** Asks stores questions, and remembers which of them are late or were denied. */
export interface StoreQuestions {
  /** Asks and waits a bounded time; false if the store did not answer. */
  ask(question: Question, name: StoreName, scope: Scope, ask: (open: Store) => Promise<void>): Promise<boolean>;
  /** Does not ping again while an earlier ping is unanswered. */
  ping(name: StoreName, scope: Scope): Promise<boolean>;
  readonly late: Pick<LateQuestions, 'isLate'>;
  readonly denials: Pick<Denials, 'failureOf' | 'questionOf'>;
}

/** True if the failure may be a denial, which only a ping can tell. */
const isUncertain = (question: Question, { reason }: StowageError): boolean =>
  (question === 'list' || question === 'look') && errorReason(reason)?.mayBeDenial === true;

export function createStoreQuestions({
  clock,
  stores,
}: {
  readonly clock: Clock;
  readonly stores: () => Pick<Stores, 'use'>;
}): StoreQuestions {
  const lateQuestions = createLateQuestions(clock);
  const denials = createDenials();

  async function ask(
    question: Question,
    name: StoreName,
    scope: Scope,
    callStore: (open: Store) => Promise<void>,
  ): Promise<boolean> {
    const since = clock.elapsed();
    /** A quick failure is cheap, so the store is asked again the next time. */
    const handleFailure = (thrown: unknown): StowageError => {
      if (clock.elapsed() - since > maxQuickFailureMs) lateQuestions.pause(question, name);
      else lateQuestions.markAnswered(question, name);
      const failure = stowageError(thrown);
      if (!scope.signal.aborted) denials.record(question, name, failure);
      return failure;
    };
    const handleSuccess = (): void => {
      lateQuestions.markAnswered(question, name);
      denials.record(question, name, undefined);
    };
    const call = stores().use(name, callStore);
    const isOneCall = question === 'ping' || question === 'room';
    if (!(await endsWithin(call, isOneCall ? pingTimeoutMs : listTimeoutMs, clock))) {
      lateQuestions.markUnanswered(question, name);
      if (question === 'ping') denials.forget(name);
      call.then(handleSuccess, handleFailure);
      // The server may close every connection at once, which this call may learn much later than a ping.
      if (!isOneCall) await ping(name, scope);
      return false;
    }
    try {
      await call;
      handleSuccess();
      return true;
    } catch (thrown) {
      scope.signal.throwIfAborted();
      const hadRefusal = denials.failureOf(name) !== undefined;
      const failure = handleFailure(thrown);
      // Only a ping can tell whether the server is down now or still closes every connection.
      if (hadRefusal && isUncertain(question, failure)) await ping(name, scope);
      if (question === 'room')
        scope.log.debug('free space of a store is unknown', { store: name, why: failure.message });
      else scope.log.warn('store did not answer', { store: name, question, why: failure.message });
      return false;
    }
  }

  const ping = async (name: StoreName, scope: Scope): Promise<boolean> =>
    !lateQuestions.isUnanswered('ping', name) &&
    (await ask('ping', name, scope, async (open) => await open.ping?.(scope)));

  return { ask, ping, late: lateQuestions, denials };
}

export interface LateQuestions {
  /** True if one of these questions is late. */
  isLate(name: StoreName, ...questions: Question[]): boolean;
  /** Nobody waits for this question for `slowFailurePauseMs`. */
  pause(question: Question, name: StoreName): void;
  /** Nobody waits for this question until it is answered. */
  markUnanswered(question: Question, name: StoreName): void;
  isUnanswered(question: Question, name: StoreName): boolean;
  markAnswered(question: Question, name: StoreName): void;
}

/** Which questions to which stores are late, and until when nobody waits for them. */
function createLateQuestions(clock: Clock): LateQuestions {
  const lateUntil = {
    list: new Map<StoreName, number>(),
    look: new Map<StoreName, number>(),
    ping: new Map<StoreName, number>(),
    room: new Map<StoreName, number>(),
  };
  return {
    isLate: (name, ...questions) =>
      questions.some((question) => (lateUntil[question].get(name) ?? 0) > clock.elapsed()),
    pause: (question, name) => void lateUntil[question].set(name, clock.elapsed() + slowFailurePauseMs),
    markUnanswered: (question, name) => void lateUntil[question].set(name, Number.POSITIVE_INFINITY),
    isUnanswered: (question, name) => lateUntil[question].get(name) === Number.POSITIVE_INFINITY,
    markAnswered: (question, name) => void lateUntil[question].delete(name),
  };
}

export interface Denials {
  /** Records the answer to a question. `failure` undefined: the store answered it. */
  record(question: Question, name: StoreName, failure: StowageError | undefined): void;
  failureOf(name: StoreName): StowageError | undefined;
  questionOf(name: StoreName): Question | undefined;
  forget(name: StoreName): void;
}

/** The stores that denied access in their last answer. */
function createDenials(): Denials {
  const denials = new Map<StoreName, { readonly question: Question; readonly failure: StowageError }>();

  /** Some servers answer pings of hosts to which they deny everything else. A lookup succeeds even if the record cannot be read. */
  const provesAccess = (question: Question, name: StoreName): boolean =>
    ['ping', question].includes(denials.get(name)?.question ?? 'ping') || question === 'list';

  return {
    record: (question, name, failure) => {
      // Ignore free space: some servers report it to everybody, others to nobody, so it says nothing about access.
      if (question === 'room') return;
      if (failure !== undefined && isAccessDenied(failure)) denials.set(name, { question, failure });
      else if (failure === undefined ? provesAccess(question, name) : !isUncertain(question, failure))
        denials.delete(name);
    },
    failureOf: (name) => denials.get(name)?.failure,
    questionOf: (name) => denials.get(name)?.question,
    forget: (name) => void denials.delete(name),
  };
}
