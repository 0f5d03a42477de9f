import { harmless } from './terminal-safe.ts';

/** How errors are sent over HTTP: RFC 9457, with members of our own. */
export const problemType = 'application/problem+json';
/** For `Accept`: an answer, or the problem in its place. */
export const answerTypes = `application/json, ${problemType}`;

/** The members that are ours. */
interface OwnMembers<Code> {
  readonly code: Code;
  readonly reason: string;
  readonly detail: string;
  readonly action: string;
}

interface ProblemAbout<Code> {
  readonly error: { readonly code: Code; readonly reason: string; readonly message: string; readonly action: string };
  readonly title: string;
  readonly status: number;
  readonly requestId: string;
}

interface ProblemDocument<Code> extends OwnMembers<Code> {
  readonly type: string;
  readonly title: string;
  readonly status: number;
  readonly requestId: string;
}

export function problemDocument<Code extends string>(about: ProblemAbout<Code>): ProblemDocument<Code> {
  const { error, title, status, requestId } = about;
  const { code, reason, message, action } = error;
  return {
    type: `https://stowage.dev/errors/${reason}`,
    title,
    status,
    // Internal errors are for the log, not for the wire.
    detail: code === 'internal' ? 'Stowage failed to do this' : harmless(message),
    code,
    reason,
    action: harmless(action),
    requestId,
  };
}

/** Undefined: the body is no problem of ours, such as a proxy's page. The code may be one that this program does not know. */
export function problemIn(body: unknown): OwnMembers<string> | undefined {
  const { code, reason, detail, action } = (body ?? {}) as Readonly<Record<string, unknown>>;
  if (typeof code !== 'string' || typeof detail !== 'string') return undefined;
  return { code, reason: textOf(reason), detail, action: textOf(action) };
}

const textOf = (value: unknown): string => (typeof value === 'string' ? value : '');
