import { createHash, randomUUID } from 'node:crypto';
import type { Clock } from '#base/clock.ts';
import { StowageError } from '#core/errors.ts';
import type { Operation, OperationId } from '#core/model.ts';
import type { Call } from '#core/operations.ts';
import type { Records } from '#core/ports.ts';
import { operationJson } from './json.ts';
import type { Answer } from './route.ts';

export interface Mutation {
  readonly principal: string;
  readonly key: string | undefined;
  /** Method, path and body: the same key must mean the same request. */
  readonly content: () => string;
  /** The client said `Prefer: respond-async`. */
  readonly detached: boolean;
  readonly keepAnswer: boolean;
}

export interface Mutations {
  run(
    mutation: Mutation,
    scope: Omit<Call, 'requestId' | 'onOperation'>,
    work: (call: Call) => Promise<Answer> | Answer,
  ): Promise<Answer>;
  resultOf(operation: OperationId): unknown;
}

const keptResults = 256;

/** Requests that change something: a repeated Idempotency-Key gets the first answer, and long work can be left to itself. */
export function createMutations(records: Pick<Records, 'answers'>, clock: Clock): Mutations {
  const inFlight = new Map<string, { readonly fingerprint: string; readonly answer: Promise<Answer> }>();
  const results = new Map<OperationId, unknown>();

  function keepResult(id: OperationId, body: unknown): void {
    results.set(id, body);
    const [oldest] = results.keys();
    if (results.size > keptResults && oldest !== undefined) results.delete(oldest);
  }

  /** Answers as soon as the work has its record; the work goes on. */
  async function detach(call: Call, work: (call: Call) => Promise<Answer> | Answer): Promise<Answer> {
    const { promise: began, resolve: begin } = Promise.withResolvers<Operation>();
    const finished = Promise.resolve(work({ ...call, onOperation: begin }));
    void began.then((operation) =>
      finished.then((answer) => keepResult(operation.id, answer.body)).catch(() => undefined),
    );
    const first = await Promise.race([began, finished]);
    if (!('kind' in first)) return first;
    return {
      status: 202,
      body: operationJson({ operation: first, progress: undefined }, undefined),
      headers: { location: `/v1/operations/${first.id}`, 'preference-applied': 'respond-async' },
    };
  }

  async function once(
    key: string,
    fingerprint: string,
    mutation: Mutation,
    perform: () => Promise<Answer>,
  ): Promise<Answer> {
    const running = inFlight.get(key);
    if (running !== undefined) {
      if (running.fingerprint !== fingerprint) throw reused();
      return await running.answer;
    }
    const stored = records.answers.get(key);
    if (stored !== undefined && stored.fingerprint !== fingerprint) throw reused();
    if (stored?.status !== undefined) return JSON.parse(stored.body) as Answer;
    records.answers.put(key, { fingerprint, status: undefined, body: '', at: clock.now() });
    const answer = perform();
    inFlight.set(key, { fingerprint, answer });
    try {
      const done = await answer;
      // A failure is not kept: the repeat may succeed, and doing the work again is safe. Nor is a secret, ever.
      if (mutation.keepAnswer)
        records.answers.put(key, { fingerprint, status: done.status, body: JSON.stringify(done), at: clock.now() });
      return done;
    } finally {
      inFlight.delete(key);
    }
  }

  return {
    run: async (mutation, scope, work) => {
      const call: Call = { ...scope, requestId: mutation.key ?? randomUUID() };
      const perform = async (): Promise<Answer> => (mutation.detached ? await detach(call, work) : await work(call));
      if (mutation.key === undefined) return await perform();
      const fingerprint = createHash('sha256').update(mutation.content()).digest('base64url');
      return await once(`${mutation.principal} ${mutation.key}`, fingerprint, mutation, perform);
    },
    resultOf: (operation) => results.get(operation),
  };
}

function reused(): StowageError {
  return new StowageError('this Idempotency-Key was used for another request', {
    code: 'conflict',
    reason: 'idempotency-key-reused',
    action: 'Use a fresh key for every new request, and the same key only to repeat one.',
  });
}
