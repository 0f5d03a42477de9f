import { terminalSafe } from './terminal-safe.ts';

/** Errors over HTTP: RFC 9457, with extension members. */
export const problemType = 'application/problem+json';
/** For `Accept`: JSON, or a problem. */
export const answerTypes = `application/json, ${problemType}`;

/** Our extension members, and `detail`. */
interface StowageMembers<Code> {
  readonly code: Code;
  readonly reason: string;
  readonly detail: string;
  readonly action: string;
}

interface ProblemFields<Code> {
  readonly error: { readonly code: Code; readonly reason: string; readonly message: string; readonly action: string };
  readonly title: string;
  readonly status: number;
  readonly requestId: string;
}

interface ProblemDocument<Code> extends StowageMembers<Code> {
  readonly type: string;
  readonly title: string;
  readonly status: number;
  readonly requestId: string;
}

export function problemDocument<Code extends string>(fields: ProblemFields<Code>): ProblemDocument<Code> {
  const { error, title, status, requestId } = fields;
  const { code, reason, message, action } = error;
  return {
    type: `https://stowage.dev/errors/${reason}`,
    title,
    status,
    // Internal errors go to the log, not to the client.
    detail: code === 'internal' ? 'Stowage failed to do this' : terminalSafe(message),
    code,
    reason,
    action: terminalSafe(action),
    requestId,
  };
}

/** Undefined: the body is not a problem of ours, for example a proxy's error page. The code may be unknown to this program. */
export function problemIn(body: unknown): StowageMembers<string> | undefined {
  const { code, reason, detail, action } = (body ?? {}) as Readonly<Record<string, unknown>>;
  if (typeof code !== 'string' || typeof detail !== 'string') return undefined;
  return { code, reason: textOf(reason), detail, action: textOf(action) };
}

const textOf = (value: unknown): string => (typeof value === 'string' ? value : '');
