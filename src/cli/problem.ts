import { problemIn } from '#base/problem.ts';
import { errorCodes, isErrorCode } from '#core/error-codes.ts';
import { type ReasonWith, StowageError, stowageError } from '#core/errors.ts';
import type { ProblemJson } from '#front/rest/schemas.ts';

type Problem = Partial<ProblemJson> & Pick<ProblemJson, 'detail' | 'code' | 'reason' | 'action'>;

/** The server answered with a problem. */
export class ServerProblem extends Error {
  override readonly name = 'Refused';
  readonly problem: Problem;
  constructor(problem: Problem) {
    super(problem.detail);
    this.problem = problem;
  }
}

/** Any thrown value as a problem. */
export function problemOf(thrown: unknown): Problem {
  if (thrown instanceof ServerProblem) return thrown.problem;
  const { message, code, reason, action } = stowageError(thrown);
  return { title: errorCodes[code].title, status: errorCodes[code].http, detail: message, code, reason, action };
}

/** A newer server may use codes that this program does not know. */
export function exitOf(thrown: unknown): number {
  const { code } = problemOf(thrown);
  return isErrorCode(code) ? errorCodes[code].exit : 1;
}

/** The problem in an answer; undefined if the answer is not Stowage's, such as a proxy's error page. */
export function parseProblem(body: unknown): ServerProblem | undefined {
  const problem = problemIn(body);
  return problem === undefined ? undefined : new ServerProblem({ ...(body as object), ...problem });
}

export const invalid = (
  message: string,
  reason: ReasonWith<'invalid'>,
  action: string,
  cause?: unknown,
): StowageError => new StowageError(message, { code: 'invalid', reason, action, cause });
