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
const clockAheadBy = (ms: number): Clock => ({ ...systemClock(), now: () => Date.now() + ms });

let api: FakeKubeApi;
let client: KubeClient;

beforeEach(async () => {
  api = await startKubeApi();
  onTestFinished(() => api[Symbol.asyncDispose]());
  client = createKubeClient({ access: api.access, clock: systemClock(), userAgent: 'test' });
  onTestFinished(() => client[Symbol.dispose]());
});

interface Maintenance {
  readonly applied: Credential[];
  stop(): Promise<void>;
}

function start({ clock = systemClock(), secret }: { clock?: Clock; secret?: string } = {}): Maintenance {
  const applied: Credential[] = [];
  const stopping = new AbortController();
  const options = { client, clock, namespace, secret, applyCredential: (one: Credential) => void applied.push(one) };
  const running = maintainCredentials(options, { signal: stopping.signal, log: silentLog() });
  const stop = (): Promise<void> => {
    stopping.abort();
    return running;
  };
  onTestFinished(stop);
  return { applied, stop };
}

const toBase64 = (text: string): string => Buffer.from(text).toString('base64');
const secretOf = ({ cert, key }: Credential, more: object = {}): Secret['data'] => ({
  'tls.crt': toBase64(cert),
  'tls.key': toBase64(key),
  ...more,
});
const storedSecret = async (name = 'stowage-tls'): Promise<Secret> =>
  await client.get(secrets, { namespace, name }, signal);
const storedCertificate = async (): Promise<string> =>
  Buffer.from((await storedSecret()).data?.['tls.crt'] ?? '', 'base64').toString();
const publishedAuthority = async (): Promise<string | undefined> =>
  (await client.get(configMaps, { namespace, name: 'stowage-ca' }, signal).catch(() => undefined))?.data?.['ca.crt'];
const changes = (): readonly string[] => api.requests.filter((one) => !one.startsWith('GET'));

describe('the certificate of the leader', () => {
  test('is created by the first leader, stored with its key in a Secret, and published without the key', async () => {
    const maintenance = start();
    await eventually(() => maintenance.applied.length).toBe(1);
    const [first] = maintenance.applied;
    const { type, data } = await storedSecret();
    expect([type, data]).toEqual(['kubernetes.io/tls', first === undefined ? {} : secretOf(first)]);
    expect(await publishedAuthority()).toBe(first?.cert);
    expect(await publishedAuthority()).not.toContain('PRIVATE');
  });

  test('is the same for the next leader, which writes nothing', async () => {
    const first = start();
    await eventually(() => first.applied.length).toBe(1);
    await first.stop();
    const before = changes().length;
    const second = start();
    await eventually(() => second.applied).toEqual(first.applied);
    expect(changes().length).toBe(before);
  });

  test('is the same if two processes create it at once', async () => {
    const maintenances = [start(), start(), start()];
    await eventually(() => maintenances.map(({ applied }) => applied.length)).toEqual([1, 1, 1]);
    const all = new Set(maintenances.flatMap(({ applied }) => applied.map(({ cert }) => cert)));
    expect([...all]).toEqual([await storedCertificate()]);
    await eventually(publishedAuthority).toBe(await storedCertificate());
  });

  test('is renewed after two thirds of its lifetime, and then used, also by waiting processes', async () => {
    const first = start();
    await eventually(() => first.applied.length).toBe(1);
    const second = start({ clock: clockAheadBy(246 * day) });
    await eventually(() => second.applied.length).toBe(1);
    expect(second.applied[0]?.cert).not.toBe(first.applied[0]?.cert);
    expect(await storedCertificate()).toBe(second.applied[0]?.cert);
    expect(await publishedAuthority()).toBe(second.applied[0]?.cert);
    await eventually(() => first.applied.at(-1)).toEqual(second.applied[0]);
    const [x509] = second.applied.map(({ cert }) => new X509Certificate(cert));
    expect(x509?.validToDate.getTime()).toBeGreaterThan(Date.now() + 600 * day);
  });

  test('is not renewed before that time', async () => {
    const first = start();
    await eventually(() => first.applied.length).toBe(1);
    const second = start({ clock: clockAheadBy(240 * day) });
    await eventually(() => second.applied).toEqual(first.applied);
  });

  test.each<[string, () => object]>([
    ['does not parse', () => ({ type: 'kubernetes.io/tls', data: { 'tls.crt': 'AAAA', 'tls.key': 'AAAA' } })],
    ['is for other names', () => ({ type: 'kubernetes.io/tls', data: secretOf(createCredential(['a'], Date.now())) })],
    ['is of another type', () => ({ type: 'Opaque', data: {} })],
  ])('is recreated when the stored one %s', async (_, found) => {
    api.put(paths.secrets, { metadata: { name: 'stowage-tls' }, ...found() });
    const maintenance = start();
    await eventually(() => maintenance.applied.length).toBe(1);
    expect((await storedSecret()).type).toBe('kubernetes.io/tls');
    expect(await storedCertificate()).toBe(maintenance.applied[0]?.cert);
  });

  test('is recreated when a user deletes it, and published again when a user changes the ConfigMap', async () => {
    const maintenance = start();
    await eventually(() => maintenance.applied.length).toBe(1);
    api.put(paths.configMaps, { metadata: { name: 'stowage-ca' }, data: { 'ca.crt': 'another' } });
    await eventually(publishedAuthority).toBe(maintenance.applied[0]?.cert);
    api.remove(paths.configMaps, 'stowage-ca');
    await eventually(publishedAuthority).toBe(maintenance.applied[0]?.cert);
    api.remove(paths.secrets, 'stowage-tls');
    await eventually(() => maintenance.applied.length).toBe(2);
    await eventually(publishedAuthority).toBe(maintenance.applied[1]?.cert);
    expect(await storedCertificate()).toBe(maintenance.applied[1]?.cert);
  });

  test('is created when the API server comes back', async () => {
    await api.down();
    const maintenance = start();
    await api.up();
    await eventually(() => maintenance.applied.length).toBe(1);
  });
});

describe('a certificate that another program maintains', () => {
  test('is used, never written, and reloaded when it changes', async () => {
    const [one, two] = [createCredential(names, Date.now()), createCredential(names, Date.now())];
    const maintenance = start({ secret: 'from-cert-manager' });
    const put = (data: Secret['data']) =>
      api.put(paths.secrets, { metadata: { name: 'from-cert-manager' }, type: 'kubernetes.io/tls', data });
    // The other program may create the Secret after Stowage has started.
    await eventually(() => api.watches).toBe(2);
    put(secretOf(one));
    await eventually(() => maintenance.applied).toMatchObject([{ cert: one.cert }]);
    expect(await publishedAuthority()).toBe(one.cert);
    put(secretOf(two, { 'ca.crt': toBase64('those who signed it') }));
    await eventually(() => maintenance.applied).toMatchObject([{ cert: one.cert }, { cert: two.cert }]);
    expect(await publishedAuthority()).toBe('those who signed it');
    // An invalid certificate does not replace a valid one.
    put({ 'tls.crt': 'AAAA', 'tls.key': 'AAAA' });
    put(secretOf(createCredential(['another'], Date.now())));
    put(secretOf(createCredential(names, Date.now() - 400 * day)));
    const last = createCredential(names, Date.now());
    put(secretOf(last));
    await eventually(() => maintenance.applied.map(({ cert }) => cert)).toEqual([one.cert, two.cert, last.cert]);
    expect(changes().filter((one) => one.includes('/secrets'))).toEqual([]);
  });
});
