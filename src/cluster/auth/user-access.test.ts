import type { IncomingHttpHeaders } from 'node:http';
import { beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { silentLog } from '#base/log.ts';
import { stowageError } from '#core/errors.ts';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { type FakeKubeApi, startKubeApi } from '#testing/fakes/kube-api.ts';
import { createKubeClient } from '#wire/kube/client.ts';
import { createTokenReviews } from './token-reviews.ts';
import { type AccessRequest, accessCacheMs, createUserAccess, type UserAccess } from './user-access.ts';

let api: FakeKubeApi;
let access: UserAccess;
let clock: ReturnType<typeof createFakeClock>;
let sentReviews: { readonly kind: string; readonly spec: Readonly<Record<string, unknown>> }[];
/** The result of the API server's token reviews. */
let isAuthenticated: boolean;
let warnings: string[];
let isAllowed: (attributes: Readonly<Record<string, string>>) => boolean;
const { signal } = new AbortController();
const listVolumes: AccessRequest = { resource: 'volumes', verb: 'list' };

beforeEach(async () => {
  api = await startKubeApi();
  onTestFinished(() => api[Symbol.asyncDispose]());
  sentReviews = [];
  isAuthenticated = true;
  warnings = [];
  isAllowed = () => true;
  api.intercept = (request, response, body) => {
    const kind = /(tokenreviews|subjectaccessreviews)$/.exec(request.url ?? '')?.[1];
    if (kind === undefined) return false;
    const { spec } = JSON.parse(body);
    sentReviews.push({ kind, spec });
    const user = { username: 'system:serviceaccount:a:b', uid: 'u1', groups: ['g'], extra: { some: ['x'] } };
    const status =
      kind === 'tokenreviews'
        ? { authenticated: isAuthenticated, audiences: spec.audiences, user }
        : { allowed: isAllowed(spec.resourceAttributes ?? spec.nonResourceAttributes) };
    response.writeHead(201, { 'content-type': 'application/json' }).end(JSON.stringify({ spec, status }));
    return true;
  };
  clock = createFakeClock();
  const client = createKubeClient({ access: api.access, clock, userAgent: 'test' });
  onTestFinished(() => client[Symbol.dispose]());
  const reviews = createTokenReviews({ client, clock, audience: 'stowage.dev', cacheMs: accessCacheMs });
  const log = { ...silentLog(), warn: (message: string) => void warnings.push(message) };
  access = createUserAccess({ client, clock, reviews, log });
});

const tokenHeaders = { authorization: 'Bearer secret-token' };
const admit = (headers: IncomingHttpHeaders = tokenHeaders, wanted: AccessRequest = listVolumes, subject?: string) =>
  access.admit(headers, wanted, subject, signal);
const errorOf = (thrown: Promise<unknown>) => thrown.then(() => undefined, stowageError);
const reviewCount = (kind: string): number => sentReviews.filter((one) => one.kind === kind).length;

test('an admitted user is the user of the token review, and the access review gets all its attributes', async () => {
  const wanted: AccessRequest = { resource: 'volumes/uses', verb: 'delete' };
  expect(await admit(tokenHeaders, wanted, 'silver..photos')).toEqual({
    id: 'user:system:serviceaccount:a:b',
    role: 'user',
    informed: true,
    stores: [],
  });
  expect(sentReviews[0]).toEqual({ kind: 'tokenreviews', spec: { token: 'secret-token', audiences: ['stowage.dev'] } });
  expect(sentReviews.find(({ spec }) => JSON.stringify(spec).includes('uses'))?.spec).toEqual({
    user: 'system:serviceaccount:a:b',
    uid: 'u1',
    groups: ['g'],
    extra: { some: ['x'] },
    resourceAttributes: {
      group: 'stowage.dev',
      version: 'v1',
      resource: 'volumes',
      subresource: 'uses',
      verb: 'delete',
      name: 'silver..photos',
    },
  });
});

test('access to a pod requires the permission to read that pod', async () => {
  await admit(tokenHeaders, { pod: { namespace: 'shop', name: 'web-0' }, verb: 'get' }, 'silver');
  expect(sentReviews.map(({ spec }) => spec['resourceAttributes'])).toContainEqual({
    group: '',
    version: 'v1',
    resource: 'pods',
    verb: 'get',
    namespace: 'shop',
    name: 'web-0',
  });
});

test('a user without the permission to read Store objects is not informed about addresses of stores', async () => {
  isAllowed = ({ resource }) => resource !== 'stores';
  expect(await admit()).toMatchObject({ informed: false });
});

test('the token may be in the header Stowage-Authorization, but not in both headers', async () => {
  expect(await admit({ 'stowage-authorization': 'Bearer other-token' })).toMatchObject({ role: 'user' });
  expect(sentReviews[0]?.spec['token']).toBe('other-token');
  expect(await errorOf(admit({ ...tokenHeaders, 'stowage-authorization': 'Bearer other-token' }))).toMatchObject({
    code: 'unauthenticated',
    reason: 'token-ambiguous',
  });
});

test.each([{}, { authorization: 'Basic eDp5' }, { 'stowage-authorization': 'secret-token' }])(
  'a request without a bearer token is refused without a review: %j',
  async (headers) => {
    expect(await errorOf(admit(headers))).toMatchObject({ code: 'unauthenticated', reason: 'token-missing' });
    expect(sentReviews).toEqual([]);
  },
);

describe('a user without the permission', () => {
  beforeEach(() => {
    isAllowed = () => false;
  });

  test('gets an error that names the missing rule', async () => {
    const refused = await errorOf(admit(tokenHeaders, { resource: 'volumes', verb: 'create' }));
    expect(refused).toMatchObject({
      code: 'denied',
      reason: 'rule-missing',
      message: 'system:serviceaccount:a:b may not create volumes.stowage.dev',
      action:
        'Ask the administrator of the cluster for a ClusterRole with the rule {apiGroups: ["stowage.dev"], resources: ["volumes"], verbs: ["create"]}, and a ClusterRoleBinding to it.',
    });
    expect(JSON.stringify([refused?.message, refused?.action])).not.toContain('secret-token');
  });

  test('gets an error that names a subresource, a single object or a path', async () => {
    const subresourceError = await errorOf(admit(tokenHeaders, { resource: 'stores/check', verb: 'create' }, 'silver'));
    expect(subresourceError?.message).toBe(
      "system:serviceaccount:a:b may not create stores.stowage.dev/check 'silver'",
    );
    expect(subresourceError?.action).toContain('resources: ["stores/check"]');
    const podError = await errorOf(
      admit(tokenHeaders, { pod: { namespace: 'shop', name: 'web-0' }, verb: 'get' }, 'silver'),
    );
    expect(podError?.message).toBe("system:serviceaccount:a:b may not get pod 'shop/web-0'");
    expect(podError?.action).toContain('{apiGroups: [""], resources: ["pods"], verbs: ["get"]}');
    const pathError = await errorOf(admit(tokenHeaders, { path: '/metrics', verb: 'get' }));
    expect(pathError?.action).toContain('{nonResourceURLs: ["/metrics"], verbs: ["get"]}');
  });
});

test('answers are cached per request, and reviewed again when they expire', async () => {
  await admit();
  await Promise.all([admit(), admit()]);
  expect([reviewCount('tokenreviews'), reviewCount('subjectaccessreviews')]).toEqual([1, 2]);
  await admit(tokenHeaders, listVolumes, 'another');
  expect(reviewCount('subjectaccessreviews')).toBe(3);
  isAllowed = () => false;
  isAuthenticated = true;
  expect(await admit()).toMatchObject({ role: 'user' });
  clock.advance(accessCacheMs);
  expect(await errorOf(admit())).toMatchObject({ code: 'denied' });
  isAuthenticated = false;
  clock.advance(accessCacheMs);
  expect(await errorOf(admit())).toMatchObject({ code: 'unauthenticated', reason: 'token-refused' });
});

test('a failed review is no refusal, is logged, and is not cached', async () => {
  const answer = api.intercept;
  api.intercept = (request, response, body) => {
    if (request.url?.endsWith('subjectaccessreviews') !== true) return answer?.(request, response, body) ?? false;
    api.refuse(response, 403, 'Forbidden', { message: 'cannot create subjectaccessreviews' });
    return true;
  };
  expect(await errorOf(admit())).toMatchObject({ code: 'unavailable', reason: 'review-failed' });
  expect(warnings).toContain('Kubernetes could not check what a user may do');
  api.intercept = answer;
  expect(await admit()).toMatchObject({ role: 'user' });
});
