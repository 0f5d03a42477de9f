import { StowageError } from '#core/errors.ts';
import type { OperationJson } from '#front/rest/schemas.ts';
import type { ChangeRequest } from './http.ts';
import { ServerProblem } from './problem.ts';
import { createProgressBar, noProgressBar, type ProgressBar } from './progress.ts';
import type { Session } from './session.ts';

const pollIntervalMs = 200;
/** How long to wait for a cancelled operation to end. An operation that waits for an unreachable server takes longer. */
const cancelTimeoutMs = 1_000;

/**
 * Runs work that can take long. On a terminal it runs in the background of the server, with a progress bar, and Ctrl-C cancels it; otherwise
 * it is one request. Undefined: the work is done, but it has no result, or the server was restarted and no longer knows it.
 */
export async function runLongOperation<T>(session: Session, change: ChangeRequest): Promise<T | undefined> {
  const { client, isInteractive } = session;
  const answer = await client.change(isInteractive ? { ...change, background: true } : { ...change, long: true });
  if (answer.status !== 202) return answer.body as T | undefined;
  const ended = await follow(session, answer.body as OperationJson);
  if (ended.state === 'done') return (ended.result ?? undefined) as T | undefined;
  throw failure(ended);
}

function failure(operation: OperationJson): Error {
  const { message, ...rest } = operation.error ?? {
    code: 'canceled',
    reason: 'canceled',
    message: `${operation.kind} of ${operation.subject} was cancelled`,
    action: 'Repeat the command to run it again; this is safe.',
  };
  return new ServerProblem({ detail: message, ...rest });
}

async function follow(session: Session, started: OperationJson): Promise<OperationJson> {
  const { client, clock, io } = session;
  using bar: ProgressBar = session.isInteractive ? createProgressBar(io.stderr, clock) : noProgressBar();
  let operation = started;
  // Poll quickly at first, then five times a second.
  for (let pause = 10; operation.state === 'running'; pause = Math.min(pause * 2, pollIntervalMs)) {
    try {
      await clock.sleep(pause, io.signal);
      operation = await client.get<OperationJson>(operationPath(operation), undefined, { waitForRestart: true });
      if (operation.state === 'running') bar.show(operation);
    } catch (thrown) {
      if (!io.signal.aborted) throw thrown;
      bar.clear();
      return await cancel(session, operation);
    }
  }
  return operation;
}

const operationPath = (operation: OperationJson): string => `/v1/operations/${encodeURIComponent(operation.id)}`;

/** The user's signal is aborted, so cancelling uses its own deadline. A second Ctrl-C ends the process. */
async function cancel(session: Session, operation: OperationJson): Promise<OperationJson> {
  const { client, clock, out } = session;
  using limit = clock.deadline(cancelTimeoutMs, new AbortController().signal);
  const how = { signal: limit.signal, waitForRestart: true };
  out.note(`cancelling: ${operation.kind} ${operation.subject}`);
  try {
    await client
      .change({ method: 'POST', path: `${operationPath(operation)}/cancel`, ...how })
      .catch((thrown: unknown) => {
        // The operation has just ended; the next request says how.
        if (!(thrown instanceof ServerProblem)) throw thrown;
      });
    for (;;) {
      const now = await client.get<OperationJson>(operationPath(operation), undefined, how);
      if (now.state === 'done') out.note(`too late to cancel: ${operation.kind} ${operation.subject} is done`);
      if (now.state !== 'running') return now;
      await clock.sleep(pollIntervalMs, limit.signal);
    }
  } catch (cause) {
    throw new StowageError(`cancelled ${operation.kind} of ${operation.subject}, but it has not stopped yet`, {
      code: 'canceled',
      reason: 'cancel-pending',
      action: `Check its state with: stowage operations show ${operation.id}`,
      cause,
    });
  }
}
