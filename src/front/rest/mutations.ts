import { createHash, randomUUID } from 'node:crypto';
import type { Clock } from '#base/clock.ts';
import type { Core } from '#core/core.ts';
import { StowageError } from '#core/errors.ts';
import type { Operation, OperationId } from '#core/model.ts';
import type { Call, OperationView } from '#core/operations.ts';
import type { StoredResponse } from '#core/ports.ts';
import { operationJson } from './json.ts';
import type { Answer } from './route.ts';
import type { OperationJson } from './schemas.ts';

export interface Mutation {
  readonly principal: string;
  readonly key: string | undefined;
  /** Method, path, body and If-Match, to detect that a key is reused for another request. */
  readonly content: () => string;
  /** The client sent `Prefer: respond-async`. */
  readonly detached: boolean;
  readonly keepAnswer: boolean;
  /** `Prefer: answer-forgotten`: no answer is kept. A retry runs the work again, which finds the volume by the request's id. */
  readonly forgotten: boolean;
}

type MutationWork = (call: Call) => Promise<Answer> | Answer;

export interface Mutations {
  run(mutation: Mutation, scope: Omit<Call, 'requestId' | 'onOperation'>, work: MutationWork): Promise<Answer>;
  resultOf(operation: OperationId): unknown;
}

interface PerformedMutation {
  readonly answer: Answer;
  /** Set if the answer is a 202: the operation that still runs. */
  readonly running?: { readonly operation: OperationId; readonly finished: Promise<Answer> };
}

const maxKeptResults = 256;

/** Runs requests that change something: a repeated Idempotency-Key gets the first answer, and long work can continue after a 202. */
export function createMutations(core: Pick<Core, 'idempotentResponses' | 'operations'>, clock: Clock): Mutations {
  const results = new Map<OperationId, unknown>();

  function keepResult(id: OperationId, body: unknown): void {
    results.set(id, body);
    const [oldest] = results.keys();
    if (results.size > maxKeptResults && oldest !== undefined) results.delete(oldest);
  }

  function acceptedAnswer({ operation: asked, progress }: OperationView): Answer {
    const operation = { ...asked, error: undefined };
    return {
      status: 202,
      // The 202 omits errors, which may need redaction. The client gets them from the operation itself.
      body: operationJson({ operation, progress }, results.get(operation.id)),
      headers: { location: `/v1/operations/${operation.id}`, 'preference-applied': 'respond-async' },
    };
  }

  /** Answers as soon as the operation is on record; the work continues. */
  async function runInBackground(call: Call, work: MutationWork): Promise<PerformedMutation> {
    const { promise: began, resolve: begin } = Promise.withResolvers<Operation>();
    const finished = Promise.resolve(work({ ...call, onOperation: begin }));
    const first = await Promise.race([began, finished]);
    if (!('kind' in first)) return { answer: first };
    finished.then(
      ({ body }) => keepResult(first.id, body),
      () => undefined,
    );
    return {
      answer: acceptedAnswer({ operation: first, progress: undefined }),
      running: { operation: first.id, finished },
    };
  }

  const runOnce = createRunOnce(core, clock, acceptedAnswer);
  return {
    run: async (mutation, scope, work) => {
      const { key } = mutation;
      // Keys are scoped to their principal.
      const requestId = key === undefined ? randomUUID() : `${mutation.principal} ${key}`;
      const call: Call = { ...scope, requestId };
      const perform = async (): Promise<PerformedMutation> =>
        mutation.detached ? await runInBackground(call, work) : { answer: await work(call) };
      const isKept = key !== undefined && !mutation.forgotten;
      return isKept ? await runOnce(requestId, mutation, perform) : (await perform()).answer;
    },
    resultOf: (operation) => results.get(operation),
  };
}

type RunOnce = (key: string, mutation: Mutation, perform: () => Promise<PerformedMutation>) => Promise<Answer>;

function createRunOnce(
  { idempotentResponses: answers, operations }: Pick<Core, 'idempotentResponses' | 'operations'>,
  clock: Clock,
  accepted: (view: OperationView) => Answer,
): RunOnce {
  const inFlight = new Map<string, { readonly fingerprint: string; readonly performed: Promise<PerformedMutation> }>();

  /** Without an answer, the next request with that key runs the work again. */
  function keep(key: string, fingerprint: string, answer: Answer | undefined): void {
    const body = answer === undefined ? '' : JSON.stringify(answer);
    answers.put(key, { fingerprint, status: answer?.status, body, at: clock.now() });
  }

  /** After a 202, replaces the kept answer when the operation ends. */
  async function keepFinalAnswer(
    key: string,
    fingerprint: string,
    running: NonNullable<PerformedMutation['running']>,
  ): Promise<void> {
    const done = await running.finished.then(
      () => true,
      () => false,
    );
    try {
      const view = operations.get(running.operation);
      keep(key, fingerprint, done && view !== undefined ? accepted(view) : undefined);
    } catch {
      // The 202 stays, and clients ask for the operation itself.
    }
  }

  function answerFrom(stored: StoredResponse): Answer | undefined {
    if (stored.status === undefined) return undefined;
    const kept = JSON.parse(stored.body) as Answer;
    if (kept.status !== 202) return kept;
    const { id, state } = kept.body as OperationJson;
    const view = state === 'running' ? operations.get(id as OperationId) : undefined;
    if (view === undefined) return kept;
    const isFailure = view.operation.state === 'failed' || view.operation.state === 'canceled';
    return isFailure ? undefined : accepted(view);
  }

  return async (key, mutation, perform) => {
    const fingerprint = createHash('sha256').update(mutation.content()).digest('base64url');
    const running = inFlight.get(key);
    const stored = answers.get(key);
    if (((running ?? stored)?.fingerprint ?? fingerprint) !== fingerprint) throw keyReused();
    if (running !== undefined) return (await running.performed).answer;
    const known = stored && answerFrom(stored);
    if (known !== undefined) return known;
    keep(key, fingerprint, undefined);
    const performed = perform();
    inFlight.set(key, { fingerprint, performed });
    try {
      const { answer, running: going } = await performed;
      // Failures are not kept, since a retry may succeed and repeating the work is safe. Secrets are never kept.
      if (mutation.keepAnswer) keep(key, fingerprint, answer);
      if (going !== undefined) void keepFinalAnswer(key, fingerprint, going);
      return answer;
    } finally {
      inFlight.delete(key);
    }
  };
}

function keyReused(): StowageError {
  return new StowageError('this Idempotency-Key was used for another request', {
    code: 'conflict',
    reason: 'idempotency-key-reused',
    action: 'Use a new key for every new request, and reuse a key only to retry the same request.',
  });
}
