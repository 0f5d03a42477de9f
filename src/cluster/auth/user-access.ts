import { createHash } from 'node:crypto';
import type { IncomingHttpHeaders } from 'node:http';
import type { Clock } from '#base/clock.ts';
import type { Log } from '#base/log.ts';
import type { PodName } from '#core/check-places.ts';
import { StowageError } from '#core/errors.ts';
import type { KubeClient } from '#wire/kube/client.ts';
import { subjectAccessReviews } from '#wire/kube/resources.ts';
import type { SubjectAccessReview } from '#wire/kube/types.ts';
import { audiences } from '../names.ts';
import { createAnswerCache } from './answer-cache.ts';
import { bearerOf, type ReviewedUser, type TokenReviews } from './token-reviews.ts';

/** A verb on a resource of the group `stowage.dev` (`resource/subresource`), on a path, or on a pod. */
export type AccessRequest =
  | { readonly resource: string; readonly verb: string }
  | { readonly pod: PodName; readonly verb: string }
  | { readonly path: string; readonly verb: string };

/** A user of the cluster, as the REST API sees its callers. */
export interface AdmittedUser {
  readonly id: string;
  readonly role: 'user';
  /** The user may read Store objects, which contain the addresses of stores. */
  readonly informed: boolean;
  readonly stores: readonly [];
}

/** Kubernetes authenticates the users of the API by their tokens, and authorizes them by its RBAC rules. */
export interface UserAccess {
  /**
   * `resourceName`: the name of the requested object. Throws 'unauthenticated', 'denied', or 'unavailable' if Kubernetes does not answer.
   */
  admit(
    headers: IncomingHttpHeaders,
    accessRequest: AccessRequest,
    resourceName: string | undefined,
    signal: AbortSignal,
  ): Promise<AdmittedUser>;
}

export interface UserAccessOptions {
  readonly client: KubeClient;
  readonly clock: Clock;
  /** For the audience of users. */
  readonly reviews: TokenReviews;
  /** Receives the causes of failed reviews, which are not disclosed to users. */
  readonly log: Log;
}

const group = 'stowage.dev';
/** The API server's proxy removes `authorization`, so requests through it carry this header. */
const stowageHeader = 'stowage-authorization';
const reviewTimeoutMs = 10_000;
/** How long to cache an answer: a revoked permission stays valid for this time. */
export const accessCacheMs = 5_000;
const maxCachedAnswers = 5_000;

export function createUserAccess({ client, clock, reviews, log }: UserAccessOptions): UserAccess {
  const answers = createAnswerCache<boolean>({ clock, ttlMs: accessCacheMs, maxEntries: maxCachedAnswers });

  async function requestReview(
    user: ReviewedUser,
    wanted: AccessRequest,
    subject: string | undefined,
    signal: AbortSignal,
  ): Promise<boolean> {
    using limit = clock.deadline(reviewTimeoutMs, signal);
    const { username, uid, groups, extra } = user;
    const spec = { user: username, uid, groups, extra, ...attributesOf(wanted, subject) };
    try {
      const review = await client.create(subjectAccessReviews, { metadata: {}, spec }, limit.signal);
      return review.status?.allowed === true && review.status.denied !== true;
    } catch (cause) {
      signal.throwIfAborted();
      log.warn('Kubernetes could not check what a user may do', { error: cause });
      throw reviewFailed(cause);
    }
  }

  const isAllowedTo = (
    user: ReviewedUser,
    wanted: AccessRequest,
    subject: string | undefined,
    signal: AbortSignal,
  ): Promise<boolean> => {
    const key = createHash('sha256')
      .update(JSON.stringify([user, wanted, subject ?? null]))
      .digest('base64');
    return answers.get(key, () => requestReview(user, wanted, subject, signal));
  };

  return {
    admit: async (headers, wanted, subject, signal) => {
      const user = await reviews.review(tokenIn(headers), { signal, log });
      const [isAllowed, informed] = await Promise.all([
        isAllowedTo(user, wanted, subject, signal),
        isAllowedTo(user, { resource: 'stores', verb: 'get' }, undefined, signal),
      ]);
      if (!isAllowed) throw forbidden(user.username, wanted, subject);
      return { id: `user:${user.username}`, role: 'user', informed, stores: [] };
    },
  };
}

function attributesOf(wanted: AccessRequest, name: string | undefined): Omit<SubjectAccessReview['spec'], 'user'> {
  const { verb } = wanted;
  if ('path' in wanted) return { nonResourceAttributes: { path: wanted.path, verb } };
  if ('pod' in wanted)
    return { resourceAttributes: { group: '', version: 'v1', resource: 'pods', verb, ...wanted.pod } };
  const [resource = '', subresource] = wanted.resource.split('/');
  return {
    resourceAttributes: {
      group,
      version: 'v1',
      resource,
      verb,
      ...(subresource === undefined ? {} : { subresource }),
      ...(name === undefined ? {} : { name }),
    },
  };
}

/** Refuses requests with both headers: they could name two users. */
function tokenIn(headers: IncomingHttpHeaders): string | undefined {
  const stowageValue = headers[stowageHeader];
  if (stowageValue !== undefined && headers.authorization !== undefined) throw tokenAmbiguous();
  const authorization = stowageValue ?? headers.authorization;
  const token = typeof authorization === 'string' ? bearerOf(authorization) : undefined;
  if (token !== undefined) return token;
  throw tokenMissing();
}

const createTokenCommand = `kubectl create token ACCOUNT --namespace NAMESPACE --audience ${audiences.users}`;

const tokenAmbiguous = (): StowageError =>
  new StowageError('two tokens were given, in Authorization and in Stowage-Authorization', {
    code: 'unauthenticated',
    reason: 'token-ambiguous',
    action: 'Send one of the two headers.',
  });

const tokenMissing = (): StowageError =>
  new StowageError('a bearer token is required', {
    code: 'unauthenticated',
    reason: 'token-missing',
    action: `Use kubectl stowage, or send 'Authorization: Bearer TOKEN' with the token of a service account: ${createTokenCommand}`,
  });

function forbidden(user: string, wanted: AccessRequest, subject: string | undefined): StowageError {
  const { target, rule } = ruleFor(wanted, subject);
  return new StowageError(`${user} may not ${wanted.verb} ${target}`, {
    code: 'denied',
    reason: 'rule-missing',
    action: `Ask the administrator of the cluster for a ClusterRole with the rule {${rule}, verbs: ["${wanted.verb}"]}, and a ClusterRoleBinding to it.`,
  });
}

function ruleFor(
  wanted: AccessRequest,
  subject: string | undefined,
): { readonly target: string; readonly rule: string } {
  if ('path' in wanted) return { target: wanted.path, rule: `nonResourceURLs: ["${wanted.path}"]` };
  if ('pod' in wanted)
    return { target: `pod '${wanted.pod.namespace}/${wanted.pod.name}'`, rule: 'apiGroups: [""], resources: ["pods"]' };
  const quotedName = subject === undefined ? '' : ` '${subject}'`;
  return {
    target: `${wanted.resource.replace(/^[^/]*/, `$&.${group}`)}${quotedName}`,
    rule: `apiGroups: ["${group}"], resources: ["${wanted.resource}"]`,
  };
}

const reviewFailed = (cause: unknown): StowageError =>
  new StowageError('Kubernetes could not check whether this is allowed', {
    code: 'unavailable',
    reason: 'review-failed',
    cause,
    action:
      "Try again in a moment. If the problem persists, check the controller's log, and whether it may create SubjectAccessReviews.",
  });
