import { expect, test } from 'vitest';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { createMemoryRecords } from '#testing/fakes/records.ts';
import type { Token } from './model.ts';
import { createTokens } from './tokens.ts';

/** A secret that 0.1 issued, and the hash that it stored. Users have the secret in their scripts; the server can't recover it. */
const secret = 'stowage_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8';
const hash = '7e622c152112d5cb2efcd17821385e49d7ffe8d29445aac2b61f692f3e10677d';
const token: Token = { id: 'tk1-0', name: 'ci', role: 'user', stores: ['gold'], createdAt: 1, expiresAt: undefined };

test('a token that 0.1 issued is still valid', () => {
  using kept = createMemoryRecords();
  const records = kept.open();
  records.tokens.put(token, hash);
  const tokens = createTokens(records, createFakeClock());
  expect(tokens.verify(secret)).toEqual(token);
  expect(tokens.verify(`${secret}x`)).toBeUndefined();
});

test('a new token has the same form, and a repeated request returns the same id', () => {
  using kept = createMemoryRecords();
  const tokens = createTokens(kept.open(), createFakeClock());
  const want = { name: 'ci', role: 'user', stores: [], expiresIn: undefined } as const;
  const made = tokens.create(want, 'a request');
  expect(made.secret).toMatch(/^stowage_[A-Za-z0-9_-]{43}$/);
  expect(made.token.id).toBe('tk1-af0bf2a562dabe2a');
});
