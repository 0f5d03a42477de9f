import type { Static, TObject, TSchema } from 'typebox';
import type { Core } from '#core/core.ts';
import type { Call } from '#core/operations.ts';
import type { Right } from './access.ts';
import type { ClusterNodes } from './cluster-nodes.ts';
import type { Principal } from './principal.ts';

/** What a handler gets: everything validated, nothing of HTTP. */
export interface Request<P, Q, B> {
  readonly core: Core;
  readonly call: Call;
  readonly principal: Principal;
  readonly params: P;
  readonly query: Q;
  readonly body: B;
  /** From If-Match. */
  readonly expected: number | undefined;
  /** Throws 'denied' unless they may do that, too. */
  readonly permit: (right: Right) => Promise<void>;
  /** Where a cluster's volumes are mounted, and those are that no other place can work on. Undefined: there is only this machine. */
  readonly nodes: ClusterNodes | undefined;
}

export interface Answer {
  readonly status: number;
  readonly body?: unknown;
  readonly headers?: Readonly<Record<string, string>>;
}

/** A right that a request needs beyond the route's own, because of what its body asks for. */
export interface FurtherRight extends Right {
  /** For people: when it is needed. */
  readonly when: string;
  isNeeded(body: unknown): boolean;
}

export interface Route extends Right {
  readonly method: 'GET' | 'POST' | 'PATCH' | 'DELETE';
  readonly path: string;
  readonly id: string;
  readonly tag: string;
  readonly summary: string;
  readonly params?: TObject;
  readonly query?: TObject;
  readonly body?: TObject;
  /** The body may be left out. */
  readonly bodyOptional?: boolean;
  readonly further?: FurtherRight;
  /** The answer holds a secret: it is not kept for a repeated Idempotency-Key. */
  readonly secret?: boolean;
  /** The kind of operation it runs as, or one of several: `Prefer: respond-async` is answered with 202. */
  readonly operation?: string | readonly string[];
  /** Takes If-Match. */
  readonly conditional?: boolean;
  /** Where the usual time is not enough. */
  readonly deadlineMs?: number;
  /** About a volume that may be a node's: what is unknown here is passed on to the node that has it. */
  readonly onNodes?: boolean;
  readonly success: { readonly status: number; readonly description: string; readonly schema?: TSchema };
  handle(request: Request<never, never, never>): Promise<Answer> | Answer;
}

type StaticOf<T> = T extends TObject ? Static<T> : undefined;

/** Ties a handler's types to its schemas. */
export function route<
  P extends TObject | undefined = undefined,
  Q extends TObject | undefined = undefined,
  B extends TObject | undefined = undefined,
>(
  definition: Omit<Route, 'handle' | 'params' | 'query' | 'body'> & {
    readonly params?: P;
    readonly query?: Q;
    readonly body?: B;
    handle(request: Request<StaticOf<P>, StaticOf<Q>, StaticOf<B>>): Promise<Answer> | Answer;
  },
): Route {
  return definition as unknown as Route;
}

export const ok = (body: unknown, headers?: Answer['headers']): Answer => ({
  status: 200,
  body,
  ...(headers && { headers }),
});
export const created = (body: unknown, headers?: Answer['headers']): Answer => ({
  status: 201,
  body,
  ...(headers && { headers }),
});
export const nothing: Answer = { status: 204 };
