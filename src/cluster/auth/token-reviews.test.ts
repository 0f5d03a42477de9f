import { beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { type Scope, silentLog } from '#base/log.ts';
import { createFakeClock, type FakeClock } from '#testing/fakes/clock.ts';
import { type FakeKubeApi, startKubeApi } from '#testing/fakes/kube-api.ts';
import { createKubeClient } from '#wire/kube/client.ts';
import type { TokenReview } from '#wire/kube/types.ts';
import { bearerOf, createTokenReviews, nodeOfAgent, type TokenReviews } from './token-reviews.ts';

const { signal } = new AbortController();
const scope: Scope = { signal, log: silentLog() };
const audience = 'stowage.dev';
const user = { username: 'ann', uid: '7', groups: ['storage'], extra: { a: ['b'] } };

let api: FakeKubeApi;
let clock: FakeClock;
let reviewedSpecs: TokenReview['spec'][];
let status: TokenReview['status'];

beforeEach(async () => {
  api = await startKubeApi();
  onTestFinished(() => api[Symbol.asyncDispose]());
  clock = createFakeClock();
  reviewedSpecs = [];
  status = { authenticated: true, audiences: [audience], user };
  api.intercept = ({ url }, response, body) => {
    if (url !== '/apis/authentication.k8s.io/v1/tokenreviews') return false;
    reviewedSpecs.push((JSON.parse(body) as TokenReview).spec);
    response.writeHead(201, { 'content-type': 'application/json' }).end(JSON.stringify({ metadata: {}, status }));
    return true;
  };
});

function createReviews(cacheMs = 0): TokenReviews {
  const client = createKubeClient({ access: api.access, clock, userAgent: 'test' });
  onTestFinished(() => client[Symbol.dispose]());
  return createTokenReviews({ client, clock, audience, cacheMs });
}

describe('a token', () => {
  test('is reviewed for the audience, and the review returns its user', async () => {
    expect(await createReviews().review('t', scope)).toEqual(user);
    expect(reviewedSpecs).toEqual([{ token: 't', audiences: [audience] }]);
  });

  test.each<[string, TokenReview['status']]>([
    ['Kubernetes does not accept', { authenticated: false, error: 'no' }],
    ['has no status in its review', undefined],
    ['is for another audience', { authenticated: true, audiences: ['https://kubernetes.default.svc'], user }],
    ['was reviewed without regard to its audience', { authenticated: true, user }],
    ['has no user', { authenticated: true, audiences: [audience], user: {} }],
  ])('that %s is refused', async (_, said) => {
    status = said;
    await expect(createReviews().review('t', scope)).rejects.toMatchObject({
      code: 'unauthenticated',
      reason: 'token-refused',
      action: expect.stringContaining(audience),
    });
  });

  test.each([undefined])('that is missing is refused', async (token) => {
    await expect(createReviews().review(token, scope)).rejects.toMatchObject({ reason: 'token-missing' });
    expect(reviewedSpecs).toEqual([]);
  });

  test.each(['', 'a b', 'ä', 'x'.repeat(8_193)])(
    'of an impossible form is refused without a review: %j',
    async (token) => {
      await expect(createReviews().review(token, scope)).rejects.toMatchObject({ reason: 'token-refused' });
      expect(reviewedSpecs).toEqual([]);
    },
  );

  test('cannot be reviewed while the API server is away', async () => {
    await api.down();
    await expect(createReviews().review('secret-one', scope)).rejects.toMatchObject({
      code: 'unavailable',
      reason: 'review-failed',
      message: expect.not.stringContaining('secret-one'),
    });
  });

  test('is refused at once when too many reviews are in progress', async () => {
    const { promise, resolve } = Promise.withResolvers<void>();
    const answer = api.intercept;
    api.intercept = (...all) => {
      void promise.then(() => answer?.(...all));
      return true;
    };
    const reviews = createReviews();
    const waiting = Array.from({ length: 256 }, (_, i) => reviews.review(`t${i}`, scope));
    await expect(reviews.review('one-more', scope)).rejects.toMatchObject({ reason: 'review-failed' });
    resolve();
    expect(await Promise.all(waiting)).toHaveLength(256);
    expect(await reviews.review('again', scope)).toEqual(user);
  });
});

describe('with serviceAccountsOnly, a token', () => {
  const now = (): number => clock.now() / 1_000;
  const tokenOf = (claims: unknown): string =>
    ['{}', JSON.stringify(claims), 's'].map((part) => Buffer.from(part).toString('base64url')).join('.');
  const createAccountReviews = (): TokenReviews => {
    const client = createKubeClient({ access: api.access, clock, userAgent: 'test' });
    onTestFinished(() => client[Symbol.dispose]());
    return createTokenReviews({ client, clock, audience, serviceAccountsOnly: true });
  };

  test.each<[string, () => string]>([
    ['without dots', () => 'abc'],
    ['of too many parts', () => `${tokenOf({ aud: [audience], exp: now() + 60 })}.x`],
    ['that is not signed', () => tokenOf({ aud: [audience], exp: now() + 60 }).replace(/[^.]*$/, '')],
    ['without claims', () => tokenOf(null)],
    ['that is not JSON', () => 'e30.bm9uc2Vuc2U.c2ln'],
    ['for another audience', () => tokenOf({ aud: ['https://kubernetes.default.svc'], exp: now() + 60 })],
    ['without an audience', () => tokenOf({ exp: now() + 60 })],
    ['that has expired', () => tokenOf({ aud: [audience], exp: now() - 301 })],
    ['without an expiry', () => tokenOf({ aud: [audience] })],
  ])('%s is refused without a review', async (_, token) => {
    await expect(createAccountReviews().review(token(), scope)).rejects.toMatchObject({ reason: 'token-refused' });
    expect(reviewedSpecs).toEqual([]);
  });

  test.each([[[audience, 'more']], [audience]])(
    'for the audience %j is reviewed, also if it expired a short time ago',
    async (aud) => {
      expect(await createAccountReviews().review(tokenOf({ aud, exp: now() - 299 }), scope)).toEqual(user);
      expect(reviewedSpecs).toHaveLength(1);
    },
  );
});

test('reviews for one address do not prevent reviews for other addresses', async () => {
  const { promise, resolve } = Promise.withResolvers<void>();
  const answer = api.intercept;
  api.intercept = (...all) => {
    void promise.then(() => answer?.(...all));
    return true;
  };
  const reviews = createReviews();
  const manyReviews = Array.from({ length: 300 }, (_, i) => reviews.review(`t${i}`, scope, '10.0.0.66'));
  const refusedCount = Promise.allSettled(manyReviews).then(
    (each) => each.filter(({ status: how }) => how === 'rejected').length,
  );
  const otherReview = reviews.review('t', scope, '10.0.0.7');
  resolve();
  expect(await otherReview).toEqual(user);
  expect(await refusedCount).toBe(300 - 16);
  // One address may send any number of tokens one after the other.
  for (let i = 0; i < 20; i++) await reviews.review(`u${i}`, scope, '10.0.0.66');
});

describe('an answer', () => {
  test('is shared by concurrent reviews of the same token', async () => {
    const reviews = createReviews(10_000);
    expect(await Promise.all([1, 2, 3].map(() => reviews.review('t', scope)))).toEqual([user, user, user]);
    expect(reviewedSpecs).toHaveLength(1);
  });

  test('is not cached by default', async () => {
    const reviews = createReviews();
    await reviews.review('t', scope);
    await reviews.review('t', scope);
    expect(reviewedSpecs).toHaveLength(2);
  });

  test('is cached for that token until it expires', async () => {
    const reviews = createReviews(10_000);
    await reviews.review('t', scope);
    clock.advance(9_999);
    expect(await reviews.review('t', scope)).toEqual(user);
    expect(reviewedSpecs).toHaveLength(1);
    await reviews.review('u', scope);
    expect(reviewedSpecs).toHaveLength(2);
    clock.advance(1);
    await reviews.review('t', scope);
    expect(reviewedSpecs).toHaveLength(3);
  });

  test('that refuses the token is not cached', async () => {
    const reviews = createReviews(10_000);
    status = { authenticated: false };
    await expect(reviews.review('t', scope)).rejects.toMatchObject({ reason: 'token-refused' });
    status = { authenticated: true, audiences: [audience], user };
    expect(await reviews.review('t', scope)).toEqual(user);
  });

  test('is evicted when the cache has too many answers', async () => {
    const reviews = createReviews(1_000_000);
    for (let i = 0; i <= 1_000; i++) await reviews.review(`t${i}`, scope);
    await reviews.review('t1000', scope);
    expect(reviewedSpecs).toHaveLength(1_001);
    await reviews.review('t0', scope);
    expect(reviewedSpecs).toHaveLength(1_002);
  });
});

test.each([
  ['Bearer abc', 'abc'],
  ['bearer  abc', 'abc'],
  ['Basic abc', undefined],
  ['Bearer a b', undefined],
  [undefined, undefined],
])('bearerOf() returns the token of the header %j', (header, token) => {
  expect(bearerOf(header)).toBe(token);
});

describe('an agent', () => {
  const agent = {
    username: 'system:serviceaccount:stowage-system:stowage-agent',
    uid: '1',
    groups: [],
    extra: { 'authentication.kubernetes.io/node-name': ['node-1'] },
  };

  test('gets the node that its token names', () => {
    expect(nodeOfAgent(agent, 'stowage-system')).toBe('node-1');
  });

  test.each([
    'system:serviceaccount:stowage-system:stowage-controller',
    'system:serviceaccount:default:stowage-agent',
    'stowage-agent',
  ])('with the account %s is refused', (username) => {
    expect(() => nodeOfAgent({ ...agent, username }, 'stowage-system')).toThrow(
      expect.objectContaining({ code: 'denied', reason: 'agent-account-other' }),
    );
  });

  test.each([
    [{}],
    [{ 'authentication.kubernetes.io/node-name': [] }],
    [{ 'authentication.kubernetes.io/node-name': ['a', 'b'] }],
  ])('is refused if its token does not name one node: %j', (extra) => {
    expect(() => nodeOfAgent({ ...agent, extra }, 'stowage-system')).toThrow(
      expect.objectContaining({ reason: 'agent-node-unknown', action: expect.stringContaining('1.30') }),
    );
  });
});
