import { isDeepStrictEqual } from 'node:util';
import type { AnyObject } from './cluster.ts';
import { claim, claimVolume, container, type PodOptions, pod } from './objects.ts';
import type { ClassOfStore, PortableTest, TestContext } from './test-runner.ts';

/** Runs a pod to its end and returns its output. */
async function runPod(context: TestContext, wish: PodOptions): Promise<string> {
  const { cluster, namespace } = context;
  const object = pod(context, wish);
  await cluster.apply(object);
  const seen = await cluster.waitFor(
    `the end of pod ${wish.name}`,
    async () => (await cluster.find(object))?.status ?? {},
    ({ phase }) => phase === 'Succeeded' || phase === 'Failed',
  );
  const log = await cluster.logOf(namespace, wish.name);
  if (seen['phase'] !== 'Succeeded') throw new Error(`pod ${wish.name} failed: ${log}`);
  await cluster.remove(object);
  return log.trimEnd();
}

function expectEqual(found: unknown, wanted: unknown, what: string): void {
  if (!isDeepStrictEqual(found, wanted))
    throw new Error(`${what} is ${JSON.stringify(found)} and not ${JSON.stringify(wanted)}`);
}

const volumesOf = async ({ cluster, namespace }: TestContext): Promise<readonly AnyObject[]> =>
  (await cluster.list('v1', 'PersistentVolume')).filter(
    ({ spec }) => (spec?.['claimRef'] as { readonly namespace?: string } | undefined)?.namespace === namespace,
  );

/** Deletes everything in the namespace, and waits until nothing is left of its claims, either. */
export async function deleteAndCheck(context: TestContext): Promise<void> {
  const { cluster, namespace } = context;
  const kinds = [
    ['apps/v1', 'StatefulSet'],
    ['v1', 'Pod'],
    ['v1', 'PersistentVolumeClaim'],
  ] as const;
  for (const [apiVersion, kind] of kinds) {
    for (const { metadata } of await cluster.list(apiVersion, kind, namespace))
      await cluster.remove({ apiVersion, kind, metadata: { name: metadata.name, namespace } });
    const names = async () => (await cluster.list(apiVersion, kind, namespace)).map(({ metadata }) => metadata.name);
    await cluster.waitFor(`the deletion of each ${kind}`, names, (all) => all.length === 0);
  }
  const volumes = async () => (await volumesOf(context)).map(({ metadata, status }) => [metadata.name, status]);
  await cluster.waitFor('the deletion of each volume', volumes, (all) => all.length === 0);
}

const noClass = (what: string) => `there is no class of ${what}`;

/** One pod writes to a volume and another one reads it, the volume grows while a pod uses it, and is deleted. */
async function checkLifeCycle(context: TestContext, storageClass: ClassOfStore): Promise<void> {
  const { cluster, namespace } = context;
  const claimOptions = {
    name: 'life',
    storageClass,
    mode: storageClass === context.shared ? 'ReadWriteMany' : 'ReadWriteOnce',
  } as const;
  const object = claim(context, claimOptions);
  await cluster.apply(object);
  const volume = claimVolume('life');
  expectEqual(
    await runPod(context, { name: 'writes', script: 'echo text >/data/file && sync', volume }),
    '',
    'what it printed',
  );
  const phase = async () => (await cluster.find(object))?.status?.['phase'];
  expectEqual(await phase(), 'Bound', 'the phase of the claim');
  expectEqual(
    await runPod(context, { name: 'reads', script: 'cat /data/file', volume }),
    'text',
    'what the second pod read',
  );
  await cluster.apply(pod(context, { name: 'stays', script: 'sleep 100000', volume }));
  const running = async () =>
    (await cluster.find({ apiVersion: 'v1', kind: 'Pod', metadata: { name: 'stays', namespace } }))?.status?.['phase'];
  await cluster.waitFor('the pod to run', running, (seen) => seen === 'Running');
  await cluster.apply(claim(context, { ...claimOptions, size: '128Mi' }));
  const capacity = async () => (await cluster.find(object))?.status?.['capacity'];
  await cluster.waitFor('the claim to grow', capacity, (seen) => isDeepStrictEqual(seen, { storage: '128Mi' }));
  await deleteAndCheck(context);
}

