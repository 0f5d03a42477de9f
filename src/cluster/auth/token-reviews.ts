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
   * How long to cache a positive answer; zero: no cache. The API server itself caches positive answers for ten seconds, so a cache of up to
   * that time does not accept a revoked token for longer. Refusals are not cached.
   */
  readonly cacheMs?: number;
  /** Refuses, without a review, a token whose claims cannot be those of a valid service account token. */
  readonly serviceAccountsOnly?: boolean;
}

export interface TokenReviews {
  /**
   * Each `clientAddress` has a limit of concurrent reviews. Throws 'token-missing', 'token-refused' (unauthenticated), or
   * 'review-failed' (unavailable) if Kubernetes does not answer.
   */
  review(token: string | undefined, scope: Scope, clientAddress?: string): Promise<ReviewedUser>;
}

const reviewTimeoutMs = 10_000;
/** The limit of concurrent reviews: anyone who can reach the server can cause a review. */
const maxConcurrentReviews = 16;
/** The limits of waiting reviews, in total and for one address, and of cached answers. */
const maxWaitingReviews = 256;
const maxWaitingPerAddress = 16;
const maxCachedAnswers = 1_000;
/** The form of a token. Tokens of Kubernetes have about 1,200 characters. */
const tokenPattern = /^[!-~]{1,8192}$/;

/** The token of an `Authorization: Bearer` header. */
export const bearerOf = (header: string | undefined): string | undefined => /^Bearer +(\S+)$/i.exec(header ?? '')?.[1];

export function createTokenReviews(options: TokenReviewsOptions): TokenReviews {
  const { client, clock, audience, cacheMs = 0, serviceAccountsOnly = false } = options;
  const cachedReviews = createAnswerCache<ReviewedUser>({ clock, ttlMs: cacheMs, maxEntries: maxCachedAnswers });
  const limiter = createLimiter(maxConcurrentReviews);
  const waitingByAddress = new Map<string, number>();
  let waiting = 0;

  async function requestReview(token: string, scope: Scope): Promise<ReviewedUser> {
    using limit = clock.deadline(reviewTimeoutMs, scope.signal);
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
      throw tokenRefused(audience);
    return { username, uid, groups, extra };
  }

  async function requestReviewLimited(
    token: string,
    scope: Scope,
    clientAddress: string | undefined,
  ): Promise<ReviewedUser> {
    const waitingBefore = clientAddress === undefined ? 0 : (waitingByAddress.get(clientAddress) ?? 0);
    if (waiting >= maxWaitingReviews || waitingBefore >= maxWaitingPerAddress)
      throw reviewFailed(new Error('too many tokens are being reviewed'));
    waiting++;
    if (clientAddress !== undefined) waitingByAddress.set(clientAddress, waitingBefore + 1);
    try {
      return await limiter.run(() => requestReview(token, scope));
    } finally {
      waiting--;
      if (clientAddress !== undefined) stopWaiting(clientAddress);
    }
  }

  function stopWaiting(clientAddress: string): void {
    const remaining = (waitingByAddress.get(clientAddress) ?? 0) - 1;
    if (remaining > 0) waitingByAddress.set(clientAddress, remaining);
    else waitingByAddress.delete(clientAddress);
  }

  return {
    review: async (token, scope, clientAddress) => {
      if (token === undefined) throw tokenMissing(audience);
      if (!tokenPattern.test(token)) throw tokenRefused(audience);
      if (serviceAccountsOnly && !mayBeTokenFor(token, audience, clock.now())) throw tokenRefused(audience);
      if (cacheMs === 0) return await requestReviewLimited(token, scope, clientAddress);
      // A hash, so that the token does not stay in memory.
      const key = createHash('sha256').update(token).digest('base64');
      return await cachedReviews.get(key, () => requestReviewLimited(token, scope, clientAddress));
    },
  };
}

const nodeNameKey = 'authentication.kubernetes.io/node-name';

/** The node of an agent, taken only from the agent's token, which is bound to its pod. */
export function nodeOfAgent({ username, extra }: ReviewedUser, namespace: string): string {
  const account = agentAccount(namespace);
  if (username !== account) {
    throw new StowageError(`${username} is not the agents' service account`, {
      code: 'denied',
      reason: 'agent-account-other',
      action: `Agents run as ${account}: see the DaemonSet of the chart.`,
    });
  }
  const [node, ...more] = extra[nodeNameKey] ?? [];
  if (node !== undefined && node !== '' && more.length === 0) return node;
  throw new StowageError("the token does not name the node of the agent's pod", {
    code: 'denied',
    reason: 'agent-node-unknown',
    action:
      'Tokens that are bound to a pod name its node from Kubernetes 1.30 on: the agent must use the token that is ' +
      'projected into its own pod.',
  });
}

const tokenMissing = (audience: string): StowageError =>
  new StowageError('a bearer token is required', {
    code: 'unauthenticated',
    reason: 'token-missing',
    action: `Send a Kubernetes token for the audience ${audience}.`,
  });

const tokenRefused = (audience: string): StowageError =>
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
