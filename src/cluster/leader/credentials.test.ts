import { X509Certificate } from 'node:crypto';
import { beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { type Clock, systemClock } from '#base/clock.ts';
import { silentLog } from '#base/log.ts';
import { eventually } from '#testing/controller-fixture.ts';
import { type FakeKubeApi, startKubeApi } from '#testing/fakes/kube-api.ts';
import { createKubeClient, type KubeClient } from '#wire/kube/client.ts';
import { configMaps, secrets } from '#wire/kube/resources.ts';
import type { Secret } from '#wire/kube/types.ts';
import { serverNames } from '../names.ts';
import { type Credential, createCredential } from './certificate.ts';
import { maintainCredentials } from './credentials.ts';

const namespace = 'stowage-system';
const names = serverNames(namespace);
const day = 24 * 3_600_000;
const paths = {
  secrets: `/api/v1/namespaces/${namespace}/secrets`,
  configMaps: `/api/v1/namespaces/${namespace}/configmaps`,
};
const { signal } = new AbortController();
const later = (ms: number): Clock => ({ ...systemClock(), now: () => Date.now() + ms });

let api: FakeKubeApi;
let client: KubeClient;

beforeEach(async () => {
  api = await startKubeApi();
  onTestFinished(() => api[Symbol.asyncDispose]());
  client = createKubeClient({ access: api.access, clock: systemClock(), userAgent: 'test' });
  onTestFinished(() => client[Symbol.dispose]());
});

interface Keeper {
  readonly used: Credential[];
  stop(): Promise<void>;
}

function start({ clock = systemClock(), secret }: { clock?: Clock; secret?: string } = {}): Keeper {
  const used: Credential[] = [];
  const end = new AbortController();
  const options = { client, clock, namespace, secret, applyCredential: (one: Credential) => void used.push(one) };
  const running = maintainCredentials(options, { signal: end.signal, log: silentLog() });
  const stop = (): Promise<void> => {
    end.abort();
    return running;
  };
  onTestFinished(stop);
  return { used, stop };
}

const encoded = (text: string): string => Buffer.from(text).toString('base64');
const secretOf = ({ cert, key }: Credential, more: object = {}): Secret['data'] => ({
  'tls.crt': encoded(cert),
  'tls.key': encoded(key),
  ...more,
});
const kept = async (name = 'stowage-tls'): Promise<Secret> => await client.get(secrets, { namespace, name }, signal);
const keptCert = async (): Promise<string> => Buffer.from((await kept()).data?.['tls.crt'] ?? '', 'base64').toString();
const published = async (): Promise<string | undefined> =>
  (await client.get(configMaps, { namespace, name: 'stowage-ca' }, signal).catch(() => undefined))?.data?.['ca.crt'];
const changes = (): readonly string[] => api.requests.filter((one) => !one.startsWith('GET'));

describe('the certificate of the leader', () => {
  test('is created by the first leader, stored with its key in a Secret, and published without the key', async () => {
    const keeper = start();
    await eventually(() => keeper.used.length).toBe(1);
    const [first] = keeper.used;
    const { type, data } = await kept();
    expect([type, data]).toEqual(['kubernetes.io/tls', first === undefined ? {} : secretOf(first)]);
    expect(await published()).toBe(first?.cert);
    expect(await published()).not.toContain('PRIVATE');
  });

  test('is the same for the next leader, which writes nothing', async () => {
    const first = start();
    await eventually(() => first.used.length).toBe(1);
    await first.stop();
    const before = changes().length;
    const second = start();
    await eventually(() => second.used).toEqual(first.used);
    expect(changes().length).toBe(before);
  });

  test('is the same if two processes create it at once', async () => {
    const keepers = [start(), start(), start()];
    await eventually(() => keepers.map(({ used }) => used.length)).toEqual([1, 1, 1]);
    const all = new Set(keepers.flatMap(({ used }) => used.map(({ cert }) => cert)));
    expect([...all]).toEqual([await keptCert()]);
    await eventually(published).toBe(await keptCert());
  });

  test('is renewed after two thirds of its lifetime, and then used, also by waiting processes', async () => {
    const first = start();
    await eventually(() => first.used.length).toBe(1);
    const second = start({ clock: later(246 * day) });
    await eventually(() => second.used.length).toBe(1);
    expect(second.used[0]?.cert).not.toBe(first.used[0]?.cert);
    expect(await keptCert()).toBe(second.used[0]?.cert);
    expect(await published()).toBe(second.used[0]?.cert);
    await eventually(() => first.used.at(-1)).toEqual(second.used[0]);
    const [x509] = second.used.map(({ cert }) => new X509Certificate(cert));
    expect(x509?.validToDate.getTime()).toBeGreaterThan(Date.now() + 600 * day);
  });

  test('stays until then', async () => {
    const first = start();
    await eventually(() => first.used.length).toBe(1);
    const second = start({ clock: later(240 * day) });
    await eventually(() => second.used).toEqual(first.used);
  });

  test.each<[string, () => object]>([
    ['does not parse', () => ({ type: 'kubernetes.io/tls', data: { 'tls.crt': 'AAAA', 'tls.key': 'AAAA' } })],
    ['is for other names', () => ({ type: 'kubernetes.io/tls', data: secretOf(createCredential(['a'], Date.now())) })],
    ['is of another type', () => ({ type: 'Opaque', data: {} })],
  ])('is recreated when the stored one %s', async (_, found) => {
    api.put(paths.secrets, { metadata: { name: 'stowage-tls' }, ...found() });
    const keeper = start();
    await eventually(() => keeper.used.length).toBe(1);
    expect((await kept()).type).toBe('kubernetes.io/tls');
    expect(await keptCert()).toBe(keeper.used[0]?.cert);
  });

  test('is recreated when a user deletes it, and published again when a user changes the ConfigMap', async () => {
    const keeper = start();
    await eventually(() => keeper.used.length).toBe(1);
    api.put(paths.configMaps, { metadata: { name: 'stowage-ca' }, data: { 'ca.crt': 'another' } });
    await eventually(published).toBe(keeper.used[0]?.cert);
    api.remove(paths.configMaps, 'stowage-ca');
    await eventually(published).toBe(keeper.used[0]?.cert);
    api.remove(paths.secrets, 'stowage-tls');
    await eventually(() => keeper.used.length).toBe(2);
    await eventually(published).toBe(keeper.used[1]?.cert);
    expect(await keptCert()).toBe(keeper.used[1]?.cert);
  });

  test('is created later if the API server is away at first', async () => {
    await api.down();
    const keeper = start();
    await api.up();
    await eventually(() => keeper.used.length).toBe(1);
  });
});

describe('a certificate that another program maintains', () => {
  test('is used, never written, and reloaded when it changes', async () => {
    const [one, two] = [createCredential(names, Date.now()), createCredential(names, Date.now())];
    const keeper = start({ secret: 'from-cert-manager' });
    const put = (data: Secret['data']) =>
      api.put(paths.secrets, { metadata: { name: 'from-cert-manager' }, type: 'kubernetes.io/tls', data });
    // The other program may create the Secret after Stowage has started.
    await eventually(() => api.watches).toBe(2);
    put(secretOf(one));
    await eventually(() => keeper.used).toMatchObject([{ cert: one.cert }]);
    expect(await published()).toBe(one.cert);
    put(secretOf(two, { 'ca.crt': encoded('those who signed it') }));
    await eventually(() => keeper.used).toMatchObject([{ cert: one.cert }, { cert: two.cert }]);
    expect(await published()).toBe('those who signed it');
    // An invalid certificate does not replace a valid one.
    put({ 'tls.crt': 'AAAA', 'tls.key': 'AAAA' });
    put(secretOf(createCredential(['another'], Date.now())));
    put(secretOf(createCredential(names, Date.now() - 400 * day)));
    const last = createCredential(names, Date.now());
    put(secretOf(last));
    await eventually(() => keeper.used.map(({ cert }) => cert)).toEqual([one.cert, two.cert, last.cert]);
    expect(changes().filter((one) => one.includes('/secrets'))).toEqual([]);
  });
});
