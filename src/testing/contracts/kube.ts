import { randomUUID } from 'node:crypto';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { aborted } from '#base/aborted.ts';
import { systemClock } from '#base/clock.ts';
import { type Scope, silentLog } from '#base/log.ts';
import { createCache, identityOf } from '#controllers/machinery/cache.ts';
import { createController } from '#controllers/machinery/controller.ts';
import { createEvents } from '#controllers/machinery/events.ts';
import { createLeader } from '#controllers/machinery/leader.ts';
import { done } from '#controllers/machinery/outcome.ts';
import { createFakeClock } from '#testing/fakes/clock.ts';
import type { KubeAccess } from '#wire/kube/access.ts';
import { createKubeClient, type KubeClient } from '#wire/kube/client.ts';
import { KubeError } from '#wire/kube/errors.ts';
import { claims, events as eventResource, leases, persistentVolumes } from '#wire/kube/resources.ts';
import type { KubeEvent, Lease, PersistentVolume, PersistentVolumeClaim } from '#wire/kube/types.ts';

/** An API server that tests may change. */
export interface KubeSubject extends AsyncDisposable {
  readonly access: KubeAccess;
  /** Makes the API server unreachable until `up`. */
  down(): Promise<void>;
  up(): Promise<void>;
  /** Closes all watches and other connections. */
  cutWatches(): Promise<void>;
  /** Compacts the history: watches from earlier resource versions expire. */
  forget(): Promise<void>;
}

const wait = { timeout: 60_000 };

async function failure(work: Promise<unknown>): Promise<KubeError> {
  const thrown: unknown = await work.then(
    () => 'it did not fail',
    (error: unknown) => error,
  );
  if (!(thrown instanceof KubeError)) throw new Error('not a KubeError', { cause: thrown });
  return thrown;
}

