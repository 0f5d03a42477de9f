import type { Static, TObject, TSchema } from 'typebox';
import type { Core } from '#core/core.ts';
import type { Call } from '#core/operations.ts';
import type { Right } from './access.ts';
import type { ClusterNodes } from './cluster-nodes.ts';
import type { Principal } from './principal.ts';

/** The validated request that a handler gets. */
export interface Request<P, Q, B> {
  readonly core: Core;
  readonly call: Call;
  readonly principal: Principal;
  readonly params: P;
  readonly query: Q;
  readonly body: B;
  /** The revision from If-Match. */
  readonly expected: number | undefined;
  /** Throws 'denied' unless the caller has this right, too. */
  readonly permit: (right: Right) => Promise<void>;
  /** The nodes of the cluster; undefined outside a cluster. */
  readonly nodes: ClusterNodes | undefined;
}

export interface Answer {
  readonly status: number;
  readonly body?: unknown;
  readonly headers?: Readonly<Record<string, string>>;
}

/** A right that a request needs in addition to the route's own, depending on its body. */
export interface FurtherRight extends Right {
  /** For the documentation: when it is needed. */
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
  readonly additionalRight?: FurtherRight;
  /** The answer holds a secret: it is not kept for a repeated Idempotency-Key. */
  readonly secret?: boolean;
  /** The kinds of operation that the route starts. Such routes support `Prefer: respond-async`. */
  readonly operation?: string | readonly string[];
  /** Takes If-Match. */
  readonly conditional?: boolean;
  /** Left out: the default deadline. */
  readonly deadlineMs?: number;
  /** The volume may be node-local: if the controller does not know it, the request goes to the node that has it. */
  readonly onNodes?: boolean;
  readonly success: { readonly status: number; readonly description: string; readonly schema?: TSchema };
  handle(request: Request<never, never, never>): Promise<Answer> | Answer;
}

type StaticOf<T> = T extends TObject ? Static<T> : undefined;

/** Defines a route, with the handler's types derived from the schemas. */
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
