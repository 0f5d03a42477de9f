import { StowageError } from '#core/errors.ts';
import type { OperationJson } from '#front/rest/schemas.ts';
import type { ChangeRequest } from './http.ts';
import { ServerProblem } from './problem.ts';
import { createProgressBar, noProgressBar, type ProgressBar } from './progress.ts';
import type { Session } from './session.ts';

const pollMs = 200;
/**
 * How long a cancelled operation gets to come to its end before we stop looking. One that waits for a server which does not
 * answer needs longer, and ends without us.
 */
const cancelMs = 1_000;

/**
 * Work that can take long. On a terminal the server does it in the background while a bar shows how far it is, and
 * Ctrl-C cancels it; otherwise it is one request. Undefined: it is done, and its result is no longer known (the server
 * was restarted meanwhile), or there is none.
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
    action: 'Repeat the command when you want it done; repeating is safe.',
  };
  return new ServerProblem({ detail: message, ...rest });
}

async function follow(session: Session, started: OperationJson): Promise<OperationJson> {
  const { client, clock, io } = session;
  using bar: ProgressBar = session.isInteractive ? createProgressBar(io.stderr, clock) : noProgressBar();
  let operation = started;
  // Short work is asked about at once, long work five times a second.
  for (let pause = 10; operation.state === 'running'; pause = Math.min(pause * 2, pollMs)) {
    try {
      await clock.sleep(pause, io.signal);
      operation = await client.get<OperationJson>(pathOf(operation), undefined, { waitForRestart: true });
      if (operation.state === 'running') bar.show(operation);
    } catch (thrown) {
      if (!io.signal.aborted) throw thrown;
      bar.clear();
      return await cancel(session, operation);
    }
  }
  return operation;
}

const pathOf = (operation: OperationJson): string => `/v1/operations/${encodeURIComponent(operation.id)}`;

/** The user's signal has ended, so cancelling needs one of its own; it is bounded, and a second Ctrl-C ends the process. */
async function cancel(session: Session, operation: OperationJson): Promise<OperationJson> {
  const { client, clock, out } = session;
  using limit = clock.deadline(cancelMs, new AbortController().signal);
  const how = { signal: limit.signal, patient: true };
  out.note(`cancelling: ${operation.kind} ${operation.subject}`);
  try {
    await client.change({ method: 'POST', path: `${pathOf(operation)}/cancel`, ...how }).catch((thrown: unknown) => {
      // It came to its end just before; how it ended is what the next question answers.
      if (!(thrown instanceof ServerProblem)) throw thrown;
    });
    for (;;) {
      const now = await client.get<OperationJson>(pathOf(operation), undefined, how);
      if (now.state === 'done') out.note(`too late to cancel: ${operation.kind} ${operation.subject} is done`);
      if (now.state !== 'running') return now;
      await clock.sleep(pollMs, limit.signal);
    }
  } catch (cause) {
    throw new StowageError(`${operation.kind} of ${operation.subject} was told to stop, but has not yet`, {
      code: 'canceled',
      reason: 'cancel-pending',
      action: `See how it ends with: stowage operations show ${operation.id}`,
      cause,
    });
  }
}
