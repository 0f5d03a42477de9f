import { type ErrorCode, errorCodes, type ReasonWith, StowageError, stowageError } from '#core/errors.ts';
import type { ProblemJson } from '#front/rest/schemas.ts';

type Problem = Partial<ProblemJson> & Pick<ProblemJson, 'detail' | 'code' | 'reason' | 'action'>;

/** The server answered, and its answer is no. */
export class Refused extends Error {
  override readonly name = 'Refused';
  readonly problem: Problem;
  constructor(problem: Problem) {
    super(problem.detail);
    this.problem = problem;
  }
}

const known = (code: string): code is ErrorCode => Object.hasOwn(errorCodes, code);

/** Whatever was thrown, in the form in which it is shown. */
export function problemOf(thrown: unknown): Problem {
  if (thrown instanceof Refused) return thrown.problem;
  const { message, code, reason, action } = stowageError(thrown);
  return { title: errorCodes[code].title, status: errorCodes[code].http, detail: message, code, reason, action };
}

/** A newer server may know codes that this program does not. */
export function exitOf(thrown: unknown): number {
  const { code } = problemOf(thrown);
  return known(code) ? errorCodes[code].exit : 1;
}

/** An error answer; undefined when it is none of ours (a proxy's page, another program's). */
export function refusal(body: unknown): Refused | undefined {
  if (typeof body !== 'object' || body === null) return undefined;
  const { detail, code, reason, action } = body as Record<string, unknown>;
  if (typeof detail !== 'string' || typeof code !== 'string') return undefined;
  const text = (value: unknown): string => (typeof value === 'string' ? value : '');
  return new Refused({ ...body, detail, code, reason: text(reason), action: text(action) });
}

export const invalid = (
  message: string,
  reason: ReasonWith<'invalid'>,
  action: string,
  cause?: unknown,
): StowageError => new StowageError(message, { code: 'invalid', reason, action, cause });
