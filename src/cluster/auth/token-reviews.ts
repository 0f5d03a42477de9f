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

/** Whose token it is, as Kubernetes says. */
export interface ReviewedUser {
  readonly username: string;
  readonly uid: string;
  readonly groups: readonly string[];
  readonly extra: Readonly<Record<string, readonly string[]>>;
}

export interface TokenReviewsOptions {
  readonly client: KubeClient;
  readonly clock: Clock;
  /** Whom a token must be meant for. A token for somebody else, the API server included, is refused. */
  readonly audience: string;
  /**
   * How long an answer that lets somebody in is remembered; zero: never. The API server itself remembers for ten seconds whom it
   * has let in, so that for as long nobody is kept out later than by asking it each time. Refusals are not remembered.
   */
  readonly rememberMs?: number;
  /** Only tokens of service accounts come here: what cannot be one, by what it says of itself, is refused without asking. */
  readonly accountsOnly?: boolean;
}

export interface TokenReviews {
  /**
   * `from`: an address, which makes only so many be asked for at a time. Throws: 'token-missing', 'token-refused' (unauthenticated),
   * or 'review-failed' (unavailable) where Kubernetes could not be asked.
   */
  review(token: string | undefined, scope: Scope, from?: string): Promise<ReviewedUser>;
}

const callMs = 10_000;
/** At a time: whoever can reach the door can make us ask. */
const maxConcurrent = 16;
/** Of those who wait for that, of all and of one address, and of those remembered. */
const maxWaiting = 256;
const maxWaitingPerAddress = 16;
const maxRemembered = 1_000;
/** What can be a token at all. Those of Kubernetes have some 1,200 characters. */
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
    // An API server that knows nothing of audiences does not say them, and has looked at none.
    if (status?.authenticated !== true || status.audiences?.includes(audience) !== true || username === '')
      throw refused(audience);
    return { username, uid, groups, extra };
  }

  async function askLimited(token: string, scope: Scope, from: string | undefined): Promise<ReviewedUser> {
    const others = from === undefined ? 0 : (waitingFrom.get(from) ?? 0);
    if (waiting >= maxWaiting || others >= maxWaitingPerAddress) throw reviewFailed(new Error('too many tokens are being reviewed'));
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
      // Not the token itself: it would stay in memory for longer than it is used.
      const key = createHash('sha256').update(token).digest('base64');
      return await remembered.of(key, () => askLimited(token, scope, from));
    },
  };
}

const nodeName = 'authentication.kubernetes.io/node-name';

/** The node that an agent may speak for: by its token, which is bound to its pod, and by nothing that it says. */
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
  new StowageError('a bearer token is required here', {
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
