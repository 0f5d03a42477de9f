import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { beforeEach, expect, onTestFinished } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { type Caches, createCaches } from '#controllers/caches.ts';
import type { ControllerContext } from '#controllers/controller-context.ts';
import type { Controller } from '#controllers/machinery/controller.ts';
import { createEvents } from '#controllers/machinery/events.ts';
import { createNodeStores, type NodeStores } from '#controllers/node-stores.ts';
import { createCoreProvisioner, createWhyNotOpen } from '#controllers/provisioner.ts';
import type { Core, WholeCore } from '#core/core.ts';
import type { Volume } from '#core/model.ts';
import type { StoreKind } from '#core/ports.ts';
import { createLocalStoreKind } from '#stores/local/kind.ts';
import { createNfsStoreKind } from '#stores/nfs/kind.ts';
import { createKubeClient } from '#wire/kube/client.ts';
import { events, type Resource } from '#wire/kube/resources.ts';
import type { KubeObject } from '#wire/kube/types.ts';
import { aCall } from './core-calls.ts';
import { createFakeAgents, type FakeAgents } from './fakes/agents.ts';
import { type GatedKind, gated } from './fakes/gated-store.ts';
import { type FakeKubeApi, startKubeApi } from './fakes/kube-api.ts';
import type { AnyObject } from './fakes/kube-objects.ts';
import { connectToDisk } from './fakes/nfs-on-disk.ts';
import { startServer } from './server.ts';

export type TestControllerParts = ControllerContext & {
  readonly core: Core;
  readonly kinds: ReadonlyMap<string, StoreKind>;
  readonly agents: FakeAgents;
  readonly nodeStores: NodeStores;
  readonly namespace: string;
  readonly cluster: string;
};

/** A new API server in memory for each test, and a core with a shared store `silver`. */
export interface ControllerFixture {
  api: FakeKubeApi;
  parts: TestControllerParts;
  core: WholeCore;
  nfs: GatedKind;
  /** The folder of `silver`. */
  silverFolder: string;
  /** A new directory for a store, as a URI. */
  newStoreUri(name: string): string;
  caches: Caches;
  /** Fake agents. None is connected at first. */
  agents: FakeAgents;
  /** Runs the controller and its dependencies until the test ends. */
  start<C extends Controller>(make: (parts: TestControllerParts) => C, more?: Partial<TestControllerParts>): C;
  /** Makes the leader step down, which ends its controllers. Controllers that start later belong to the next leader. */
  stepDown(): Promise<void>;
  list<T extends KubeObject>(resource: Resource<T>): Promise<readonly T[]>;
  volumes(store?: string): Promise<readonly Volume[]>;
  /** The notes of all Events with that reason. */
  notes(reason: string): Promise<readonly string[]>;
  /** All requests to the API server that changed something. */
  changes(): readonly string[];
}

export const paths = {
  claims: '/api/v1/namespaces/shop/persistentvolumeclaims',
  volumes: '/api/v1/persistentvolumes',
  classes: '/apis/storage.k8s.io/v1/storageclasses',
  stores: '/apis/stowage.dev/v1/stores',
  nodes: '/api/v1/nodes',
} as const;

export function controllerFixture(): ControllerFixture {
  const it = {} as ControllerFixture;
  beforeEach(async () => {
    const clock = systemClock();
    const folder = mkdtempSync(join(tmpdir(), 'stowage-controlled-'));
    onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
    it.silverFolder = mkdtempSync(join(folder, 'silver-'));
    it.newStoreUri = (name) => `nfs://server${mkdtempSync(join(folder, `${name}-`))}`;
    it.nfs = gated(createNfsStoreKind(clock, connectToDisk(folder), () => connectToDisk(folder)));
    const all = [createLocalStoreKind(), it.nfs];
    const server = await startServer({ listen: 'none', kinds: all });
    onTestFinished(() => server[Symbol.asyncDispose]());
    it.core = server.core;
    await it.core.stores.add('silver', `nfs://server${it.silverFolder}`, aCall());
    it.api = await startKubeApi();
    onTestFinished(() => it.api[Symbol.asyncDispose]());
    const client = createKubeClient({ access: it.api.access, clock, userAgent: 'test' });
    onTestFinished(() => client[Symbol.dispose]());
    it.caches = createCaches(client, clock);
    it.agents = createFakeAgents();
    const eventRecorder = createEvents({ client, clock, controller: 'test', instance: 'test' });
    const kinds = new Map(all.map((kind) => [kind.scheme, kind]));
    const file = createCoreProvisioner(it.core, createWhyNotOpen(it.caches.stores, kinds));
    it.parts = {
      client,
      clock,
      caches: it.caches,
      events: eventRecorder,
      core: it.core,
      kinds,
      provisioners: new Map([[file.driver, file]]),
      agents: it.agents,
      nodeStores: createNodeStores({ agents: it.agents, clock, caches: it.caches, kinds }),
      namespace: 'stowage-system',
      cluster: it.core.instance,
    };
    const ending = new AbortController();
    const scope = { ...aCall(), signal: ending.signal };
    const running: Promise<void>[] = [];
    onTestFinished(async () => {
      ending.abort();
      await Promise.all(running);
    });
    let isFed = false;
    let term = { stop: new AbortController(), controllers: [] as Promise<void>[] };
    it.stepDown = async () => {
      const { stop, controllers } = term;
      term = { stop: new AbortController(), controllers: [] };
      stop.abort();
      await Promise.all(controllers);
    };
    it.start = (make, more = {}) => {
      const controller = make({ ...it.parts, ...more });
      if (!isFed) running.push(...Object.values(it.caches).map((cache) => cache.run(scope)), eventRecorder.run(scope));
      isFed = true;
      const ran = controller.run(scope, AbortSignal.any([ending.signal, term.stop.signal]));
      running.push(ran);
      term.controllers.push(ran);
      return controller;
    };
    it.list = async (resource) => {
      const pages = await Array.fromAsync(client.list(resource, {}, ending.signal));
      return pages.flatMap(({ items }) => items);
    };
    it.volumes = async (store = 'silver') => {
      const query = { stores: [store], labels: {}, contains: undefined, after: undefined, limit: 1000 };
      return (await it.core.catalogue.page(query, aCall())).volumes;
    };
    it.notes = async (reason) => (await it.list(events)).filter((one) => one.reason === reason).map(({ note }) => note);
    it.changes = () => it.api.requests.filter((one) => !one.startsWith('GET'));
  });
  return it;
}

export const eventually = (look: () => unknown): ReturnType<typeof expect.poll> =>
  expect.poll(() => look(), { interval: 5, timeout: 20_000 });

const uid = (name: string): string => `uid-of-${name}`;

/** A claim of 1 GiB of the class `fast`. */
export const aClaim = (name: string, spec: object = {}, metadata: object = {}): AnyObject => ({
  metadata: { name, namespace: 'shop', uid: uid(name), ...metadata },
  spec: {
    accessModes: ['ReadWriteOnce'],
    storageClassName: 'fast',
    volumeMode: 'Filesystem',
    resources: { requests: { storage: '1Gi' } },
    ...spec,
  },
  status: { phase: 'Pending' },
});

export const aClass = (name = 'fast', more: object = {}): AnyObject => ({
  metadata: { name },
  provisioner: 'file.stowage.dev',
  parameters: { store: 'silver' },
  reclaimPolicy: 'Delete',
  volumeBindingMode: 'Immediate',
  ...more,
});
