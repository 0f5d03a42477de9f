import { beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import type { Candidate } from '#cli/taking-over.ts';
import { stowageError } from '#core/errors.ts';
import { type FakeKubeApi, startKubeApi } from '#testing/fakes/kube-api.ts';
import type { Thing } from '#testing/fakes/kube-objects.ts';
import { type Foreign, foreignClaim, foreignDirectory, foreignVolume } from '#testing/foreign-volumes.ts';
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
};
const { signal } = new AbortController();
const administrator = 'administrator';
const asIs = (object: object): Thing => object as Thing;

let api: FakeKubeApi;
/** Changes that are still let through; then the process that asks is as good as killed. */
let lives: number;
/** PersistentVolumes that were released while their policy was Delete: what is on them is lost. */
let destroyed: string[];

beforeEach(async () => {
  api = await startKubeApi();
  onTestFinished(() => api[Symbol.asyncDispose]());
  lives = Number.POSITIVE_INFINITY;
  destroyed = [];
  api.intercept = ({ method = '', headers }, response) => {
    if (method !== 'GET' && headers['user-agent'] === administrator && lives-- <= 0) response.destroy();
    return response.destroyed;
  };
  api.put(paths.stores, { metadata: { name: 'silver' }, spec: { uri: `nfs://${at.server}${at.path}` } });
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
  createTakingOver({ client: client(), clock: systemClock(), signal, store: 'silver', servers, patienceMs: 2_000 });

/** One run of the command, while Kubernetes does its part. */
async function run(deed: 'take' | 'undo' | 'finish', name = 'data'): Promise<void> {
  using one = taking();
  const { candidates } = await one.look();
  const candidate = candidates.find((found) => found.claim === `shop/${name}`);
  if (candidate === undefined) throw new Error('there is no such claim');
  const { promise: over, resolve } = Promise.withResolvers<void>();
  let isOver = false;
  const working = (deed === 'take' ? one.take(candidate, 'sv1-id') : one[deed](candidate)).finally(() => {
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
  await Promise.all([working, controlling]);
}

const found = async (servers?: readonly string[]): Promise<readonly Candidate[]> => {
  using one = taking(servers);
  return (await one.look()).candidates;
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
    expect(after?.spec.persistentVolumeReclaimPolicy).toBe('Delete');
    expect(after?.metadata.annotations).toEqual({ 'pv.kubernetes.io/provisioned-by': 'file.stowage.dev' });
    expect(after?.metadata.finalizers).toEqual(['stowage.dev/volume']);
    expect(await found()).toEqual([]);
    expect(destroyed).toEqual([]);
  });
});

describe('killed at any step', () => {
  /** How many changes each of them makes, and more. */
  const steps = Array.from({ length: 7 }, (_, at) => at);
  const killed = async (deed: 'take' | 'undo' | 'finish', after: number): Promise<void> => {
    lives = after;
    await run(deed).catch(() => undefined);
    lives = Number.POSITIVE_INFINITY;
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
    const from = provisioned('csi');
    await run('take');
    await killed('finish', after);
    if ((await found()).length > 0) await run('finish');
    expect(await volume(from)).toBeUndefined();
    expect((await volume(`${from}-stowage`))?.metadata.annotations).toEqual({
      'pv.kubernetes.io/provisioned-by': 'file.stowage.dev',
    });
    expect(destroyed).toEqual([]);
  });
});

describe('is left alone', () => {
  const pod = (phase: string): Thing => ({
    ...{ metadata: { name: 'web-0' }, status: { phase } },
    spec: { volumes: [{ name: 'data', persistentVolumeClaim: { claimName: 'data' } }] },
  });
  const refused = (deed: 'take' | 'undo' | 'finish') => run(deed).then(() => undefined, stowageError);

  test('what a pod uses, however late it comes', async () => {
    const from = provisioned('csi');
    api.put(paths.pods, pod('Running'));
    expect(await found()).toMatchObject([{ state: 'used', detail: expect.stringContaining('used by pod web-0') }]);
    expect((await refused('take'))?.message).toContain('used by pod web-0');
    expect((await claim())?.spec.volumeName).toBe(from);
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
    const { metadata, ...rest } = (await claim()) as PersistentVolumeClaim;
    const finalizers = ['kubernetes.io/pvc-protection', 'snapshot.storage.kubernetes.io/pvc-as-source-protection'];
    api.put(paths.claims, asIs({ ...rest, metadata: { ...metadata, finalizers } }));
    expect(await found()).toMatchObject([
      { state: 'impossible', detail: expect.stringContaining('is held by snapshot.') },
    ]);
  });

  test('what is on another server, unless it is said to be the same', async () => {
    const nfs = (one: PersistentVolume) => ({
      ...one,
      spec: { ...one.spec, nfs: { path: one.spec.nfs?.path, server: 'Filer.example.com' } },
    });
    provisioned('subdir', 'data', nfs);
    using one = taking();
    expect(await one.look()).toEqual({ candidates: [], otherServers: ['filer.example.com'] });
    expect(await found(['filer.example.com.'])).toMatchObject([{ state: 'ready' }]);
  });

  test('a claim that somebody made anew meanwhile has the volume that waits for it', async () => {
    const from = provisioned('subdir');
    // The policy, the PersistentVolume, and that the claim goes.
    lives = 3;
    await run('take').catch(() => undefined);
    lives = Number.POSITIVE_INFINITY;
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
  await expect(other.look()).rejects.toMatchObject({ code: 'not-found', reason: 'store-unknown' });
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
