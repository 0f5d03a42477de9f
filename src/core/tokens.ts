import { createHash, randomBytes, randomUUID } from 'node:crypto';
import { isDeepStrictEqual } from 'node:util';
import type { Clock } from '#base/clock.ts';
import { parseDuration } from '#base/duration.ts';
import { StowageError } from './errors.ts';
import type { Role, Token } from './model.ts';
import { quoted, storeName } from './names.ts';
import type { Records } from './ports.ts';

export interface NewToken {
  readonly name: string;
  readonly role: Role;
  readonly stores: readonly string[];
  readonly expiresIn: string | undefined;
}

export interface Tokens {
  /**
   * Returns the secret once; only its hash is kept. A repeated request returns the same token with a new secret and revokes
   * the previous secret: a caller that repeats the request did not receive it, and nobody else should have it.
   */
  create(newToken: NewToken, requestId?: string): { readonly token: Token; readonly secret: string };
  list(): readonly Token[];
  revoke(id: string): void;
  /** Undefined: unknown, revoked or expired. */
  verify(secret: string): Token | undefined;
}

/** Longer durations would exceed the range of dates. */
const maxLifetimeMs = 1000 * 365 * 86_400_000;

// 256 random bits cannot be guessed, so a fast hash suffices.
const hash = (secret: string): string => createHash('sha256').update(secret).digest('hex');
const idOf = (requestId: string): string => `tk1-${hash(requestId).slice(0, 16)}`;

export function createTokens(records: Records, clock: Clock): Tokens {
  return {
    create: (newToken, requestId = randomUUID()) => {
      const lifetimeMs = lifetimeOf(newToken.expiresIn);
      const now = clock.now();
      const token: Token = {
        id: idOf(requestId),
        name: newToken.name,
        role: newToken.role,
        stores: newToken.stores.map(storeName),
        createdAt: now,
        expiresAt: lifetimeMs === undefined ? undefined : now + lifetimeMs,
      };
      requireSameRequest(
        records.tokens.list().find(({ id }) => id === token.id),
        token,
      );
      const secret = `stowage_${randomBytes(32).toString('base64url')}`;
      records.tokens.put(token, hash(secret));
      return { token, secret };
    },
    list: () => records.tokens.list(),
    revoke: (id) => {
      if (records.tokens.remove(id)) return;
      throw new StowageError(`there is no token ${quoted(id)}`, {
        code: 'not-found',
        reason: 'token-unknown',
        action: 'See the ids: stowage token list',
      });
    },
    verify: (secret) => {
      if (secret.length > 256) return undefined;
      const token = records.tokens.byHash(hash(secret));
      return token?.expiresAt !== undefined && token.expiresAt <= clock.now() ? undefined : token;
    },
  };
}

function lifetimeOf(expiresIn: string | undefined): number | undefined {
  if (expiresIn === undefined) return undefined;
  const lifetimeMs = parseDuration(expiresIn);
  if (lifetimeMs !== undefined && lifetimeMs > 0 && lifetimeMs <= maxLifetimeMs) return lifetimeMs;
  throw new StowageError(`${quoted(expiresIn)} is not a usable duration`, {
    code: 'invalid',
    reason: 'duration-invalid',
    action: 'Write it as 12h, 30d or 52w, of at most 1000 years.',
  });
}

function requireSameRequest(present: Token | undefined, newToken: Token): void {
  const requestedFields = ({ name, role, stores, createdAt, expiresAt }: Token): unknown[] => [
    name,
    role,
    stores,
    expiresAt === undefined ? undefined : expiresAt - createdAt,
  ];
  if (present === undefined || isDeepStrictEqual(requestedFields(present), requestedFields(newToken))) return;
  throw new StowageError(`token ${quoted(present.id)} was created by the same request with other parameters`, {
    code: 'exists',
    reason: 'request-differs',
    action: 'Use a new request id (Idempotency-Key) for a different request.',
  });
}