const lifeCycle = (what: string, pick: (context: TestContext) => ClassOfStore | undefined): PortableTest => ({
  name: `a claim of ${what} is bound, written, read by another pod, expanded while in use, and deleted`,
  skipReason: (context) => (pick(context) === undefined ? noClass(what) : undefined),
  run: async (context) => {
    const storageClass = pick(context);
    if (storageClass !== undefined) await checkLifeCycle(context, storageClass);
  },
});

const twoNodes: PortableTest = {
  name: 'a ReadWriteMany claim shows the same files on two nodes',
  skipReason: ({ shared, nodes }) => {
    if (shared === undefined) return noClass('a shared store');
    return nodes.length < 2 ? 'there is one node' : undefined;
  },
  run: async (context) => {
    const { shared, nodes, cluster } = context;
    if (shared === undefined) return;
    await cluster.apply(claim(context, { name: 'both', storageClass: shared, mode: 'ReadWriteMany' }));
    const podOptions = (node: string | undefined) => ({
      volume: claimVolume('both'),
      ...(node === undefined ? {} : { node }),
    });
    await runPod(context, { name: 'one', script: 'echo "of one" >/data/file', ...podOptions(nodes[0]) });
    const read = await runPod(context, {
      name: 'other',
      script: 'cat /data/file; echo more >>/data/file',
      ...podOptions(nodes[1]),
    });
    expectEqual(read, 'of one', 'what the other node read');
    expectEqual(
      await runPod(context, { name: 'again', script: 'cat /data/file', ...podOptions(nodes[0]) }),
      'of one\nmore',
      'what the first node read',
    );
    await deleteAndCheck(context);
  },
};

const stateful: PortableTest = {
  name: 'a StatefulSet with three replicas has three volumes',
  skipReason: ({ local, shared }) => (local === undefined && shared === undefined ? noClass('any store') : undefined),
  run: async (context) => {
    const { cluster, namespace, local, shared, shell } = context;
    const labels = { app: 'three' };
    const script = 'hostname >>/data/who; sleep 100000';
    const probe = { exec: { command: ['sh', '-c', 'test -s /data/who'] }, periodSeconds: 1 };
    const set = {
      apiVersion: 'apps/v1',
      kind: 'StatefulSet',
      metadata: { name: 'three', namespace },
      spec: {
        serviceName: 'three',
        replicas: 3,
        podManagementPolicy: 'Parallel',
        selector: { matchLabels: labels },
        template: {
          metadata: { labels },
          spec: {
            terminationGracePeriodSeconds: 0,
            containers: [{ ...container(shell, script, false), readinessProbe: probe }],
          },
        },
        volumeClaimTemplates: [
          {
            metadata: { name: 'data' },
            spec: {
              accessModes: ['ReadWriteOnce'],
              storageClassName: (local ?? shared)?.name,
              resources: { requests: { storage: '64Mi' } },
            },
          },
        ],
      },
    };
    await cluster.apply(set);
    const ready = async () => (await cluster.find(set))?.status?.['readyReplicas'];
    await cluster.waitFor('three ready replicas', ready, (count) => count === 3);
    expectEqual((await volumesOf(context)).length, 3, 'the number of volumes');
    await deleteAndCheck(context);
  },
};

const inlineVolume = ({ driver = '', store = '' }: Partial<ClassOfStore> = {}): object => ({
  csi: { driver, volumeAttributes: { store, size: '64M' } },
});

