import { mkdirSync, mkdtempSync, readdirSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { kubeAccess } from '#app/kube-access.ts';
import { systemClock } from '#base/clock.ts';
import { repository } from '#testbed/component.ts';
import { startGanesha } from '#testbed/ganesha.ts';
import { type Cluster, startCluster } from '#testbed/kubernetes/cluster.ts';
import type { NfsServer } from '#testbed/nfs-server.ts';
import { createKubeClient, type KubeClient } from '#wire/kube/client.ts';
import { reasonOf } from '#wire/kube/errors.ts';
import { claims, persistentVolumes, type Resource } from '#wire/kube/resources.ts';
import type { KubeObject, PersistentVolume, PersistentVolumeClaim } from '#wire/kube/types.ts';
import { freeLease, type RunningController, startController } from './controller-process.ts';

const namespace = 'default';
const maxInFlight = 32;

/** A cluster, an NFS server, and a store `silver` on it with its class. */
export interface ControllerFaultsFixture extends AsyncDisposable {
  readonly cluster: Cluster;
  readonly nfs: NfsServer;
  start(...more: readonly string[]): RunningController;
  /**
   * Kills all running controllers and frees their Lease, so that the next controller does not wait until it expires.
   */
  killAll(): Promise<void>;
  create(names: readonly string[]): Promise<void>;
  /** Deletes the claims. Returns before they are gone. */
  remove(names: readonly string[]): Promise<void>;
  claims(): Promise<readonly PersistentVolumeClaim[]>;
  volumes(): Promise<readonly PersistentVolume[]>;
  /** The names of the volumes on the store. */
  volumesOnStore(): readonly string[];
  /** The process mark of the holder of each lock on the store, by lock. */
  heldLocks(): ReadonlyMap<string, number>;
  /** Everything that is left on the store and in the cluster. */
  leftovers(): Promise<readonly string[]>;
  /** The messages of an object's Events. */
  eventMessages(name: string): Promise<string>;
}

export async function startControllerFaultsFixture(signal: AbortSignal): Promise<ControllerFaultsFixture> {
  await using stack = new AsyncDisposableStack();
  const folder = mkdtempSync(join(tmpdir(), 'stowage-e2e-faults-'));
  stack.defer(() => rmSync(folder, { recursive: true, force: true }));
  const exported = join(folder, 'export');
  mkdirSync(exported);
  const nfs = stack.use(await startGanesha({ exports: [{ path: exported, tag: '/export', squash: 'none' }], signal }));
  const cluster = stack.use(await startCluster(signal, { nodes: 1 }));
  await cluster.kubectl('apply', '--filename', join(repository, 'deploy', 'kubernetes', 'crds', 'stores.yaml'));
  await cluster.kubectl('wait', '--for=condition=Established', 'crd/stores.stowage.dev', '--timeout=30s');
  await cluster.apply({
    apiVersion: 'stowage.dev/v1',
    kind: 'Store',
    metadata: { name: 'silver' },
    spec: {
      uri: `nfs://${nfs.host}${exported}`,
      options: { port: String(nfs.nfsPort), mountport: String(nfs.mountPort) },
      storageClass: { reclaimPolicy: 'Delete' },
    },
  });
  const clock = systemClock();
  const access = await kubeAccess({ kubeconfig: cluster.kubeconfig, env: process.env, clock });
  const client = stack.use(createKubeClient({ access, clock, userAgent: 'e2e', maxSockets: maxInFlight }));
  const running: RunningController[] = [];
  stack.defer(async () => {
    for (const controller of running) await controller.kill();
  });
  const resources = stack.move();
  /**
   * Includes the volumes' records, but not the store's own files: a controller that is killed during its write check
   * leaves a file among them.
   */
  const entries = (): readonly string[] => readdirSync(exported).filter((name) => !name.startsWith('.stowage'));
  return {
    cluster,
    nfs,
    start: (...more) => {
      const controller = startController(cluster, join(folder, `state-${running.length}`), ...more);
      running.push(controller);
      return controller;
    },
    killAll: async () => {
      for (const controller of running.splice(0)) await controller.kill();
      await freeLease(cluster);
    },
    create: (names) => forEachInParallel(names, (name) => client.create(claims, aClaim(name), signal)),
    remove: (names) =>
      forEachInParallel(names, (name) => ignoreNotFound(client.delete(claims, { namespace, name }, {}, signal))),
    claims: () => listAll(client, claims, signal),
    volumes: () => listAll(client, persistentVolumes, signal),
    volumesOnStore: () => entries().filter((name) => !name.endsWith('.meta')),
    heldLocks: () => {
      const locks = join(exported, '.stowage', 'locks');
      const markOf = (name: string): number =>
        Math.floor(Number(statSync(join(locks, name), { throwIfNoEntry: false })?.mtimeMs ?? 1_000) / 1_000);
      return new Map(
        readdirSync(locks)
          .map((name) => [name, markOf(name)] as const)
          .filter(([, mark]) => mark !== 1),
      );
    },
    leftovers: async () => {
      const objects = [
        ...(await listAll(client, claims, signal)),
        ...(await listAll(client, persistentVolumes, signal)),
      ];
      return [...entries(), ...objects.map(({ metadata }) => metadata.name ?? '')];
    },
    eventMessages: (name) =>
      cluster.kubectl(
        'get',
        'events',
        `--field-selector=involvedObject.name=${name}`,
        '--output=jsonpath={.items[*].message}',
      ),
    [Symbol.asyncDispose]: () => resources.disposeAsync(),
  };
}

const aClaim = (name: string): PersistentVolumeClaim => ({
  metadata: { name, namespace },
  spec: {
    accessModes: ['ReadWriteMany'],
    storageClassName: 'silver',
    resources: { requests: { storage: '1Gi' } },
  },
});

async function forEachInParallel(names: readonly string[], work: (name: string) => Promise<unknown>): Promise<void> {
  let next = 0;
  const worker = async (): Promise<void> => {
    while (next < names.length) await work(names[next++] ?? '');
  };
  await Promise.all(Array.from({ length: maxInFlight }, worker));
}

async function ignoreNotFound(deleting: Promise<void>): Promise<void> {
  await deleting.catch((thrown: unknown) => {
    if (reasonOf(thrown) !== 'NotFound') throw thrown;
  });
}

async function listAll<T extends KubeObject>(
  client: KubeClient,
  resource: Resource<T>,
  signal: AbortSignal,
): Promise<readonly T[]> {
  return (await Array.fromAsync(client.list(resource, {}, signal))).flatMap(({ items }) => items);
}
