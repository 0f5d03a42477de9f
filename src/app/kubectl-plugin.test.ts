import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { stowageError } from '#core/errors.ts';
import { type FakeKubeApi, startKubeApi } from '#testing/fakes/kube-api.ts';
import { connectToCluster } from './kubectl-plugin.ts';

let api: FakeKubeApi;
let home: string;
let requests: { readonly url: string; readonly body: unknown; readonly authorization: string | undefined }[];
const { signal } = new AbortController();

beforeEach(async () => {
  home = mkdtempSync(join(tmpdir(), 'stowage-kubectl-'));
  onTestFinished(() => rmSync(home, { recursive: true, force: true }));
  api = await startKubeApi();
  onTestFinished(() => api[Symbol.asyncDispose]());
  requests = [];
  api.intercept = (request, response, body) => {
    const { url = '', headers } = request;
    requests.push({ url, body: JSON.parse(body), authorization: headers.authorization });
    const made = { spec: {}, status: { token: 'short-lived', expirationTimestamp: '2026-01-01T00:00:00Z' } };
    response.writeHead(201, { 'content-type': 'application/json' }).end(JSON.stringify(made));
    return true;
  };
});

const kubeconfig = (server = `http://127.0.0.1:${api.port}/k8s`): string => {
  const path = join(home, 'config');
  const contexts = ['one', 'two'].map((name) => ({ name, context: { cluster: 'it', user: name } }));
  const users = ['one', 'two'].map((name) => ({ name, user: { token: `token-${name}` } }));
  const config = { 'current-context': 'one', contexts, users, clusters: [{ name: 'it', cluster: { server } }] };
  writeFileSync(path, JSON.stringify(config));
  return path;
};
const find = (options: object = {}, env: Readonly<Record<string, string>> = { KUBECONFIG: kubeconfig() }) =>
  connectToCluster({ env, home, signal, ...options });
const refusal = (options?: object, env?: Readonly<Record<string, string>>) =>
  find(options, env).then(() => undefined, stowageError);

test("requests a token of the viewer account for Stowage's audience, valid for ten minutes", async () => {
  expect(await find()).toMatchObject({
    kind: 'cluster',
    token: 'short-lived',
    authorization: 'Bearer token-one',
    namespace: 'stowage-system',
    prefix: '/api/v1/namespaces/stowage-system/services/https:stowage:443/proxy',
  });
  expect(requests).toMatchObject([
    {
      url: '/k8s/api/v1/namespaces/stowage-system/serviceaccounts/stowage-viewer/token',
      authorization: 'Bearer token-one',
      body: {
        apiVersion: 'authentication.k8s.io/v1',
        kind: 'TokenRequest',
        spec: { audiences: ['stowage.dev'], expirationSeconds: 600 },
      },
    },
  ]);
});

test('uses another context, namespace and account', async () => {
  await find({ context: 'two', namespace: 'storage', account: 'boss' });
  expect(requests).toMatchObject([
    { url: '/k8s/api/v1/namespaces/storage/serviceaccounts/boss/token', authorization: 'Bearer token-two' },
  ]);
});

describe('reports', () => {
  test('a missing kubeconfig', async () => {
    expect(await refusal({}, {})).toMatchObject({
      code: 'invalid',
      reason: 'kubeconfig-missing',
      action: 'Specify a kubeconfig with --kubeconfig FILE or in KUBECONFIG, or create ~/.kube/config',
    });
  });

  test('an unknown context', async () => {
    expect(await refusal({ context: 'three' })).toMatchObject({
      code: 'invalid',
      reason: 'kubeconfig-unusable',
      message: 'the kubeconfig has no context “three”',
    });
  });

  test('an unreachable server', async () => {
    await api.down();
    const refused = await refusal();
    expect(refused).toMatchObject({ code: 'unavailable', reason: 'kubernetes-unreachable' });
    expect(refused?.message).toContain(`the request to the API server at http://127.0.0.1:${api.port} failed`);
  });

  test.each<[number, string, object, object]>([
    [403, 'Forbidden', {}, { code: 'denied', reason: 'token-request-denied' }],
    [401, 'Unauthorized', {}, { code: 'unauthenticated', reason: 'kubernetes-refused' }],
    [
      ...([404, 'NotFound', {}] as const),
      {
        code: 'not-found',
        reason: 'stowage-not-installed',
        message: 'Stowage is not installed in namespace stowage-system',
      },
    ],
    [
      ...([404, 'NotFound', { account: 'boss' }] as const),
      { code: 'not-found', reason: 'account-unknown', message: 'service account stowage-system/boss not found' },
    ],
    [500, 'InternalError', {}, { code: 'unavailable', reason: 'kubernetes-unreachable' }],
  ])('status %i %s from the API server', async (code, reason, options, expected) => {
    api.intercept = (_request, response) => {
      api.refuse(response, code, reason);
      return true;
    };
    expect(await refusal(options)).toMatchObject(expected);
  });

  test('which Role a user needs who may not request a token', async () => {
    api.intercept = (_request, response) => {
      api.refuse(response, 403, 'Forbidden');
      return true;
    };
    const { action = '' } = (await refusal({ account: 'boss' })) ?? {};
    expect(action).toContain('the Role stowage-viewers in stowage-system');
    expect(action).toContain('resources: ["serviceaccounts/token"], resourceNames: ["boss"], verbs: ["create"]');
  });
});
