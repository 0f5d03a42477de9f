import { createHash } from 'node:crypto';
import type { Clock } from '#base/clock.ts';
import { createLimiter } from '#base/limiter.ts';
import type { Scope } from '#base/log.ts';
import { StowageError } from '#core/errors.ts';
import type { KubeClient } from '#wire/kube/client.ts';
import { tokenReviews } from '#wire/kube/resources.ts';
import { agentAccount } from './names.ts';

/** Whose token it is, as Kubernetes says. */
export interface Reviewed {
  readonly username: string;
  readonly uid: string;
  readonly groups: readonly string[];
  readonly extra: Readonly<Record<string, readonly string[]>>;
}

export interface ReviewsOptions {
  readonly client: KubeClient;
  readonly clock: Clock;
  /** Whom a token must be meant for. A token for somebody else, the API server included, is refused. */
  readonly audience: string;
  /**
   * How long an answer that lets somebody in is remembered; zero: never. The API server itself remembers for ten seconds whom it
   * has let in, so that for as long nobody is kept out later than by asking it each time. Refusals are not remembered.
   */
  readonly rememberMs?: number;
}

export interface Reviews {
  /** Throws: 'token-missing', 'token-refused' (unauthenticated), or 'review-failed' (unavailable) where Kubernetes could not be asked. */
  review(token: string | undefined, scope: Scope): Promise<Reviewed>;
}

const callMs = 10_000;
/** At a time: whoever can reach the door can make us ask. */
const mostCalls = 16;
/** Of those who wait for that, and of those remembered. */
const mostWaiting = 256;
const mostRemembered = 1_000;
/** What can be a token at all. Those of Kubernetes have some 1,200 characters. */
const tokenPattern = /^[!-~]{1,8192}$/;

interface Remembered {
  readonly user: Reviewed;
  readonly until: number;
}

/** The token of an `Authorization: Bearer` header. */
export const bearerOf = (header: string | undefined): string | undefined => /^Bearer +(\S+)$/i.exec(header ?? '')?.[1];

export function createReviews({ client, clock, audience, rememberMs = 0 }: ReviewsOptions): Reviews {
  const remembered = new Map<string, Remembered>();
  const limiter = createLimiter(mostCalls);
  let waiting = 0;

  async function ask(token: string, scope: Scope): Promise<Reviewed> {
    using limit = clock.deadline(callMs, scope.signal);
    const spec = { token, audiences: [audience] };
    const { status } = await client
      .create(tokenReviews, { metadata: {}, spec }, limit.signal)
      .catch((cause: unknown) => {
        scope.signal.throwIfAborted();
        scope.log.warn('Kubernetes could not be asked whose token it is', { error: cause });
        throw unasked(cause);
      });
    const { username = '', uid = '', groups = [], extra = {} } = status?.user ?? {};
    // An API server that knows nothing of audiences does not say them, and has looked at none.
    if (status?.authenticated !== true || status.audiences?.includes(audience) !== true || username === '')
      throw refused(audience);
    return { username, uid, groups, extra };
  }

  function recalled(key: string): Reviewed | undefined {
    const found = remembered.get(key);
    if (found === undefined) return undefined;
    if (clock.elapsed() < found.until) return found.user;
    remembered.delete(key);
    return undefined;
  }

  function remember(key: string, user: Reviewed, since: number): void {
    if (rememberMs === 0) return;
    // The first in is the first out.
    for (const oldest of remembered.keys()) {
      if (remembered.size < mostRemembered) break;
      remembered.delete(oldest);
    }
    remembered.set(key, { user, until: since + rememberMs });
  }

  return {
    review: async (token, scope) => {
      if (token === undefined) throw missing(audience);
      if (!tokenPattern.test(token)) throw refused(audience);
      // Not the token itself: it would stay in memory for longer than it is used.
      const key = rememberMs === 0 ? '' : createHash('sha256').update(token).digest('base64');
      const known = rememberMs === 0 ? undefined : recalled(key);
      if (known !== undefined) return known;
      if (waiting >= mostWaiting) throw unasked(new Error('too many tokens are being reviewed'));
      waiting++;
      try {
        const since = clock.elapsed();
        const user = await limiter.run(() => ask(token, scope));
        remember(key, user, since);
        return user;
      } finally {
        waiting--;
      }
    },
  };
}

const nodeName = 'authentication.kubernetes.io/node-name';

/** The node that an agent may speak for: by its token, which is bound to its pod, and by nothing that it says. */
export function nodeOfAgent({ username, extra }: Reviewed, namespace: string): string {
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
      'Kubernetes says it from version 1.30 on, of tokens that are bound to a pod: the agent must use the token that is ' +
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
  new StowageError('Kubernetes does not vouch for the token', {
    code: 'unauthenticated',
    reason: 'token-refused',
    action: `Send a token that is valid, and meant for the audience ${audience}.`,
  });

const unasked = (cause: unknown): StowageError =>
  new StowageError('Kubernetes could not be asked whose token it is', {
    code: 'unavailable',
    reason: 'review-failed',
    cause,
    action:
      "Try again in a moment. If it persists, look at the controller's log, and whether it may create TokenReviews.",
  });
