import type { IncomingHttpHeaders, IncomingMessage } from 'node:http';
import type { FastifyRequest } from 'fastify';
import type { Core } from '#core/core.ts';
import { StowageError, stowageError } from '#core/errors.ts';
import { type Access, type Right, subjectOf } from './access.ts';
import { authenticate, type Principal, requireAllStores, requireRole } from './principal.ts';

/** Authenticates and authorizes callers outside Stowage, such as by Kubernetes' TokenReview and SubjectAccessReview. */
export interface ExternalAuthorizer {
  /** The caller, if it may do this to `subject`. Throws 'unauthenticated', 'denied' or 'unavailable'. */
  admit(
    headers: IncomingHttpHeaders,
    access: Access,
    subject: string | undefined,
    signal: AbortSignal,
  ): Promise<Principal>;
}

export interface Admission {
  /** Throws 'unauthenticated' or 'denied'. */
  admit(request: FastifyRequest, right: Right, signal: AbortSignal): Promise<Principal>;
  /** Whether an admitted caller would still be admitted. Called repeatedly, so it returns at once. */
  isStillAdmitted(request: FastifyRequest, right: Right, principal: Principal): boolean;
  /** The caller, if it could be authenticated. */
  principalOf(request: FastifyRequest): Principal | undefined;
}

export interface AdmissionOptions {
  readonly core: Core;
  /** The request came through the Unix socket. */
  readonly isTrusted: (request: IncomingMessage) => boolean;
  /** Undefined: Stowage's own tokens decide. */
  readonly authorizer: ExternalAuthorizer | undefined;
}

export function createAdmission({ core, isTrusted, authorizer }: AdmissionOptions): Admission {
  const principals = new WeakMap<IncomingMessage, Principal>();
  const recheckStates = new WeakMap<IncomingMessage, { isRefused: boolean; isAsked: boolean }>();
  const isByToken = (raw: IncomingMessage): boolean => authorizer === undefined || isTrusted(raw);
  const byToken = ({ raw, headers }: FastifyRequest): Principal =>
    authenticate(core, headers.authorization, isTrusted(raw));

  async function admit(request: FastifyRequest, right: Right, signal: AbortSignal): Promise<Principal> {
    const { raw } = request;
    if (authorizer === undefined || isByToken(raw)) {
      const principal = byToken(request);
      principals.set(raw, principal);
      requireRole(principal, right.role);
      if (right.scope === 'server') requireAllStores(principal, right.effect);
      return principal;
    }
    if ('instead' in right.access) throw notInCluster(right.access.instead);
    const principal = await authorizer.admit(raw.headers, right.access, subjectOf(request.params), signal);
    principals.set(raw, principal);
    return principal;
  }

  /** Asks the authorizer in the background and returns its previous decision. If the authorizer is unavailable, the caller keeps its right. */
  function isStillAuthorized(request: FastifyRequest, right: Right, principal: Principal): boolean {
    const state = recheckStates.get(request.raw) ?? { isRefused: false, isAsked: false };
    recheckStates.set(request.raw, state);
    if (!state.isAsked) {
      state.isAsked = true;
      void admit(request, right, AbortSignal.timeout(10_000))
        .then(({ id }) => id !== principal.id)
        .catch((thrown: unknown) => ['unauthenticated', 'denied'].includes(stowageError(thrown).code))
        .then((isRefused) => Object.assign(state, { isRefused, isAsked: false }));
    }
    return !state.isRefused;
  }

  return {
    admit,
    isStillAdmitted: (request, right, principal) => {
      if (!isByToken(request.raw)) return isStillAuthorized(request, right, principal);
      try {
        return byToken(request).id === principal.id;
      } catch {
        return false;
      }
    },
    principalOf: (request) => {
      const found = principals.get(request.raw);
      if (found !== undefined || !isByToken(request.raw)) return found;
      try {
        return byToken(request);
      } catch {
        return undefined;
      }
    },
  };
}

const notInCluster = (instead: string): StowageError =>
  new StowageError('this request is not available in a cluster', {
    code: 'unsupported',
    reason: 'not-in-a-cluster',
    action: instead,
  });
