import { DeadlineExceeded } from '#base/clock.ts';
import { problemIn } from '#base/problem.ts';
import { terminalSafeExcerpt } from '#base/terminal-safe.ts';
import { isErrorCode } from '#core/error-codes.ts';
import { reasonGrammar, relayed, StowageError } from '#core/errors.ts';
import { type Answer, AnswerTooLong, ConnectionLost } from './exchange.ts';

export const agentAbsent = (node: string): StowageError =>
  new StowageError(`the agent of node ${node} is not connected`, {
    code: 'unavailable',
    reason: 'agent-absent',
    action: `Check Stowage's pod on that node: kubectl get pods --all-namespaces --field-selector spec.nodeName=${node}`,
  });

/**
 * Returns the error for a request without an answer. Its change may or may not have happened; a retry with the same request id does not
 * repeat it.
 */
export function callErrorFor(node: string, thrown: unknown): unknown {
  if (thrown instanceof DeadlineExceeded) {
    return new StowageError(`the agent of node ${node} gave no answer within ${thrown.ms / 1000} s`, {
      code: 'deadline',
      reason: 'agent-no-answer',
      cause: thrown,
      action: "The agent continues what it has started. Try again; if the problem persists, check that agent's log.",
    });
  }
  if (thrown instanceof AnswerTooLong) return unreadableAnswer(node, thrown.message, thrown);
  if (!(thrown instanceof ConnectionLost)) return thrown;
  return new StowageError(`the connection to the agent of node ${node} was lost before it answered`, {
    code: 'unavailable',
    reason: 'agent-lost',
    cause: thrown,
    action: 'Try again: the agent reconnects. The retry also finds out whether the first request was carried out.',
  });
}

export const unreadableAnswer = (node: string, why: string, cause?: unknown): StowageError =>
  new StowageError(`the agent of node ${node} gave an answer that cannot be read: ${why}`, {
    code: 'internal',
    reason: 'agent-answer-unreadable',
    cause,
    action: 'Check that the agents and the controller have the same version.',
  });

/** Returns the parsed answer, or throws the agent's error. */
export function parseAnswer(node: string, { status, text }: Answer): unknown {
  const body = parseJson(node, status, text);
  if (status >= 200 && status < 300) return body;
  throw errorInProblem(body) ?? unreadableAnswer(node, `status ${status}`);
}

function parseJson(node: string, status: number, text: string): unknown {
  if (text === '') return undefined;
  try {
    return JSON.parse(text);
  } catch (cause) {
    throw unreadableAnswer(node, `it is not JSON (status ${status})`, cause);
  }
}

const reasonPattern = new RegExp(reasonGrammar);

/** An agent is not trusted with the controller's log and Events, so its texts are made terminalSafe. */
function errorInProblem(body: unknown): StowageError | undefined {
  const { code = '', reason = '', detail = '', action = '' } = problemIn(body) ?? {};
  if (!isErrorCode(code) || !reasonPattern.test(reason)) return undefined;
  return relayed(terminalSafeExcerpt(detail), { code, reason, action: terminalSafeExcerpt(action) });
}
