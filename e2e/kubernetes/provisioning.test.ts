import { mkdirSync, mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import type { NodeName, VolumeId, VolumeName } from '#core/model.ts';
import { startGanesha } from '#testbed/ganesha.ts';
import { type Cluster, startCluster } from '#testbed/kubernetes/cluster.ts';
import { lacks } from '#testbed/lacks.ts';
import type { NfsServer } from '#testbed/nfs-server.ts';
import { aCall } from '#testing/core-calls.ts';
import { openNfs } from '#testing/nfs-store.ts';
import { freeLease, type RunningController, startController } from './controller-process.ts';

const { signal } = new AbortController();
const definition = join(import.meta.dirname, '..', '..', 'deploy', 'kubernetes', 'crds', 'stores.yaml');
const pollOptions = { interval: 100, timeout: 30_000 };

interface ObjectList {
  readonly items: readonly {
    readonly metadata: { readonly name: string; readonly uid: string };
    readonly spec: {
      readonly volumeName?: string;
      readonly claimRef?: { readonly uid: string };
      readonly csi?: { readonly volumeHandle: string };
      readonly capacity?: { readonly storage: string };
    };
    readonly status: { readonly phase?: string; readonly capacity?: { readonly storage: string } };
  }[];
}

describe.skipIf(lacks('root', 'mount', 'netns', 'firewall', 'kubernetes', 'busybox', 'ganesha'))(
  'in a real cluster,',
  () => {
    let cluster: Cluster;
    let nfs: NfsServer;
    let folder: string;
    let exported: string;
    /** An export that the server does not let this machine mount. */
    let denied: string;
    let running: RunningController[];

    beforeAll(async () => {
      folder = mkdtempSync(join(tmpdir(), 'stowage-e2e-claims-'));
      exported = join(folder, 'export');
      denied = join(folder, 'denied');
      for (const path of [exported, denied]) mkdirSync(path);
      const [open, closed] = [
        { path: exported, tag: '/export', squash: 'none' } as const,
        { path: denied, tag: '/denied', onlyFor: '192.0.2.1' } as const,
      ];
      nfs = await startGanesha({ exports: [open, closed], signal });
      cluster = await startCluster(signal, { nodes: 1 });
      await cluster.kubectl('apply', '--filename', definition);
      await cluster.kubectl('wait', '--for=condition=Established', 'crd/stores.stowage.dev', '--timeout=30s');
      await cluster.apply(store('silver', { storageClass: { reclaimPolicy: 'Delete' } }));
    });
    afterAll(async () => {
      await cluster[Symbol.asyncDispose]();
      await nfs[Symbol.asyncDispose]();
      rmSync(folder, { recursive: true, force: true });
    });
    beforeEach(() => {
      running = [];
    });
    afterEach(async () => {
      for (const controller of running) await controller.kill();
      await freeLease(cluster);
    });

    const options = (): object => ({ port: String(nfs.nfsPort), mountport: String(nfs.mountPort) });
    const store = (name: string, spec: object = {}): object => ({
      apiVersion: 'stowage.dev/v1',
      kind: 'Store',
      metadata: { name },
      spec: { uri: `nfs://${nfs.host}${exported}`, options: options(), ...spec },
    });
    const claim = (name: string, spec: object = {}): object => ({
      apiVersion: 'v1',
      kind: 'PersistentVolumeClaim',
      metadata: { name },
      spec: {
        accessModes: ['ReadWriteMany'],
        storageClassName: 'silver',
        resources: { requests: { storage: '1Gi' } },
        ...spec,
      },
    });
    const start = (name: string, ...more: readonly string[]): RunningController => {
      const controller = startController(cluster, join(folder, name), ...more);
      running.push(controller);
      return controller;
    };
    const list = async (kind: string): Promise<ObjectList['items']> =>
      (JSON.parse(await cluster.kubectl('get', kind, '--output=json')) as ObjectList).items;
    const phases = async (): Promise<readonly string[]> => (await list('pvc')).map(({ status }) => status.phase ?? '');
    /** Includes the volumes' records, but not the store's own files or files of a store check. */
    const entries = (): readonly string[] => readdirSync(exported).filter((name) => !name.startsWith('.stowage'));
    const volumesOnStore = (): readonly string[] => entries().filter((name) => !name.endsWith('.meta'));
    const findRemains = async () => ({ volumes: entries(), objects: [...(await list('pv')), ...(await list('pvc'))] });
    const nothing = { volumes: [], objects: [] };
    const eventMessages = async (name: string): Promise<string> =>
      await cluster.kubectl(
        'get',
        'events',
        `--field-selector=involvedObject.name=${name}`,
        '--output=jsonpath={.items[*].message}',
      );

    test('a store reports its state, and has a class', async () => {
      await start('one').untilLeading();
      await expect
        .poll(() => cluster.kubectl('get', 'store', 'silver', '--no-headers').catch(String), pollOptions)
        .toMatch(/^silver +nfs +True +\S+ +0 +\S+$/);
      await expect
        .poll(
          () => cluster.kubectl('get', 'sc', 'silver', '--output=jsonpath={.provisioner}').catch(String),
          pollOptions,
        )
        .toBe('file.stowage.dev');
    });

    test.each<[string, (about: { readonly uri: string }) => object, string]>([
      ['of another scheme', () => ({ uri: 'ftp://server/x' }), 'a store is one of local://, nfs://'],
      ['with an unknown option', () => ({ options: { colour: 'red' } }), 'the options of a store of nfs:// are'],
      ['with options in its URI', ({ uri }) => ({ uri: `${uri}?port=1` }), 'options are given in spec.options'],
      ['with a password', () => ({ uri: 'nfs://me:secret@server/x' }), 'must not contain a user or password'],
      ['without a URI', () => ({ uri: undefined }), 'missing required field "uri"'],
    ])('a store %s is refused', async (_, spec, why) => {
      const uri = `nfs://${nfs.host}${exported}`;
      await expect(cluster.apply(store('wrong', spec({ uri })))).rejects.toThrow(why);
    });

    test('a claim of a store whose server denies access gets an Event that reports a permission problem and says whom to ask', async () => {
      await cluster.apply(store('denied', { uri: `nfs://${nfs.host}${denied}`, storageClass: {} }));
      onTestFinished(async () => void (await cluster.kubectl('delete', 'store', 'denied')));
      await start('one').untilLeading();
      const reasons =
        '{.status.conditions[?(@.type=="Ready")].reason} {.status.conditions[?(@.type=="Reachable")].reason}';
      await expect
        .poll(() => cluster.kubectl('get', 'store', 'denied', `--output=jsonpath=${reasons}`), pollOptions)
        .toBe('Denied Denied');
      await cluster.apply(claim('refused', { storageClassName: 'denied' }));
      onTestFinished(async () => void (await cluster.kubectl('delete', 'pvc', 'refused')));
      await expect
        .poll(() => eventMessages('refused'), pollOptions)
        .toContain(
          "the server of store 'denied' does not export the store's directory to this host: most likely it does not allow this host, which is a permission problem, not a network problem. Ask the administrator to grant Stowage access; the reason is found by: kubectl get stores, and the log of the controller.",
        );
      expect(await eventMessages('refused')).not.toContain(nfs.host);
    });

    test('the location of a store cannot be changed', async () => {
      await expect(cluster.apply(store('silver', { uri: 'nfs://elsewhere/x' }))).rejects.toThrow(
        'a store cannot be moved: its volumes are where they are',
      );
    });

    test('a claim is bound, grows, and leaves nothing behind', async () => {
      const controller = start('one', '--health', '127.0.0.1:0');
      await controller.untilLeading();
      await cluster.apply(claim('cart'));
      await cluster.kubectl('wait', '--for=jsonpath={.status.phase}=Bound', 'pvc/cart', '--timeout=30s');
      const [made] = await list('pv');
      expect(volumesOnStore()).toEqual([made?.metadata.name]);
      expect(await eventMessages('cart')).toContain(`Created volume 'silver/${made?.metadata.name}'`);
      const address = /health at (\S+)/.exec(controller.output())?.[1] ?? '';
      for (const path of ['healthz', 'readyz']) expect((await fetch(`${address}/${path}`)).status).toBe(200);
      const more = JSON.stringify({ spec: { resources: { requests: { storage: '2Gi' } } } });
      await cluster.kubectl('patch', 'pvc', 'cart', '--patch', more);
      const sizes = async () =>
        [...(await list('pvc')), ...(await list('pv'))].map((object) => [object.spec.capacity, object.status.capacity]);
      await expect.poll(sizes, pollOptions).toEqual([
        [undefined, { storage: '2Gi' }],
        [{ storage: '2Gi' }, undefined],
      ]);
      await cluster.kubectl('delete', 'pvc', 'cart', '--timeout=30s');
      await expect.poll(findRemains, pollOptions).toEqual(nothing);
    });

    test('a claim of a WaitForFirstConsumer class is bound when a pod uses it, and a PV with Retain keeps its data', async () => {
      await start('one').untilLeading();
      await cluster.apply(
        {
          apiVersion: 'storage.k8s.io/v1',
          kind: 'StorageClass',
          metadata: { name: 'patient' },
          provisioner: 'file.stowage.dev',
          reclaimPolicy: 'Retain',
          volumeBindingMode: 'WaitForFirstConsumer',
          parameters: { store: 'silver', nameTemplate: '{namespace}-{name}' },
        },
        claim('late', { storageClassName: 'patient' }),
      );
      await expect.poll(() => eventMessages('late'), pollOptions).toContain('waiting for first consumer');
      expect(volumesOnStore()).toEqual([]);
      await cluster.apply({
        apiVersion: 'v1',
        kind: 'Pod',
        metadata: { name: 'first' },
        spec: {
          terminationGracePeriodSeconds: 0,
          containers: [
            { name: 'main', image: 'none', imagePullPolicy: 'Never', volumeMounts: [{ name: 'v', mountPath: '/v' }] },
          ],
          volumes: [{ name: 'v', persistentVolumeClaim: { claimName: 'late' } }],
        },
      });
      await cluster.kubectl('wait', '--for=jsonpath={.status.phase}=Bound', 'pvc/late', '--timeout=30s');
      expect(volumesOnStore()).toEqual(['default-late']);
      await cluster.kubectl('delete', 'pod', 'first', '--force');
      await cluster.kubectl('delete', 'pvc', 'late', '--timeout=30s');
      await expect
        .poll(async () => (await list('pv')).map(({ status }) => status.phase), pollOptions)
        .toEqual(['Released']);
      await cluster.kubectl('delete', 'pv', '--all', '--timeout=30s');
      expect(await findRemains()).toEqual({ volumes: ['default-late', 'default-late.meta'], objects: [] });
      for (const name of entries()) rmSync(join(exported, name), { recursive: true });
    });

    test('a claim of a class with unknown parameters gets an Event, waits and leaves nothing behind', async () => {
      await start('one').untilLeading();
      await cluster.apply(
        {
          apiVersion: 'storage.k8s.io/v1',
          kind: 'StorageClass',
          metadata: { name: 'wrong' },
          provisioner: 'file.stowage.dev',
          parameters: { store: 'silver', colour: 'red' },
        },
        claim('hopeless', { storageClassName: 'wrong' }),
      );
      await expect
        .poll(() => eventMessages('hopeless'), pollOptions)
        .toContain("class 'wrong' has the unknown parameter 'colour'. Allowed are: store, nameTemplate, enforce.");
      expect(await phases()).toEqual(['Pending']);
      expect([volumesOnStore(), await list('pv')]).toEqual([[], []]);
      await cluster.kubectl('delete', 'pvc', 'hopeless', '--timeout=30s');
      await expect.poll(findRemains, pollOptions).toEqual(nothing);
    });

    test('a volume that a node uses outlives its claim until the node has the out-of-service taint', async () => {
      await start('one').untilLeading();
      await cluster.apply(claim('used'));
      await cluster.kubectl('wait', '--for=jsonpath={.status.phase}=Bound', 'pvc/used', '--timeout=30s');
      const [made] = await list('pv');
      const [name = ''] = volumesOnStore();
      // Opens the store like an agent on that node.
      const { host, nfsPort, mountPort } = nfs;
      const openOptions = { port: String(nfsPort), mountport: String(mountPort) };
      const opened = await openNfs({ uri: `nfs://${host}${exported}`, options: openOptions, instance: 'host-1' });
      onTestFinished(() => opened.close());
      const volume = { id: made?.spec.csi?.volumeHandle as VolumeId, name: name as VolumeName };
      const users = [{ kind: 'pod', name: 'default/user' }] as const;
      await opened.uses?.put(volume, { host: 'host-1', node: 'node-1' as NodeName, users }, aCall());
      await cluster.kubectl('delete', 'pvc', 'used', '--timeout=30s');
      await expect
        .poll(() => eventMessages(made?.metadata.name ?? ''), pollOptions)
        .toContain('the volume is still in use on a node');
      expect(volumesOnStore()).toEqual([name]);
      await cluster.kubectl('taint', 'node', 'node-1', 'node.kubernetes.io/out-of-service=nodeshutdown:NoExecute');
      await expect.poll(findRemains, { ...pollOptions, timeout: 45_000 }).toEqual(nothing);
      await cluster.kubectl('taint', 'node', 'node-1', 'node.kubernetes.io/out-of-service-');
    }, 90_000);
  },
);
