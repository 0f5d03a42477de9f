import { createHash } from 'node:crypto';
import type { Clock } from '#base/clock.ts';
import { createLimiter } from '#base/limiter.ts';
import type { Scope } from '#base/log.ts';
import { StowageError } from '#core/errors.ts';
import type { KubeClient } from '#wire/kube/client.ts';
import { tokenReviews } from '#wire/kube/resources.ts';
import { agentAccount } from '../names.ts';
import { createAnswerCache } from './answer-cache.ts';
import { mayBeTokenFor } from './token-claims.ts';

/** The owner of a token, according to Kubernetes. */
export interface ReviewedUser {
  readonly username: string;
  readonly uid: string;
  readonly groups: readonly string[];
  readonly extra: Readonly<Record<string, readonly string[]>>;
}

export interface TokenReviewsOptions {
  readonly client: KubeClient;
  readonly clock: Clock;
  /** The required audience. Tokens for other audiences, also for the API server, are refused. */
  readonly audience: string;
  /**
   * How long to cache a positive answer; zero: never. The API server itself caches positive answers for ten seconds, so a revoked token is
   * refused no later with a cache of up to that time. Refusals are not cached.
   */
  readonly rememberMs?: number;
  /** Only tokens of service accounts are expected: a token that cannot be one, by its claims, is refused without a review. */
  readonly accountsOnly?: boolean;
}

export interface TokenReviews {
  /**
   * `from` is the client's address, which has a limit of concurrent reviews. Throws 'token-missing', 'token-refused' (unauthenticated), or
   * 'review-failed' (unavailable) if Kubernetes does not answer.
   */
  review(token: string | undefined, scope: Scope, from?: string): Promise<ReviewedUser>;
}

const callMs = 10_000;
/** The limit of concurrent reviews: everybody who can reach the server can cause one. */
const maxConcurrent = 16;
/** The limits of waiting reviews, in total and for one address, and of cached answers. */
const maxWaiting = 256;
const maxWaitingPerAddress = 16;
const maxRemembered = 1_000;
/** The form of a token. Those of Kubernetes have about 1,200 characters. */
const tokenPattern = /^[!-~]{1,8192}$/;

/** The token of an `Authorization: Bearer` header. */
export const bearerOf = (header: string | undefined): string | undefined => /^Bearer +(\S+)$/i.exec(header ?? '')?.[1];

export function createTokenReviews(options: TokenReviewsOptions): TokenReviews {
  const { client, clock, audience, rememberMs = 0, accountsOnly = false } = options;
  const remembered = createAnswerCache<ReviewedUser>({ clock, ms: rememberMs, maxEntries: maxRemembered });
  const limiter = createLimiter(maxConcurrent);
  const waitingFrom = new Map<string, number>();
  let waiting = 0;

  async function ask(token: string, scope: Scope): Promise<ReviewedUser> {
    using limit = clock.deadline(callMs, scope.signal);
    const spec = { token, audiences: [audience] };
    const { status } = await client
      .create(tokenReviews, { metadata: {}, spec }, limit.signal)
      .catch((cause: unknown) => {
        scope.signal.throwIfAborted();
        scope.log.warn('Kubernetes could not review a token', { error: cause });
        throw reviewFailed(cause);
      });
    const { username = '', uid = '', groups = [], extra = {} } = status?.user ?? {};
    // An API server that does not support audiences does not check them, and returns none.
    if (status?.authenticated !== true || status.audiences?.includes(audience) !== true || username === '')
      throw refused(audience);
    return { username, uid, groups, extra };
  }

  async function askLimited(token: string, scope: Scope, from: string | undefined): Promise<ReviewedUser> {
    const others = from === undefined ? 0 : (waitingFrom.get(from) ?? 0);
    if (waiting >= maxWaiting || others >= maxWaitingPerAddress)
      throw reviewFailed(new Error('too many tokens are being reviewed'));
    waiting++;
    if (from !== undefined) waitingFrom.set(from, others + 1);
    try {
      return await limiter.run(() => ask(token, scope));
    } finally {
      waiting--;
      if (from !== undefined) stopWaiting(from);
    }
  }

  function stopWaiting(from: string): void {
    const left = (waitingFrom.get(from) ?? 0) - 1;
    if (left > 0) waitingFrom.set(from, left);
    else waitingFrom.delete(from);
  }

  return {
    review: async (token, scope, from) => {
      if (token === undefined) throw missing(audience);
      if (!tokenPattern.test(token)) throw refused(audience);
      if (accountsOnly && !mayBeTokenFor(token, audience, clock.now())) throw refused(audience);
      if (rememberMs === 0) return await askLimited(token, scope, from);
      // A hash, so that the token does not stay in memory.
      const key = createHash('sha256').update(token).digest('base64');
      return await remembered.of(key, () => askLimited(token, scope, from));
    },
  };
}

const nodeName = 'authentication.kubernetes.io/node-name';

/** The node of an agent. It comes only from the agent's token, which is bound to its pod. */
export function nodeOfAgent({ username, extra }: ReviewedUser, namespace: string): string {
  const account = agentAccount(namespace);
  if (username !== account) {
    throw new StowageError(`${username} is not the agents' service account`, {
      code: 'denied',
      reason: 'agent-account-other',
      action: `Agents run as ${account}: see the DaemonSet of the chart.`,
    });
  }
  const [node, ...more] = extra[nodeName] ?? [];
  if (node !== undefined && node !== '' && more.length === 0) return node;
  throw new StowageError("the token does not say on which node its agent's pod is", {
    code: 'denied',
    reason: 'agent-node-unknown',
    action:
      'Tokens that are bound to a pod name its node from Kubernetes 1.30 on: the agent must use the token that is ' +
      'projected into its own pod.',
  });
}

const missing = (audience: string): StowageError =>
  new StowageError('a bearer token is required', {
    code: 'unauthenticated',
    reason: 'token-missing',
    action: `Send a token of Kubernetes for the audience ${audience}.`,
  });

const refused = (audience: string): StowageError =>
  new StowageError('Kubernetes does not accept the token', {
    code: 'unauthenticated',
    reason: 'token-refused',
    action: `Send a valid token for the audience ${audience}.`,
  });

const reviewFailed = (cause: unknown): StowageError =>
  new StowageError('Kubernetes could not review the token', {
    code: 'unavailable',
    reason: 'review-failed',
    cause,
    action:
      "Try again in a moment. If the problem persists, check the controller's log, and whether it may create TokenReviews.",
  });
