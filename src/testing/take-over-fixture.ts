import { beforeEach, onTestFinished } from 'vitest';
import { createTakeOver } from '#app/take-over/take-over.ts';
import { systemClock } from '#base/clock.ts';
import type { TakeOverAction, TakeOverCandidate } from '#cli/take-over-service.ts';
import { stowageError } from '#core/errors.ts';
import { createKubeClient } from '#wire/kube/client.ts';
import { reasonOf } from '#wire/kube/errors.ts';
import { claims, persistentVolumes, type Resource } from '#wire/kube/resources.ts';
import type { KubeObject, PersistentVolume, PersistentVolumeClaim } from '#wire/kube/types.ts';
import { type FakeKubeApi, startKubeApi } from './fakes/kube-api.ts';
import type { AnyObject } from './fakes/kube-objects.ts';
import { type ForeignDriver, foreignClaim, foreignClass, foreignVolume } from './foreign-volumes.ts';

export const foreignExport = { server: '10.10.2.4', path: '/export/silver' };
export const paths = {
  claims: '/api/v1/namespaces/shop/persistentvolumeclaims',
  volumes: '/api/v1/persistentvolumes',
  pods: '/api/v1/namespaces/shop/pods',
  stores: '/apis/stowage.dev/v1/stores',
  classes: '/apis/storage.k8s.io/v1/storageclasses',
};
const { signal } = new AbortController();
export const administrator = 'administrator';
export const defaultTimeoutMs = 10_000;
export const asAnyObject = (object: object): AnyObject => object as AnyObject;

export const pod = (phase: string): AnyObject => ({
  metadata: { name: 'web-0' },
  status: { phase },
  spec: { volumes: [{ name: 'data', persistentVolumeClaim: { claimName: 'data' } }] },
});

interface RunOptions {
  readonly name?: string;
  readonly id?: string;
  /** The identity that the store reports. */
  readonly identity?: string;
}

/** For each test: an API server in memory with a store and the classes of other drivers, and an administrator who runs the command. */
export function takeOverFixture() {
  let api: FakeKubeApi;
  /** The number of changes that the API server accepts before the command counts as killed. */
  let changesLeft: number;
  /** PersistentVolumes that were released with the policy Delete, so their data are lost. */
  let destroyed: string[];
  let deadlineMs: number;

  beforeEach(async () => {
    api = await startKubeApi();
    onTestFinished(() => api[Symbol.asyncDispose]());
    changesLeft = Number.POSITIVE_INFINITY;
    destroyed = [];
    deadlineMs = defaultTimeoutMs;
    api.intercept = ({ method = '', headers }, response) => {
      if (method !== 'GET' && headers['user-agent'] === administrator && changesLeft-- <= 0) response.destroy();
      return response.destroyed;
    };
    putStore();
    for (const kind of ['csi', 'subdir'] as const)
      api.put(paths.classes, asAnyObject(foreignClass(kind, foreignExport)));
  });

  const putStore = (options?: object, query = ''): void =>
    void api.put(paths.stores, {
      metadata: { name: 'silver' },
      spec: { uri: `nfs://${foreignExport.server}${foreignExport.path}${query}`, options },
    });

  const client = (userAgent = administrator) =>
    createKubeClient({ access: api.access, clock: systemClock(), userAgent });
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

  /** Patches with the resourceVersion that was read, as Kubernetes' own components do. */
  async function patched<T extends KubeObject>(resource: Resource<T>, { metadata }: T, change: object): Promise<void> {
    using kubernetes = client('kubernetes');
    const { namespace, name, uid, resourceVersion } = metadata;
    const body = { ...change, metadata: { uid, resourceVersion } };
    await kubernetes.patch(resource, { namespace, name }, { kind: 'merge', body }, signal).catch((thrown: unknown) => {
      if (!['Conflict', 'NotFound'].includes(reasonOf(thrown))) throw thrown;
    });
  }

  /** Does the part of Kubernetes' PersistentVolume controller that matters here. */
  async function reconcile(): Promise<void> {
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

  /** Creates a claim with a volume of another driver. Returns the name of the PersistentVolume. */
  function provisioned(
    kind: ForeignDriver,
    name = 'data',
    change: (volume: PersistentVolume) => object = (one) => one,
  ): string {
    const made = api.put(
      paths.claims,
      asAnyObject(foreignClaim(kind, 'shop', name)),
    ) as unknown as PersistentVolumeClaim;
    const given = foreignVolume(kind, made, foreignExport);
    const called = given.metadata.name ?? '';
    const annotations = { ...made.metadata.annotations, 'pv.kubernetes.io/bind-completed': 'yes' };
    const bound = { ...made, metadata: { ...made.metadata, annotations }, spec: { ...made.spec, volumeName: called } };
    api.put(paths.claims, asAnyObject({ ...bound, status: { phase: 'Bound' } }));
    // This fixture removes no finalizers.
    api.put(
      paths.volumes,
      asAnyObject({
        ...change({ ...given, metadata: { ...given.metadata, finalizers: [] } }),
        status: { phase: 'Bound' },
      }),
    );
    return called;
  }

  const createCommand = (servers: readonly string[] = [], store = 'silver') =>
    createTakeOver({ client: client(), clock: systemClock(), signal, store, servers, deadlineMs });

  /** Runs the command once, while Kubernetes' controller works. */
  async function run(
    deed: TakeOverAction,
    { name = 'data', id = 'sv1-id', identity }: RunOptions = {},
  ): Promise<string> {
    using one = createCommand();
    const { candidates } = await one.findCandidates(deed);
    const candidate = candidates.find((found) => found.claim === `shop/${name}`);
    if (candidate === undefined) throw new Error('there is no such claim');
    const { promise: over, resolve } = Promise.withResolvers<void>();
    let isOver = false;
    const work = (): Promise<unknown> =>
      deed === 'take' ? one.take(candidate, id, identity) : one[deed](candidate, identity);
    const working = work().finally(() => {
      isOver = true;
      resolve();
    });
    const controlling = (async () => {
      while (!isOver) {
        await reconcile();
        await Promise.race([over, systemClock().sleep(5, signal)]);
      }
      await reconcile();
    })();
    const [said] = await Promise.all([working, controlling]);
    return typeof said === 'string' ? said : '';
  }

  /** Runs the command and kills it after that many changes. */
  async function runAndKill(deed: TakeOverAction, after: number): Promise<void> {
    changesLeft = after;
    deadlineMs = 100;
    await run(deed).catch(() => undefined);
    changesLeft = Number.POSITIVE_INFINITY;
    deadlineMs = defaultTimeoutMs;
  }

  const refused = (deed: TakeOverAction, which?: RunOptions) => run(deed, which).then(() => undefined, stowageError);
  const setFinalizers = async (...finalizers: readonly string[]): Promise<void> => {
    const { metadata, ...rest } = (await claim()) as PersistentVolumeClaim;
    api.put(paths.claims, asAnyObject({ ...rest, metadata: { ...metadata, finalizers } }));
  };

  const listCandidates = async (servers?: readonly string[]): Promise<readonly TakeOverCandidate[]> => {
    using one = createCommand(servers);
    return (await one.findCandidates('take')).candidates;
  };

  return {
    putStore,
    list,
    volume,
    claim,
    reconcile,
    provisioned,
    createCommand,
    run,
    runAndKill,
    refused,
    setFinalizers,
    listCandidates,
    get api() {
      return api;
    },
    get destroyed() {
      return destroyed;
    },
    /** Sets how long the command waits for Kubernetes. */
    waitFor: (ms: number): void => {
      deadlineMs = ms;
    },
  };
}
