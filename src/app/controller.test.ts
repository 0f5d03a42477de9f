import { existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { beforeEach, describe, expect, onTestFinished, test, vi } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { storeObjects } from '#controllers/store-object.ts';
import { StowageError } from '#core/errors.ts';
import { openRecords } from '#records/sqlite.ts';
import { aClaim, aClass, eventually, paths } from '#testing/controller-fixture.ts';
import { type FakeKubeApi, startKubeApi } from '#testing/fakes/kube-api.ts';
import { createKubeClient, type KubeClient } from '#wire/kube/client.ts';
import { events, leases, persistentVolumes } from '#wire/kube/resources.ts';
import { createNfsServer } from '#wire/nfs3/server/server.ts';
import { runController } from './controller.ts';
import { readRegistry, registryAnnotation } from './controller-registry.ts';
import { type MetricsText, serveHealth } from './health.ts';
import { kubeAccess } from './kube-access.ts';

let api: FakeKubeApi;
let client: KubeClient;
let folder: string;
let said: string;
let ending: AbortController;
const { signal } = new AbortController();

beforeEach(async () => {
  folder = mkdtempSync(join(tmpdir(), 'stowage-controller-'));
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
  api = await startKubeApi();
  onTestFinished(() => api[Symbol.asyncDispose]());
  client = createKubeClient({ access: api.access, clock: systemClock(), userAgent: 'test' });
  onTestFinished(() => client[Symbol.dispose]());
  api.put('/api/v1/namespaces', { metadata: { name: 'kube-system', uid: 'uid-of-the-cluster' } });
  said = '';
  ending = new AbortController();
  onTestFinished(() => ending.abort());
  const heard = vi.spyOn(process.stdout, 'write').mockImplementation((text) => {
    said += String(text);
    return true;
  });
  onTestFinished(() => heard.mockRestore());
});

const kubeconfig = (): string => {
  const path = join(folder, 'kubeconfig');
  const cluster = { server: `http://127.0.0.1:${api.port}` };
  writeFileSync(
    path,
    JSON.stringify({
      'current-context': 'it',
      contexts: [{ name: 'it', context: { cluster: 'it', namespace: 'storage' } }],
      clusters: [{ name: 'it', cluster }],
    }),
  );
  return path;
};

const run = (name = 'one'): Promise<number> => {
  const state = join(folder, name);
  const folders = { state, run: state, config: state, socket: join(state, 's') };
  const options = { kubeconfig: kubeconfig(), health: '127.0.0.1:0', logLevel: 'silent' };
  return runController(options, folders, ending.signal);
};

async function exported(): Promise<{ readonly folder: string; readonly uri: string; readonly options: object }> {
  const directory = join(folder, 'export');
  mkdirSync(directory);
  const nfs = await createNfsServer({
    clock: systemClock(),
    directory,
    state: join(folder, 'nfs'),
    port: 0,
    path: '/export',
    squash: 'none',
    onError: () => undefined,
  });
  onTestFinished(() => nfs.close());
  const port = String(nfs.port);
  return { folder: directory, uri: `nfs://${nfs.host}/export`, options: { port, mountport: port } };
}

const eventNotes = async (): Promise<string> =>
  (await Array.fromAsync(client.list(events, {}, signal)))
    .flatMap(({ items }) => items)
    .map(({ note }) => note)
    .join('\n');

const lease = async (): Promise<string> => {
  const found = await client.get(leases, { namespace: 'storage', name: 'stowage-controller' }, signal);
  return found.spec?.holderIdentity ?? '';
};
const health = async (path: string): Promise<readonly [number, string]> => {
  const address = /health at (\S+)/.exec(said)?.[1] ?? '';
  const response = await fetch(`${address}${path}`);
  return [response.status, (await response.text()).trim()];
};

describe('the controller', () => {
  test.each([
    ['in a pod', '10.96.0.1'],
    ['outside the cluster', ''],
  ])('%s refuses a store with client=host, and reports it on the Store object and its claims', async (_, host) => {
    vi.stubEnv('KUBERNETES_SERVICE_HOST', host);
    onTestFinished(() => void vi.unstubAllEnvs());
    const { uri, options } = await exported();
    const spec = { uri, options: { ...options, client: 'host' } };
    api.put(paths.stores, { metadata: { name: 'silver', generation: 1 }, spec });
    api.put(paths.classes, aClass());
    const over = run();
    const ready = async () => {
      const [object] = (await Array.fromAsync(client.list(storeObjects, {}, signal))).flatMap(({ items }) => items);
      return object?.status?.conditions?.find(({ type }) => type === 'Ready');
    };
    await eventually(async () => `${(await ready())?.status} ${(await ready())?.reason}`).toBe('False Unsupported');
    const why =
      "store 'silver' has client=host, but the machine's NFS client cannot be used from the container in which Stowage runs. Remove the option client=host: the built-in client works in containers.";
    expect((await ready())?.message).toBe(why);
    api.put(paths.claims, aClaim('data'));
    await eventually(eventNotes).toContain(`store 'silver' cannot be used: ${why}`);
    ending.abort();
    expect(await over).toBe(0);
  });

  test.each([{ network: 'netns:storage' }, { sourceport: 'privileged' }])(
    'tells a claim that its Store is invalid: %o',
    async (more) => {
      const { uri, options } = await exported();
      const spec = { uri, options: { ...options, ...more } };
      api.put(paths.stores, { metadata: { name: 'silver', generation: 1 }, spec });
      api.put(paths.classes, aClass());
      api.put(paths.claims, aClaim('data'));
      const over = run();
      await eventually(eventNotes).toContain(
        "store 'silver' cannot be used: its Store object is invalid. Ask the administrator to correct the object. Its status says what is wrong: kubectl describe store silver",
      );
      expect(await eventNotes()).not.toContain('is not open yet');
      ending.abort();
      expect(await over).toBe(0);
    },
  );

  test('acquires the Lease, creates volumes with the cluster’s instance id, and releases the Lease when it stops', async () => {
    const { uri, options, folder: directory } = await exported();
    api.put(paths.stores, { metadata: { name: 'silver', generation: 1 }, spec: { uri, options } });
    api.put(paths.classes, aClass());
    api.put(paths.claims, aClaim('cart'));
    const status = run();
    await eventually(() => client.list(persistentVolumes, {}, signal).next()).toMatchObject({
      value: { items: [{ spec: { csi: { volumeAttributes: { store: 'silver' } } } }] },
    });
    expect(readdirSync(directory)).toContain('pvc-uid-of-cart');
    expect(await lease()).not.toBe('');
    const { metadata } = await client.get(leases, { namespace: 'storage', name: 'stowage-controller' }, signal);
    expect(readRegistry(metadata.annotations?.[registryAnnotation]).processes).toMatchObject([
      { mark: expect.any(Number) },
    ]);
    expect([await health('/healthz'), await health('/readyz'), await health('/x')]).toEqual([
      [200, 'ok'],
      [200, 'ok'],
      [404, 'not here'],
    ]);
    ending.abort();
    expect(await status).toBe(0);
    expect(await lease()).toBe('');
    const records = openRecords(join(folder, 'one', 'state.db'));
    expect(records.settings.get('instance')).toMatch(
      /^[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-8[0-9a-f]{3}-[0-9a-f]{12}$/,
    );
    records.close();
  });

  test('discards the database of an earlier run', async () => {
    const state = join(folder, 'one');
    mkdirSync(state);
    const before = openRecords(join(state, 'state.db'));
    before.settings.set('something', 'old');
    before.close();
    const status = run();
    await eventually(() => said).toContain('stowage controller is the leader');
    ending.abort();
    await status;
    const records = openRecords(join(state, 'state.db'));
    expect(records.settings.get('something')).toBeUndefined();
    records.close();
  });

  test('is ready while another one leads', async () => {
    const spec = { holderIdentity: 'another', leaseDurationSeconds: 15, renewTime: new Date().toISOString() };
    api.put('/apis/coordination.k8s.io/v1/namespaces/storage/leases', {
      metadata: { name: 'stowage-controller' },
      spec,
    });
    const status = run();
    await eventually(() => said).toContain('is waiting for leadership');
    await eventually(() => health('/readyz')).toEqual([200, 'ok']);
    expect(said).not.toContain('controller is the leader');
    expect(existsSync(join(folder, 'one', 'state.db'))).toBe(false);
    ending.abort();
    expect(await status).toBe(0);
  });

  test('exits with status 1 if another process has taken the Lease', async () => {
    const status = run();
    await eventually(() => said).toContain('stowage controller is the leader');
    const found = await client.get(leases, { namespace: 'storage', name: 'stowage-controller' }, signal);
    await client.update(leases, { ...found, spec: { ...found.spec, holderIdentity: 'another' } }, signal);
    expect(await status).toBe(1);
    expect(await lease()).toBe('another');
  }, 30_000);

  test('exits with status 1 if it lacks a permission, and releases the Lease', async () => {
    api.intercept = ({ url }, response) => {
      if (url !== '/api/v1/namespaces/kube-system') return false;
      api.refuse(response, 403, 'Forbidden');
      return true;
    };
    expect(await run()).toBe(1);
    expect(await lease()).toBe('');
  });

  test('is not ready before it knows the leader', async () => {
    api.intercept = ({ url = '' }, response) => {
      if (!url.includes('/leases')) return false;
      api.refuse(response, 500, 'InternalError');
      return true;
    };
    const status = run();
    await eventually(() => said).toContain('is waiting for leadership');
    expect(await health('/readyz')).toEqual([503, 'the controller does not know the leader yet']);
    expect(await health('/healthz')).toEqual([200, 'ok']);
    ending.abort();
    expect(await status).toBe(0);
  });
});

test('/metrics answers as soon as there are metrics', async () => {
  let figures: MetricsText | undefined;
  await using health = await serveHealth(
    '127.0.0.1:0',
    () => undefined,
    () => figures,
  );
  const ask = async (): Promise<readonly [number, string]> => {
    const answer = await fetch(`${health.address}/metrics`);
    return [answer.status, await answer.text()];
  };
  expect(await ask()).toEqual([503, 'there are no metrics yet\n']);
  figures = { contentType: 'text/plain', text: async () => 'a 1' };
  expect(await ask()).toEqual([200, 'a 1']);
  figures = { contentType: 'text/plain', text: () => Promise.reject(new Error('no')) };
  expect(await ask()).toEqual([500, 'Error: no\n']);
});

test('the health server runs only if configured', async () => {
  await using nowhere = await serveHealth(undefined, () => undefined);
  expect(nowhere.address).toBeUndefined();
});

test.each<[string, string | undefined]>([
  ['no pod and no kubeconfig', undefined],
  ['a missing kubeconfig', '/nowhere/kubeconfig'],
])('with %s the error says what to do', async (_, file) => {
  const asking = kubeAccess({ kubeconfig: file, env: {}, clock: systemClock() });
  await expect(asking).rejects.toBeInstanceOf(StowageError);
  await expect(asking).rejects.toMatchObject({
    reason: 'kubernetes-unconfigured',
    action: expect.stringContaining('--kubeconfig'),
  });
});
