import type { Core } from '#core/core.ts';
import { StowageError } from '#core/errors.ts';
import type { Role } from '#core/model.ts';
import { quoted } from '#core/names.ts';
import type { Effect } from './access.ts';

/** The caller: the owner of the socket, a token, or a user of the cluster. */
export interface Principal {
  readonly id: string;
  readonly role: Role;
  /** The caller may see store addresses whatever its role, since it may read the Store objects that contain them. */
  readonly informed?: boolean;
  /** Empty: every store. */
  readonly stores: readonly string[];
}

/** Only the administrator can open the socket (mode 0600). */
const socketOwner: Principal = { id: 'socket', role: 'admin', stores: [] };

/** The socket's owner if the request is trusted, otherwise the owner of the bearer token. */
export function authenticate(core: Core, authorization: string | undefined, trusted: boolean): Principal {
  if (trusted) return socketOwner;
  const [, secret] = /^Bearer ([!-~]{1,256})$/i.exec(authorization ?? '') ?? [];
  const token = secret === undefined ? undefined : core.tokens.verify(secret);
  if (token !== undefined) return token;
  throw new StowageError(
    secret === undefined ? 'a bearer token is required' : 'the token is unknown, revoked or expired',
    {
      code: 'unauthenticated',
      reason: secret === undefined ? 'token-missing' : 'token-refused',
      action:
        "Pass a token with --token-file FILE or STOWAGE_TOKEN; other clients send 'Authorization: Bearer TOKEN'. " +
        'The initial token is in the file `token` in the state folder; create more with: stowage token create',
    },
  );
}

const rank: Readonly<Record<Role, number>> = { viewer: 0, user: 1, admin: 2 };

export function requireRole(principal: Principal, role: Role): void {
  if (rank[principal.role] >= rank[role]) return;
  throw new StowageError(`this request requires the role '${role}'; the token has the role '${principal.role}'`, {
    code: 'denied',
    reason: 'role-insufficient',
    action: `Ask the administrator for a token with the role '${role}': stowage token create NAME --role ${role}`,
  });
}

export const isForAllStores = (principal: Principal): boolean => principal.stores.length === 0;

/** Whether the caller may see store addresses and the details of errors. */
export const isAdministrator = (principal: Principal): boolean =>
  (principal.role === 'admin' || principal.informed === true) && isForAllStores(principal);

/** Without a store: whether the caller sees all stores. */
export const maySee = (principal: Principal, store: string | undefined): boolean =>
  isForAllStores(principal) || (store !== undefined && principal.stores.includes(store));

export const visibleStores = (core: Core, principal: Principal): string[] =>
  core.stores
    .list()
    .map((view) => view.config.name)
    .filter((name) => maySee(principal, name));

/** Call this before any lookup, so that the answer does not reveal whether a store outside the token's scope exists. */
export function requireStore(principal: Principal, store: string): void {
  if (maySee(principal, store)) return;
  throw new StowageError(`the token does not permit store ${quoted(store)}`, {
    code: 'denied',
    reason: 'store-out-of-scope',
    action: `It permits: ${principal.stores.join(', ')}. Ask the administrator for a token for more stores.`,
  });
}

/** For requests that do not name a store. */
export function requireDefaultStore(principal: Principal, store: string | undefined): void {
  if (maySee(principal, store)) return;
  throw new StowageError('the token does not permit the default store', {
    code: 'denied',
    reason: 'store-out-of-scope',
    action: `Specify a store: --store NAME. The token permits: ${principal.stores.join(', ')}.`,
  });
}

/** For requests that concern the whole server. */
export function requireAllStores(principal: Principal, effect: Effect): void {
  if (isForAllStores(principal)) return;
  const isOnMachine = effect === 'acts on the machine';
  throw new StowageError(
    `the token is limited to some stores, and this request ${isOnMachine ? 'acts on the machine' : 'concerns all stores'}`,
    {
      code: 'denied',
      reason: 'store-out-of-scope',
      action: 'Ask the administrator for a token that is not limited to stores.',
    },
  );
}
