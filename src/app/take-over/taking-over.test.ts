import type { ServerResponse } from 'node:http';
import { beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import type { Candidate, Deed } from '#cli/taking-over.ts';
import { stowageError } from '#core/errors.ts';
import { type FakeKubeApi, startKubeApi } from '#testing/fakes/kube-api.ts';
import type { Thing } from '#testing/fakes/kube-objects.ts';
import {
  type Foreign,
  foreignClaim,
  foreignClass,
  foreignClasses,
  foreignDirectory,
  foreignVolume,
} from '#testing/foreign-volumes.ts';
import { createKubeClient } from '#wire/kube/client.ts';
import { reasonOf } from '#wire/kube/errors.ts';
import { claims, persistentVolumes, type Resource } from '#wire/kube/resources.ts';
import type { KubeObject, PersistentVolume, PersistentVolumeClaim } from '#wire/kube/types.ts';
import { createTakingOver } from './taking-over.ts';

const at = { server: '10.10.2.4', path: '/export/silver' };
const paths = {
  claims: '/api/v1/namespaces/shop/persistentvolumeclaims',
  volumes: '/api/v1/persistentvolumes',
  pods: '/api/v1/namespaces/shop/pods',
  stores: '/apis/stowage.dev/v1/stores',
  classes: '/apis/storage.k8s.io/v1/storageclasses',
};
const { signal } = new AbortController();
const administrator = 'administrator';
const usualPatienceMs = 10_000;
const asIs = (object: object): Thing => object as Thing;

let api: FakeKubeApi;
/** Changes that are still let through; then the process that asks is as good as killed. */
let lives: number;
/** PersistentVolumes that were released while their policy was Delete: what is on them is lost. */
let destroyed: string[];
let patienceMs: number;

beforeEach(async () => {
  api = await startKubeApi();
  onTestFinished(() => api[Symbol.asyncDispose]());
  lives = Number.POSITIVE_INFINITY;
  destroyed = [];
  patienceMs = usualPatienceMs;
  api.intercept = ({ method = '', headers }, response) => {
    if (method !== 'GET' && headers['user-agent'] === administrator && lives-- <= 0) response.destroy();
    return response.destroyed;
  };
  putStore();
  for (const kind of ['csi', 'subdir'] as const) api.put(paths.classes, asIs(foreignClass(kind, at)));
});

const putStore = (options?: object, query = ''): void =>
  void api.put(paths.stores, {
    metadata: { name: 'silver' },
    spec: { uri: `nfs://${at.server}${at.path}${query}`, options },
  });

const client = (userAgent = administrator) => createKubeClient({ access: api.access, clock: systemClock(), userAgent });
async function list<T extends KubeObject>(resource: Resource<T>): Promise<readonly T[]> {
  using one = client();
  const found: T[] = [];
  for await (const { items } of one.list(resource, {}, signal)) found.push(...items);
  return found;
}
const volume = async (name: string): Promise<PersistentVolume | undefined> =>
  (await list(persistentVolumes)).find(({ metadata }) => metadata.name === name);
const claim = async (name = 'data'): Promise<PersistentVolumeClaim | undefined> =>
  (await list(claims)).find(({ metadata }) => metadata.name === name);

/** Only what was read, as everybody in Kubernetes does it. */
async function patched<T extends KubeObject>(resource: Resource<T>, { metadata }: T, change: object): Promise<void> {
  using kubernetes = client('kubernetes');
  const { namespace, name, uid, resourceVersion } = metadata;
  const body = { ...change, metadata: { uid, resourceVersion } };
  await kubernetes.patch(resource, { namespace, name }, { kind: 'merge', body }, signal).catch((thrown: unknown) => {
    if (!['Conflict', 'NotFound'].includes(reasonOf(thrown))) throw thrown;
  });
}

/** What Kubernetes' own controller of volumes does, of what matters here. */
async function settle(): Promise<void> {
  const [volumes, claimed] = [await list(persistentVolumes), await list(claims)];
  for (const one of claimed) {
    const { metadata, spec } = one;
    if (one.status?.phase === 'Bound') continue;
    const waits = volumes.find(
      ({ metadata: { name }, spec: { claimRef } }) =>
        (spec.volumeName === undefined || spec.volumeName === name) &&
        claimRef?.name === metadata.name &&
        claimRef?.uid === undefined,
    );
    if (waits === undefined) continue;
    const claimRef = { uid: metadata.uid };
    await patched(persistentVolumes, waits, { spec: { claimRef }, status: { phase: 'Bound' } });
    await patched(claims, one, { spec: { volumeName: waits.metadata.name }, status: { phase: 'Bound' } });
  }
  const uids = new Set((await list(claims)).map(({ metadata }) => metadata.uid));
  for (const { metadata, spec } of await list(persistentVolumes))
    if (
      spec.claimRef?.uid !== undefined &&
      !uids.has(spec.claimRef.uid) &&
      spec.persistentVolumeReclaimPolicy !== 'Retain'
    )
      destroyed.push(metadata.name ?? '');
}

/** A claim that one of them has made a volume for; the name of that. */
function provisioned(
  kind: Foreign,
  name = 'data',
  change: (volume: PersistentVolume) => object = (one) => one,
): string {
  const made = api.put(paths.claims, asIs(foreignClaim(kind, 'shop', name))) as unknown as PersistentVolumeClaim;
  const given = foreignVolume(kind, made, at);
  const called = given.metadata.name ?? '';
  const annotations = { ...made.metadata.annotations, 'pv.kubernetes.io/bind-completed': 'yes' };
  const bound = { ...made, metadata: { ...made.metadata, annotations }, spec: { ...made.spec, volumeName: called } };
  api.put(paths.claims, asIs({ ...bound, status: { phase: 'Bound' } }));
  // Nobody here takes finalizers away.
  api.put(
    paths.volumes,
    asIs({ ...change({ ...given, metadata: { ...given.metadata, finalizers: [] } }), status: { phase: 'Bound' } }),
  );
  return called;
}

const taking = (servers: readonly string[] = []) =>
  createTakingOver({ client: client(), clock: systemClock(), signal, store: 'silver', servers, patienceMs });

/** One run of the command, while Kubernetes does its part. */
async function run(deed: Deed, { name = 'data', id = 'sv1-id' } = {}): Promise<string> {
  using one = taking();
  const { candidates } = await one.look(deed);
  const candidate = candidates.find((found) => found.claim === `shop/${name}`);
  if (candidate === undefined) throw new Error('there is no such claim');
  const { promise: over, resolve } = Promise.withResolvers<void>();
  let isOver = false;
  const working = (deed === 'take' ? one.take(candidate, id) : one[deed](candidate)).finally(() => {
    isOver = true;
    resolve();
  });
  const controlling = (async () => {
    while (!isOver) {
      await settle();
      await Promise.race([over, systemClock().sleep(5, signal)]);
    }
    await settle();
  })();
  const [said] = await Promise.all([working, controlling]);
  return said ?? '';
}

/** One that ends after so many changes. */
async function stopped(deed: Deed, after: number): Promise<void> {
  lives = after;
  patienceMs = 100;
  await run(deed).catch(() => undefined);
  lives = Number.POSITIVE_INFINITY;
  patienceMs = usualPatienceMs;
}

const refused = (deed: Deed, which?: object) => run(deed, which).then(() => undefined, stowageError);
const pod = (phase: string): Thing => ({
  ...{ metadata: { name: 'web-0' }, status: { phase } },
  spec: { volumes: [{ name: 'data', persistentVolumeClaim: { claimName: 'data' } }] },
});
const holds = async (...finalizers: readonly string[]): Promise<void> => {
  const { metadata, ...rest } = (await claim()) as PersistentVolumeClaim;
  api.put(paths.claims, asIs({ ...rest, metadata: { ...metadata, finalizers } }));
};

const found = async (servers?: readonly string[]): Promise<readonly Candidate[]> => {
  using one = taking(servers);
  return (await one.look('take')).candidates;
};

describe.each<Foreign>(['csi', 'subdir'])('a claim of %s', (kind) => {
  const before = async (name: string) => ({ volume: await volume(name), claim: await claim() });

  test('has the same name and another volume, with the directory that it had', async () => {
    const from = provisioned(kind);
    const was = await before(from);
    expect(await found()).toMatchObject([{ claim: 'shop/data', from, to: `${from}-stowage`, state: 'ready' }]);
    await run('take');
    const is = await claim();
    expect(is?.metadata).toMatchObject({ labels: { app: 'data' }, annotations: { 'example.com/owner': 'the team' } });
    expect(is?.metadata.uid).not.toBe(was.claim?.metadata.uid);
    expect(is?.metadata.annotations).not.toHaveProperty(['pv.kubernetes.io/bind-completed']);
    expect(is?.spec).toEqual({ ...was.claim?.spec, volumeName: `${from}-stowage` });
    expect(await volume(`${from}-stowage`)).toMatchObject({
      spec: {
        ...{ accessModes: ['ReadWriteMany'], capacity: { storage: '1Gi' }, persistentVolumeReclaimPolicy: 'Retain' },
        storageClassName: was.claim?.spec.storageClassName,
        csi: {
          ...{ driver: 'file.stowage.dev', volumeHandle: 'sv1-id' },
          volumeAttributes: { store: 'silver', name: foreignDirectory(kind, was.claim as PersistentVolumeClaim) },
        },
      },
    });
    expect((await volume(from))?.spec.persistentVolumeReclaimPolicy).toBe('Retain');
    expect(await found()).toMatchObject([{ state: 'taken-over' }]);
    expect(destroyed).toEqual([]);
  });

  test('is given back as it was', async () => {
    const from = provisioned(kind);
    const was = await before(from);
    await run('take');
    await run('undo');
    const is = await before(from);
    expect(is.claim?.spec).toEqual(was.claim?.spec);
    expect(is.volume?.spec).toMatchObject({ ...was.volume?.spec, claimRef: { uid: is.claim?.metadata.uid } });
    expect(is.volume?.metadata.annotations).toEqual(was.volume?.metadata.annotations);
    expect(await volume(`${from}-stowage`)).toBeUndefined();
    expect(await found()).toMatchObject([{ state: 'ready' }]);
  });

  test('is then as any other of Stowage, when it is finished', async () => {
    const from = provisioned(kind);
    await run('take');
    await run('finish');
    expect(await volume(from)).toBeUndefined();
    const after = await volume(`${from}-stowage`);
    expect(after?.spec.persistentVolumeReclaimPolicy).toBe(kind === 'csi' ? 'Retain' : 'Delete');
    expect(after?.metadata.annotations).toEqual({ 'pv.kubernetes.io/provisioned-by': 'file.stowage.dev' });
    expect(after?.metadata.finalizers).toEqual(['stowage.dev/volume']);
    expect(await found()).toEqual([]);
    expect(destroyed).toEqual([]);
  });
});

describe('killed at any step', () => {
  /** How many changes each of them makes, and more. */
  const steps = Array.from({ length: 7 }, (_, at) => at);
  const killed = async (deed: Deed, after: number): Promise<void> => {
    await stopped(deed, after);
    await settle();
    expect(destroyed).toEqual([]);
    // Whoever looks now still finds the claim, or what it was.
    expect((await claim()) ?? (await found())[0]?.claim).toBeDefined();
  };
  const hasBefore = async (from: string): Promise<void> => {
    expect((await claim())?.spec.volumeName).toBe(from);
    expect((await volume(from))?.spec.persistentVolumeReclaimPolicy).toBe('Delete');
    expect(await volume(`${from}-stowage`)).toBeUndefined();
  };

  test.each(steps)('taking it over, after %i changes: repeated, it is', async (after) => {
    const from = provisioned('subdir');
    await killed('take', after);
    await run('take');
    expect((await claim())?.spec.volumeName).toBe(`${from}-stowage`);
    expect(await found()).toMatchObject([{ state: 'taken-over' }]);
    expect(destroyed).toEqual([]);
  });

  test.each(steps.slice(2))('taking it over, after %i changes: undone, it is as it was', async (after) => {
    const from = provisioned('csi');
    await killed('take', after);
    await run('undo');
    await hasBefore(from);
    expect(destroyed).toEqual([]);
  });

  test.each(steps)('undoing it, after %i changes: repeated, it is undone', async (after) => {
    const from = provisioned('csi');
    await run('take');
    await killed('undo', after);
    if ((await volume(`${from}-stowage`)) !== undefined) await run('undo');
    await hasBefore(from);
    expect(destroyed).toEqual([]);
  });

  test.each(steps)('undoing it, after %i changes: taken over again, it is', async (after) => {
    const from = provisioned('subdir');
    await run('take');
    await killed('undo', after);
    await run('take');
    expect((await claim())?.spec.volumeName).toBe(`${from}-stowage`);
    expect((await volume(from))?.metadata.annotations).toMatchObject({ 'stowage.dev/reclaim-policy': 'Delete' });
    expect(destroyed).toEqual([]);
  });

  test.each(steps)('finishing it, after %i changes: repeated, it is finished', async (after) => {
    const from = provisioned('subdir');
    await run('take');
    await killed('finish', after);
    if ((await found()).length > 0) await run('finish');
    expect(await volume(from)).toBeUndefined();
    expect((await volume(`${from}-stowage`))?.spec.persistentVolumeReclaimPolicy).toBe('Delete');
    expect((await volume(`${from}-stowage`))?.metadata.annotations).toEqual({
      'pv.kubernetes.io/provisioned-by': 'file.stowage.dev',
    });
    expect(destroyed).toEqual([]);
  });
});

describe('is left alone', () => {
  const held = ['kubernetes.io/pvc-protection', 'snapshot.storage.kubernetes.io/pvc-as-source-protection'];
  test('what a pod uses, however late it comes', async () => {
    const from = provisioned('csi');
    api.put(paths.pods, pod('Running'));
    expect(await found()).toMatchObject([{ state: 'used', detail: expect.stringContaining('used by pod web-0') }]);
    const was = await list(persistentVolumes);
    expect((await refused('take'))?.message).toContain('used by pod web-0');
    expect((await claim())?.spec.volumeName).toBe(from);
    expect(await list(persistentVolumes)).toEqual(was);
    api.put(paths.pods, pod('Succeeded'));
    await run('take');
    expect((await claim())?.spec.volumeName).toBe(`${from}-stowage`);
  });

  test('what a pod uses is not given back, and nothing is begun', async () => {
    const from = provisioned('subdir');
    await run('take');
    api.put(paths.pods, pod('Running'));
    const was = await list(persistentVolumes);
    expect((await refused('undo'))?.message).toContain('used by pod web-0');
    expect(await list(persistentVolumes)).toEqual(was);
    expect((await claim())?.spec.volumeName).toBe(`${from}-stowage`);
  });

  test('what lies deeper, is the whole export, or has no claim', async () => {
    const nfs = (path: string) => (one: PersistentVolume) => ({ ...one, spec: { ...one.spec, nfs: { ...at, path } } });
    provisioned('subdir', 'deeper', nfs(`${at.path}/red/data`));
    provisioned('subdir', 'whole', nfs(`${at.path}/`));
    provisioned('subdir', 'beside', nfs(`${at.path}-2/data`));
    provisioned('subdir', 'odd', nfs(`${at.path}/what is it`));
    provisioned('subdir', 'gone');
    api.remove(paths.claims, 'gone');
    expect(await found()).toMatchObject([
      {
        claim: 'shop/deeper',
        state: 'impossible',
        detail: expect.stringContaining('name a Store for the one that it is in, red'),
      },
      { claim: 'shop/whole', state: 'impossible', detail: expect.stringContaining('the whole export') },
      { claim: 'shop/odd', state: 'impossible', detail: expect.stringContaining('no volume can be called') },
      { claim: 'shop/gone', state: 'unclaimed' },
    ]);
  });

  test('a directory that two of them have', async () => {
    const nfs = (one: PersistentVolume) => ({ ...one, spec: { ...one.spec, nfs: { ...at, path: `${at.path}/same` } } });
    const [a, b] = [provisioned('subdir', 'a', nfs), provisioned('subdir', 'b', nfs)];
    expect(await found()).toMatchObject([
      { state: 'impossible', detail: expect.stringContaining(`${b} has the same directory`) },
      { state: 'impossible', detail: expect.stringContaining(`${a} has the same directory`) },
    ]);
  });

  test('a claim that something else holds', async () => {
    provisioned('csi');
    await holds(...held);
    expect(await found()).toMatchObject([
      { state: 'impossible', detail: expect.stringContaining('is held by snapshot.') },
    ]);
  });

  test('a claim that something else holds only since it was looked at', async () => {
    const from = provisioned('csi');
    await holds(...held);
    const was = await list(persistentVolumes);
    expect((await refused('take'))?.message).toContain('is held by snapshot.');
    expect(await list(persistentVolumes)).toEqual(was);
    expect((await claim())?.metadata).not.toHaveProperty('deletionTimestamp');
    expect((await claim())?.spec.volumeName).toBe(from);
  });

  test('a claim that something holds since it was begun, or taken over', async () => {
    const from = provisioned('subdir');
    // The policy, and the PersistentVolume.
    await stopped('take', 2);
    await holds(...held);
    expect((await refused('take'))?.message).toContain('is held by snapshot.');
    expect(await claim()).toMatchObject({ spec: { volumeName: from } });
    await holds();
    await run('take');
    await holds(...held);
    const was = await list(persistentVolumes);
    expect((await refused('undo'))?.message).toContain('is held by snapshot.');
    expect(await list(persistentVolumes)).toEqual(was);
    expect((await claim())?.metadata).not.toHaveProperty('deletionTimestamp');
    expect((await claim())?.spec.volumeName).toBe(`${from}-stowage`);
  });

  test('what is no volume of the store, and what another PersistentVolume has', async () => {
    const from = provisioned('subdir');
    const was = await list(persistentVolumes);
    expect((await refused('take', { id: '' }))?.message).toContain('is no volume of the store');
    expect(await list(persistentVolumes)).toEqual(was);
    const csi = { driver: 'file.stowage.dev', volumeHandle: 'sv1-id' };
    api.put(paths.volumes, asIs({ metadata: { name: 'by-hand' }, spec: { csi } }));
    expect((await refused('take'))?.message).toContain('by-hand has that directory already');
    expect(await volume(from)).toEqual(was[0]);
    expect(await volume(`${from}-stowage`)).toBeUndefined();
  });

  test.each([
    ['an option', { pathTemplate: '{label:team}/{name}' }, ''],
    ['its uri', undefined, '?pathTemplate={label:team}/{name}'],
  ])('everything on a store with paths of its own, by %s', async (_, options, query) => {
    const from = provisioned('csi');
    await run('take');
    putStore(options, query);
    await expect(found()).rejects.toMatchObject({
      ...{ code: 'unsupported', reason: 'take-over-not-possible' },
      action: expect.stringContaining('without pathTemplate'),
    });
    await run('undo');
    expect((await claim())?.spec.volumeName).toBe(from);
  });

  test('what was stopped half-way and is used: it does not go on, and is given back', async () => {
    const from = provisioned('subdir');
    await stopped('take', 2);
    api.put(paths.pods, pod('Running'));
    expect(await found()).toMatchObject([
      { state: 'begun', detail: expect.stringMatching(/half-way: used by pod web-0/) },
    ]);
    expect((await refused('take'))?.message).toContain('used by pod web-0');
    const { uid } = (await claim())?.metadata ?? {};
    await run('undo');
    expect(await claim()).toMatchObject({ metadata: { uid }, spec: { volumeName: from } });
    expect((await volume(from))?.spec.persistentVolumeReclaimPolicy).toBe('Delete');
    expect(await volume(`${from}-stowage`)).toBeUndefined();
  });

  test('what is on another server, unless it is said to be the same', async () => {
    const nfs = (one: PersistentVolume) => ({
      ...one,
      spec: { ...one.spec, nfs: { path: one.spec.nfs?.path, server: 'Filer.example.com' } },
    });
    provisioned('subdir', 'data', nfs);
    using one = taking();
    expect(await one.look('take')).toEqual({ candidates: [], otherServers: ['filer.example.com'] });
    expect(await found(['filer.example.com.'])).toMatchObject([{ state: 'ready' }]);
  });

  test('a claim that somebody made anew meanwhile has the volume that waits for it', async () => {
    const from = provisioned('subdir');
    // The policy, the PersistentVolume, and that the claim goes.
    await stopped('take', 3);
    expect(await claim()).toBeUndefined();
    api.put(paths.claims, asIs(foreignClaim('subdir', 'shop', 'data')));
    api.put(paths.pods, pod('Pending'));
    await run('take');
    expect((await claim())?.spec.volumeName).toBe(`${from}-stowage`);
  });

  test('a claim that its user deletes after it was taken over is not made again', async () => {
    const from = provisioned('subdir');
    await run('take');
    api.remove(paths.claims, 'data');
    expect(await found()).toMatchObject([
      { state: 'unclaimed', detail: expect.stringContaining(`kubectl delete pv ${from} ${from}-stowage`) },
    ]);
  });

  test('what has no claim any more is not finished', async () => {
    const from = provisioned('subdir');
    await run('take');
    api.remove(paths.claims, 'data');
    expect((await refused('finish'))?.message).toContain('its claim is gone');
    expect((await volume(`${from}-stowage`))?.spec.persistentVolumeReclaimPolicy).toBe('Retain');
  });
});

test('what Kubernetes changes at the same moment is read again', async () => {
  const from = provisioned('subdir');
  const { intercept } = api;
  const seen = new Set<string>();
  api.intercept = (request, response, body) => {
    // Each change of a PersistentVolume, the first time: its status was written just before.
    const change = body.replace(/"resourceVersion":"\d+"/, '');
    if (request.method === 'PATCH' && request.headers['user-agent'] === administrator && !seen.has(change)) {
      seen.add(change);
      api.refuse(response, 409, 'Conflict');
      return true;
    }
    return intercept?.(request, response, body) === true;
  };
  await run('take');
  expect((await claim())?.spec.volumeName).toBe(`${from}-stowage`);
  await run('undo');
  await run('take');
  await run('finish');
  expect(await found()).toEqual([]);
});

test('a claim that has grown gets a volume that is large enough, both ways', async () => {
  const from = provisioned('subdir');
  await run('take');
  const { spec, ...rest } = (await claim()) as PersistentVolumeClaim;
  api.put(paths.claims, asIs({ ...rest, spec: { ...spec, resources: { requests: { storage: '3Gi' } } } }));
  await run('undo');
  expect((await volume(from))?.spec.capacity).toEqual({ storage: '3Gi' });
  expect((await claim())?.spec.resources).toEqual({ requests: { storage: '3Gi' } });
});

test('a store that is not there, and one that has no export', async () => {
  using other = createTakingOver({ client: client(), clock: systemClock(), signal, store: 'gold', servers: [] });
  await expect(other.look('take')).rejects.toMatchObject({ code: 'not-found', reason: 'store-unknown' });
  api.put(paths.stores, { metadata: { name: 'silver' }, spec: { uri: 'local:///srv' } });
  await expect(found()).rejects.toMatchObject({ code: 'unsupported', reason: 'take-over-not-possible' });
});

test('whoever may not is told what the API server says', async () => {
  api.intercept = (_, response) => {
    api.refuse(response, 403, 'Forbidden', { message: 'stores.stowage.dev "silver" is forbidden: User "me" cannot' });
    return true;
  };
  await expect(found()).rejects.toMatchObject({
    ...{ code: 'denied', reason: 'kubernetes-denied', message: expect.stringContaining('User "me" cannot') },
  });
});

describe('when Kubernetes does not let the claim be made again', () => {
  const quota = 'persistentvolumeclaims "data" is forbidden: exceeded quota: small, used: persistentvolumeclaims=1';
  /** What is asked of claims by this method, that many times. */
  function failing(method: string, times: number, answer: (response: ServerResponse) => void): void {
    let left = times;
    api.intercept = ({ method: asked, url = '', headers }, response) => {
      const isMeant = asked === method && url.includes('/persistentvolumeclaims');
      if (!isMeant || headers['user-agent'] !== administrator || left <= 0) return false;
      left--;
      answer(response);
      return true;
    };
  }
  const noRoom = (response: ServerResponse): void => api.refuse(response, 403, 'Forbidden', { message: quota });

  test.each<[string, (response: ServerResponse) => void]>([
    ['a quota that is full', noRoom],
    ['a quota that somebody else changes', (response) => api.refuse(response, 409, 'Conflict')],
    ['too many requests', (response) => api.refuse(response, 429, 'TooManyRequests')],
    ['a failure of the server', (response) => api.refuse(response, 500, 'InternalError')],
    ['an answer that is lost', (response) => void response.destroy()],
  ])('it is tried again: %s', async (_, answer) => {
    const from = provisioned('subdir');
    failing('POST', 3, answer);
    await run('take');
    expect((await claim())?.spec.volumeName).toBe(`${from}-stowage`);
    failing('POST', 3, answer);
    await run('undo');
    expect((await claim())?.spec.volumeName).toBe(from);
  });

  test.each(['DELETE', 'GET'])('neither is a lost %s the end', async (method) => {
    const from = provisioned('csi');
    let isDeleted = method === 'DELETE';
    let times = 2;
    api.intercept = ({ method: asked, url = '', headers }, response) => {
      if (headers['user-agent'] !== administrator || !url.includes('/persistentvolumeclaims/')) return false;
      const isLost = isDeleted && asked === method && times-- > 0;
      isDeleted ||= asked === 'DELETE';
      if (isLost) response.destroy();
      return isLost;
    };
    await run('take');
    expect(times).toBeLessThanOrEqual(0);
    expect((await claim())?.spec.volumeName).toBe(`${from}-stowage`);
  });

  test.each<[string, (response: ServerResponse) => void]>([
    ['exceeded quota', noRoom],
    ['no webhook', (response) => api.refuse(response, 403, 'Forbidden', { message: 'no webhook lets it' })],
  ])('it says that the claim is gone, and where it is kept: %s', async (why, answer) => {
    const from = provisioned('subdir');
    patienceMs = 100;
    failing('POST', Number.POSITIVE_INFINITY, answer);
    const was = await claim();
    const error = await refused('take');
    expect(error).toMatchObject({
      message: expect.stringMatching(`^the claim is gone, and could not be made again yet: .*${why}`),
      action: expect.stringContaining(
        `annotation stowage.dev/taken-over-claim of the PersistentVolume ${from}-stowage`,
      ),
    });
    expect(error?.action).toContain('Repeat the command');
    expect(await claim()).toBeUndefined();
    failing('POST', 0, answer);
    patienceMs = usualPatienceMs;
    await run('take');
    expect((await claim())?.spec).toEqual({ ...was?.spec, volumeName: `${from}-stowage` });
  });

  test('only the claim that was written down is deleted', async () => {
    provisioned('subdir');
    let isFirst = true;
    const { spec, ...rest } = (await claim()) as PersistentVolumeClaim;
    api.intercept = ({ method, url = '' }) => {
      // Somebody lets it grow just then.
      if (method === 'DELETE' && url.includes('/persistentvolumeclaims') && isFirst) {
        isFirst = false;
        api.put(paths.claims, asIs({ ...rest, spec: { ...spec, resources: { requests: { storage: '3Gi' } } } }));
      }
      return false;
    };
    await run('take');
    expect((await claim())?.spec.resources).toEqual({ requests: { storage: '3Gi' } });
  });
});

describe('what is deleted with a finished claim', () => {
  const policyOf = async (from: string) => (await volume(`${from}-stowage`))?.spec.persistentVolumeReclaimPolicy;
  const changed =
    (attributes: object, more: object = {}) =>
    (one: PersistentVolume): object => {
      const volumeAttributes = { ...one.spec.csi?.volumeAttributes, ...attributes };
      return { ...one, spec: { ...one.spec, csi: { ...one.spec.csi, volumeAttributes, ...more } } };
    };
  const classWith = (parameters: object): void =>
    void api.put(paths.classes, asIs({ ...foreignClass('subdir', at), parameters }));

  test.each([
    ['kept by the driver', { onDelete: 'retain' }, {}],
    ['archived, however it is written', { ondelete: 'Archive' }, {}],
    ['kept as its id says', {}, { volumeHandle: '10.10.2.4#export/silver#one##retain' }],
    ['what only its arguments tell', {}, {}],
    // Nothing of it is in the id, and the arguments count.
    ['to be deleted, as its class said', { onDelete: 'delete' }, {}],
  ])('csi-driver-nfs: %s stays', async (_, attributes, more) => {
    const from = provisioned('csi', 'data', changed(attributes, more));
    await run('take');
    const said = await run('finish');
    expect(await policyOf(from)).toBe('Retain');
    expect(said).toContain(`it stays Retain`);
    expect(said).toContain(`kubectl patch pv ${from}-stowage --type=merge`);
  });

  test.each([
    ['archived, as it does by itself', {}],
    ['archived', { archiveOnDelete: 'true' }],
    ['kept', { onDelete: 'retain', archiveOnDelete: 'false' }],
  ])('nfs-subdir-external-provisioner: %s stays', async (_, parameters) => {
    classWith(parameters);
    const from = provisioned('subdir');
    await run('take');
    expect(await run('finish')).toContain('it stays Retain');
    expect(await policyOf(from)).toBe('Retain');
  });

  test.each([{ onDelete: 'delete' }, { archiveOnDelete: 'False' }])(
    'nfs-subdir-external-provisioner: what was to be deleted is, by %j',
    async (parameters) => {
      classWith(parameters);
      const from = provisioned('subdir');
      await run('take');
      expect(await run('finish')).toBe('');
      expect(await policyOf(from)).toBe('Delete');
    },
  );

  test.each(['gone', "another's"])('nothing, where the class is %s', async (how) => {
    const from = provisioned('subdir');
    await run('take');
    if (how === 'gone') api.remove(paths.classes, foreignClasses.subdir);
    else api.put(paths.classes, asIs({ ...foreignClass('subdir', at), provisioner: 'file.stowage.dev' }));
    expect(await run('finish')).toContain('it stays Retain');
    expect(await policyOf(from)).toBe('Retain');
  });

  test('nothing, where nobody made the volume, or it is gone', async () => {
    const byHand = (one: PersistentVolume) => ({ ...one, metadata: { ...one.metadata, annotations: {} } });
    const from = provisioned('csi', 'data', byHand);
    const other = provisioned('csi', 'other');
    await run('take');
    await run('take', { name: 'other', id: 'sv1-other' });
    api.remove(paths.volumes, other);
    expect(await run('finish')).toContain('it stays Retain');
    expect(await run('finish', { name: 'other' })).toContain('it stays Retain');
    expect([await policyOf(from), await policyOf(other)]).toEqual(['Retain', 'Retain']);
  });

  test.each([
    ['an option', { onDelete: 'archive' }, ''],
    ['its uri', undefined, '?onDelete=retain'],
  ])('what the store itself keeps, by %s', async (_, options, query) => {
    classWith({});
    const from = provisioned('subdir');
    const kept = provisioned('subdir', 'kept', (one) => ({
      ...one,
      spec: { ...one.spec, persistentVolumeReclaimPolicy: 'Retain' },
    }));
    putStore(options, query);
    await run('take');
    await run('take', { name: 'kept', id: 'sv1-kept' });
    expect([await run('finish'), await run('finish', { name: 'kept' })]).toEqual(['', '']);
    expect([await policyOf(from), await policyOf(kept)]).toEqual(['Delete', 'Retain']);
  });
});