/** The behaviour of an API server that the client and the controller machinery rely on. */
export function kubeContract(name: string, start: () => Promise<KubeSubject>): void {
  describe(name, () => {
    let subject: KubeSubject;
    let client: KubeClient;
    let end: AbortController;
    let scope: Scope;
    let running: Promise<unknown>[];
    /** A prefix for the names of objects, so that no test finds the objects of another test. */
    let prefix: string;
    const clock = systemClock();

    beforeAll(async () => {
      subject = await start();
    });
    afterAll(() => subject[Symbol.asyncDispose]());
    beforeEach(() => {
      client = createKubeClient({ access: subject.access, clock, userAgent: 'stowage/test' });
      end = new AbortController();
      scope = { signal: end.signal, log: silentLog() };
      running = [];
      prefix = `t${randomUUID().slice(0, 8)}`;
    });
    afterEach(async () => {
      end.abort();
      await Promise.all(running);
      client[Symbol.dispose]();
    });

    const lease = (suffix = 'l', spec: Lease['spec'] = {}): Lease => ({
      metadata: { namespace: 'default', name: `${prefix}-${suffix}`, labels: { prefix } },
      spec,
    });
    const at = (suffix = 'l') => ({ namespace: 'default', name: `${prefix}-${suffix}` });
    const mine = () => ({ labelSelector: `prefix=${prefix}`, namespace: 'default' });

    describe('calls', () => {
      test('an object that does not exist is reported as NotFound', async () => {
        expect(await failure(client.get(leases, at(), end.signal))).toMatchObject({
          failure: 'refused',
          status: 404,
          reason: 'NotFound',
        });
        expect(await failure(client.delete(leases, at(), {}, end.signal))).toMatchObject({ reason: 'NotFound' });
      });

      test('a name cannot be created twice', async () => {
        const made = await client.create(leases, lease(), end.signal);
        expect(made.metadata.uid).toMatch(/./);
        expect(await failure(client.create(leases, lease(), end.signal))).toMatchObject({
          status: 409,
          reason: 'AlreadyExists',
        });
      });

      test('a replace needs the latest resource version', async () => {
        const first = await client.create(leases, lease(), end.signal);
        const second = await client.update(leases, { ...first, spec: { holderIdentity: 'a' } }, end.signal);
        expect(second.spec?.holderIdentity).toBe('a');
        expect(await failure(client.update(leases, first, end.signal))).toMatchObject({ reason: 'Conflict' });
      });

      test('patches of all kinds are applied', async () => {
        await client.create(leases, lease('l', { holderIdentity: 'a' }), end.signal);
        const merge = { kind: 'merge', body: { spec: { holderIdentity: 'b' } } } as const;
        expect((await client.patch(leases, at(), merge, end.signal)).spec?.holderIdentity).toBe('b');
        const json = [{ op: 'replace', path: '/spec/holderIdentity', value: 'c' }];
        const third = await client.patch(leases, at(), { kind: 'json', body: json }, end.signal);
        expect(third.spec?.holderIdentity).toBe('c');
        const apply = { kind: 'apply', manager: 'test', force: true } as const;
        const body = { metadata: { name: at().name }, spec: { holderIdentity: 'd' } };
        const fourth = await client.patch(leases, at(), { ...apply, body }, end.signal);
        expect(fourth.spec?.holderIdentity).toBe('d');
        const other = { metadata: { name: at('new').name }, spec: { holderIdentity: 'e' } };
        await client.patch(leases, at('new'), { ...apply, body: other }, end.signal);
        expect((await client.get(leases, at('new'), end.signal)).spec?.holderIdentity).toBe('e');
      });

      test('a delete with a uid deletes only that object', async () => {
        const { metadata } = await client.create(leases, lease(), end.signal);
        const other = { uid: randomUUID() };
        expect(await failure(client.delete(leases, at(), other, end.signal))).toMatchObject({ reason: 'Conflict' });
        await client.delete(leases, at(), { uid: metadata.uid }, end.signal);
        expect(await failure(client.get(leases, at(), end.signal))).toMatchObject({ reason: 'NotFound' });
      });
    });

    describe('lists and watches', () => {
      test('a paged list has every object once, at one point in time', async () => {
        for (let i = 0; i < 7; i++) await client.create(leases, lease(String(i)), end.signal);
        const sizes: number[] = [];
        const versions = new Set<string>();
        const names = new Set<string>();
        for await (const page of client.list(leases, { namespace: 'default', limit: 3 }, end.signal)) {
          sizes.push(page.items.length);
          versions.add(page.resourceVersion);
          for (const { metadata } of page.items) names.add(metadata.name ?? '');
        }
        expect(sizes[0]).toBe(3);
        expect(sizes.length).toBeGreaterThanOrEqual(3);
        expect(versions.size).toBe(1);
        for (let i = 0; i < 7; i++) expect(names).toContain(`${prefix}-${i}`);
      });

      test('a watch sees every change after the list, however often it is disconnected', async () => {
        let resourceVersion = '';
        for await (const page of client.list(leases, mine(), end.signal)) ({ resourceVersion } = page);
        const seen: string[] = [];
        const follow = async (): Promise<void> => {
          for await (const change of client.watch(leases, { namespace: 'default', resourceVersion }, end.signal)) {
            const of = change.kind === 'bookmark' ? '' : (change.object.metadata.name ?? '');
            if (of.startsWith(prefix)) seen.push(`${change.kind} ${of.slice(prefix.length + 1)}`);
          }
        };
        running.push(follow().catch(() => undefined));
        const { metadata } = await client.create(leases, lease('a'), end.signal);
        await expect.poll(() => seen, wait).toEqual(['added a']);
        await subject.cutWatches();
        // A client does not retry a change, so this one must not send the change on a connection that was cut.
        using other = createKubeClient({ access: subject.access, clock, userAgent: 'stowage/test' });
        await other.patch(leases, at('a'), { kind: 'merge', body: { spec: { holderIdentity: 'x' } } }, end.signal);
        await other.delete(leases, at('a'), { uid: metadata.uid }, end.signal);
        await other.create(leases, lease('b'), end.signal);
        await expect.poll(() => seen, wait).toEqual(['added a', 'modified a', 'deleted a', 'added b']);
      });

      test('a watch from an expired version ends: a new list is needed', async () => {
        const { resourceVersion = '' } = (await client.create(leases, lease('old'), end.signal)).metadata;
        await client.create(leases, lease('new'), end.signal);
        await subject.forget();
        const seen: unknown[] = [];
        for await (const change of client.watch(leases, { resourceVersion }, end.signal)) seen.push(change);
        expect(seen).toEqual([]);
      });
    });

    test('a trimmed cache catches up after an outage of the API server, and so does its controller', async () => {
      const volume = (suffix: string): PersistentVolume => ({
        metadata: { name: `${prefix}-${suffix}`, labels: { prefix } },
        spec: {
          capacity: { storage: '1Gi' },
          accessModes: ['ReadWriteOnce'],
          storageClassName: prefix,
          persistentVolumeReclaimPolicy: 'Retain',
          csi: { driver: 'test.stowage.dev', volumeHandle: suffix },
        },
      });
      const handleOf = (full: PersistentVolume) => full.spec.csi?.volumeHandle ?? '';
      const cache = createCache({
        client,
        resource: persistentVolumes,
        select: { labelSelector: `prefix=${prefix}` },
        clock,
        trim: (full) => ({ metadata: identityOf(full), handle: handleOf(full) }),
        indexes: { handle: ({ handle }) => [handle] },
      });
      const looked: string[] = [];
      const controller = createController({
        name: 'test',
        clock,
        reconcile: (key) => {
          looked.push(`${cache.get(key) === undefined ? 'gone' : 'there'} ${key.slice(prefix.length + 1)}`);
          return Promise.resolve(done);
        },
      });
      controller.follow(cache);
      await client.create(persistentVolumes, volume('a'), end.signal);
      running.push(cache.run(scope), controller.run(scope, end.signal));
      await expect.poll(() => looked, wait).toContain('there a');
      expect(cache.byIndex('handle', 'a').map((one) => Object.keys(one))).toEqual([['metadata', 'handle']]);
      await subject.down();
      expect(cache.get(`${prefix}-a`)?.handle).toBe('a');
      await subject.up();
      await expect
        .poll(
          () =>
            client.create(persistentVolumes, volume('b'), end.signal).then(
              () => true,
              () => false,
            ),
          wait,
        )
        .toBe(true);
      await expect.poll(() => looked, wait).toContain('there b');
      for (const suffix of ['a', 'b'])
        await client.delete(persistentVolumes, { name: `${prefix}-${suffix}` }, {}, end.signal);
      await expect.poll(() => looked, wait).toEqual(expect.arrayContaining(['gone a', 'gone b']));
      expect(cache.size).toBe(0);
    });

    test('one of two candidates leads, and the other one takes over when the first has ended', async () => {
      const stops = [new AbortController(), new AbortController()];
      const leads: string[] = [];
      const overs = stops.map((stop, i) => {
        const identity = `${prefix}-${i}`;
        const leader = createLeader({ client, clock, namespace: 'default', name: prefix, identity });
        const work = async ({ signal }: Scope): Promise<void> => {
          leads.push(identity);
          await aborted(AbortSignal.any([signal, stop.signal]));
        };
        return leader.run(work, scope, stop.signal);
      });
      running.push(...overs);
      await expect.poll(() => leads.length, wait).toBe(1);
      const first = Number(leads[0]?.at(-1));
      stops[first]?.abort();
      await overs[first];
      await expect.poll(() => leads, wait).toEqual([`${prefix}-${first}`, `${prefix}-${1 - first}`]);
      stops[1 - first]?.abort();
      await overs[1 - first];
      expect((await client.get(leases, { namespace: 'default', name: prefix }, end.signal)).spec).toMatchObject({
        leaseTransitions: 1,
      });
    });

    test('Events with the longest possible note are accepted, and are counted when they repeat', async () => {
      const claim: PersistentVolumeClaim = {
        metadata: { namespace: 'default', name: `${prefix}-c` },
        spec: {
          storageClassName: prefix,
          accessModes: ['ReadWriteOnce'],
          resources: { requests: { storage: '1Gi' } },
        },
      };
      const { metadata } = await client.create(claims, claim, end.signal);
      const time = createFakeClock(Date.now());
      const events = createEvents({ client, clock: time, controller: 'stowage.dev/test', instance: prefix });
      running.push(events.run(scope));
      const { name: object = '', uid = '' } = metadata;
      const regarding = { apiVersion: 'v1', kind: 'PersistentVolumeClaim', namespace: 'default', name: object, uid };
      const about = { regarding, type: 'Warning', reason: 'ProvisioningFailed', action: 'Provision' } as const;
      const written = async (): Promise<readonly KubeEvent[]> => {
        const all: KubeEvent[] = [];
        // Other programs of the cluster write Events, too.
        for await (const page of client.list(eventResource, { namespace: 'default' }, end.signal))
          all.push(
            ...page.items.filter(
              (one) => one.regarding.name === object && one.reportingController === 'stowage.dev/test',
            ),
          );
        return all;
      };
      events.report({ ...about, note: 'é'.repeat(5_000) });
      await expect.poll(() => events.waiting, wait).toBe(0);
      time.advance(300_000);
      events.report({ ...about, note: 'é'.repeat(5_000) });
      await expect.poll(() => events.waiting, wait).toBe(0);
      const all = await written();
      expect(all.map(({ series, reportingInstance }) => [series?.count, reportingInstance])).toEqual([[2, prefix]]);
      expect(events.dropped).toBe(0);
    });
  });
}
