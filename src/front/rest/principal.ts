import type { Core } from '#core/core.ts';
import { StowageError } from '#core/errors.ts';
import type { Role } from '#core/model.ts';
import { quoted } from '#core/names.ts';
import type { Effect } from './access.ts';

/** Who is asking: the owner of the socket, a token, or a user of the cluster. */
export interface Principal {
  readonly id: string;
  readonly role: Role;
  /** They may know how stores are reached, whatever their role: it is in objects that they may read. */
  readonly informed?: boolean;
  /** Empty: every store. */
  readonly stores: readonly string[];
}

/** Whoever can open the socket (mode 0600) is the administrator. */
const socketOwner: Principal = { id: 'socket', role: 'admin', stores: [] };

/** Who sends this: the owner of the socket it came through, or a valid token. */
export function authenticate(core: Core, authorization: string | undefined, trusted: boolean): Principal {
  if (trusted) return socketOwner;
  const [, secret] = /^Bearer ([!-~]{1,256})$/i.exec(authorization ?? '') ?? [];
  const token = secret === undefined ? undefined : core.tokens.verify(secret);
  if (token !== undefined) return token;
  throw new StowageError(
    secret === undefined ? 'a bearer token is required here' : 'the token is unknown, revoked or expired',
    {
      code: 'unauthenticated',
      reason: secret === undefined ? 'token-missing' : 'token-refused',
      action:
        "Give one with --token-file FILE or in STOWAGE_TOKEN; without the command line, send 'Authorization: Bearer TOKEN'. " +
        'The first one is in the file `token` in the state folder; more: stowage token create',
    },
  );
}

const rank: Readonly<Record<Role, number>> = { viewer: 0, user: 1, admin: 2 };

export function requireRole(principal: Principal, role: Role): void {
  if (rank[principal.role] >= rank[role]) return;
  throw new StowageError(`this needs the role '${role}'; the token has '${principal.role}'`, {
    code: 'denied',
    reason: 'role-insufficient',
    action: `Ask the administrator for a token with the role '${role}': stowage token create NAME --role ${role}`,
  });
}

export const isForAllStores = (principal: Principal): boolean => principal.stores.length === 0;

/** Who may know how stores are reached, and what else is there. */
export const isAdministrator = (principal: Principal): boolean =>
  (principal.role === 'admin' || principal.informed === true) && isForAllStores(principal);

/** What concerns no store in particular is for those who see all. */
export const maySee = (principal: Principal, store: string | undefined): boolean =>
  isForAllStores(principal) || (store !== undefined && principal.stores.includes(store));

export const visibleStores = (core: Core, principal: Principal): string[] =>
  core.stores
    .list()
    .map((view) => view.config.name)
    .filter((name) => maySee(principal, name));

/** Before anything is looked up: whether a store outside the scope exists is not said. */
export function requireStore(principal: Principal, store: string): void {
  if (maySee(principal, store)) return;
  throw new StowageError(`the token is not for store ${quoted(store)}`, {
    code: 'denied',
    reason: 'store-out-of-scope',
    action: `It is for: ${principal.stores.join(', ')}. Ask the administrator for a wider one.`,
  });
}

/** The store for what names none. */
export function requireDefaultStore(principal: Principal, store: string | undefined): void {
  if (maySee(principal, store)) return;
  throw new StowageError('the token is not for the default store', {
    code: 'denied',
    reason: 'store-out-of-scope',
    action: `Say which store is meant: --store NAME. The token is for: ${principal.stores.join(', ')}.`,
  });
}

/** For what concerns the whole server. */
export function requireAllStores(principal: Principal, effect: Effect): void {
  if (isForAllStores(principal)) return;
  const isOnMachine = effect === 'acts on the machine';
  throw new StowageError(
    `the token is limited to some stores, and this ${isOnMachine ? 'acts on the machine' : 'concerns all'}`,
    {
      code: 'denied',
      reason: 'store-out-of-scope',
      action: 'Ask the administrator for a token that is not limited to stores.',
    },
  );
}