const inlineRefusal: PortableTest = {
  name: 'an inline volume on a shared store is refused unless the store allows inline volumes',
  skipReason: ({ shared }) => (shared === undefined ? noClass('a shared store') : undefined),
  run: async (context) => {
    const { cluster, namespace, shared } = context;
    const metadata = { name: shared?.store ?? '' };
    const store = await cluster.find({ apiVersion: 'stowage.dev/v1', kind: 'Store', metadata });
    const volume = inlineVolume(shared);
    if (Object(store?.spec?.['options'])['inline'] === 'true') {
      await runPod(context, { name: 'allowed', script: 'echo text >/data/file', volume });
    } else {
      await cluster.apply(pod(context, { name: 'refused', script: 'true', volume }));
      const eventMessages = async () =>
        (await cluster.list('v1', 'Event', namespace)).map((event) => String(Object(event)['message']));
      const isTold = (all: readonly string[]) => all.some((text) => text.includes('does not allow inline volumes'));
      await cluster.waitFor('an Event that says so', eventMessages, isTold);
    }
    await deleteAndCheck(context);
  },
};

const inlineLifeCycle: PortableTest = {
  name: 'an inline volume is created and deleted together with its pod',
  skipReason: ({ local }) => (local === undefined ? noClass('a local store') : undefined),
  run: async (context) => {
    const volume = inlineVolume(context.local);
    const script = 'echo text >/data/file && cat /data/file';
    expectEqual(await runPod(context, { name: 'brings', script, volume }), 'text', 'what it read');
    await deleteAndCheck(context);
  },
};

const block: PortableTest = {
  name: 'a block volume is a device',
  skipReason: ({ images }) => (images === undefined ? noClass('images') : undefined),
  run: async (context) => {
    const { images, cluster } = context;
    if (images === undefined) return;
    await cluster.apply(claim(context, { name: 'device', storageClass: images, block: true }));
    const volume = claimVolume('device');
    const writes = 'test -b /dev/data && printf text | dd of=/dev/data bs=512 conv=sync,fsync 2>/dev/null';
    await runPod(context, { name: 'writes', script: writes, volume, block: true });
    const reads = 'dd if=/dev/data bs=4 count=1 2>/dev/null';
    expectEqual(
      await runPod(context, { name: 'reads', script: reads, volume, block: true }),
      'text',
      'what is on the device',
    );
    await deleteAndCheck(context);
  },
};

const unknownParameter: PortableTest = {
  name: 'a claim of a class with an unknown parameter waits, and an Event says why',
  skipReason: ({ shared, local }) => (local === undefined && shared === undefined ? noClass('any store') : undefined),
  run: async (context) => {
    const { cluster, namespace, unique } = context;
    const { driver = '', store = '' } = context.shared ?? context.local ?? {};
    const kind = {
      apiVersion: 'storage.k8s.io/v1',
      kind: 'StorageClass',
      metadata: { name: `${unique}-wrong` },
      provisioner: driver,
      volumeBindingMode: 'Immediate',
      parameters: { store, colour: 'red' },
    };
    await cluster.apply(kind);
    try {
      const object = claim(context, { name: 'hopeless', storageClass: kind.metadata.name });
      await cluster.apply(object);
      const notes = async () =>
        (await cluster.list('events.k8s.io/v1', 'Event', namespace)).map((event) => String(Object(event)['note']));
      const isTold = (all: readonly string[]) => all.some((note) => note.includes("unknown parameter 'colour'"));
      await cluster.waitFor('an Event about the parameter', notes, isTold);
      expectEqual((await cluster.find(object))?.status?.['phase'], 'Pending', 'the phase of the claim');
      expectEqual(await volumesOf(context), [], 'the list of created volumes');
      await deleteAndCheck(context);
    } finally {
      await cluster.remove(kind);
    }
  },
};

export const tests: readonly PortableTest[] = [
  lifeCycle('a shared store', ({ shared }) => shared),
  lifeCycle('a local store', ({ local }) => local),
  twoNodes,
  stateful,
  inlineLifeCycle,
  inlineRefusal,
  block,
  unknownParameter,
];
