import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { type PodWithVolume, podWithVolume } from './agent-objects.ts';
import { type ChartFixture, chart, startChartFixture } from './chart-fixture.ts';

const { signal } = new AbortController();
const pollOptions = { interval: 250, timeout: 90_000 };
const longTimeoutMs = 600_000;
const components = ['root', 'mount', 'netns', 'firewall', 'kubernetes', 'busybox', 'helm', 'fuse'] as const;
const storesFolder = '/var/lib/stowage/stores';
const disk = '/mnt/stowage-disk';
const mib = 1024 * 1024;

interface ObjectList {
  readonly items: readonly {
    readonly metadata: { readonly name: string };
    readonly spec: {
      readonly claimRef?: { readonly name: string };
      readonly nodeAffinity?: {
        readonly required: {
          readonly nodeSelectorTerms: readonly {
            readonly matchExpressions: readonly { readonly values: string[] }[];
          }[];
        };
      };
    };
    readonly capacity?: string;
    readonly storageClassName?: string;
    readonly nodeTopology?: { readonly matchLabels?: Readonly<Record<string, string>> };
  }[];
}

describe.skipIf(lacks(...components))('in a cluster with local stores,', () => {
  let fixture: ChartFixture;
  let kubectl: ChartFixture['cluster']['kubectl'];
  let names: readonly string[];

  /**
   * The store `small` has room for one volume, the class of `quick` binds immediately, and the disk of `disk` is not
   * mounted.
   */
  const stores = [
    { name: 'small', uri: `local://${storesFolder}/small`, options: { maxBytes: String(100 * mib) }, storageClass: {} },
    { name: 'quick', uri: `local://${storesFolder}/quick`, storageClass: { volumeBindingMode: 'Immediate' } },
    { name: 'disk', uri: `local://${disk}/volumes`, storageClass: {} },
  ];

  beforeAll(async () => {
    fixture = await startChartFixture(signal);
    ({ kubectl } = fixture.cluster);
    names = fixture.cluster.nodes.map(({ name }) => name);
    const values = ['--set', 'image.tag=testbed', '--set-json', `stores=${JSON.stringify(stores)}`];
    await fixture.helm('install', 'stowage', chart, '--create-namespace', ...values);
    for (const workload of ['deployment/stowage-controller', 'daemonset/stowage-agent'])
      await fixture.namespacedKubectl('rollout', 'status', workload, '--timeout=120s');
  }, 400_000);
  afterAll(() => fixture?.[Symbol.asyncDispose](), 60_000);
  afterEach(async () => {
    // Deletes the objects that a failed test left behind.
    await kubectl('delete', 'statefulset,pod,pvc', '--all', '--wait', '--timeout=90s');
  }, 120_000);

  const list = async (kind: string): Promise<ObjectList['items']> =>
    (JSON.parse(await kubectl('get', kind, '--all-namespaces', '--output=json')) as ObjectList).items;
  const claim = (name: string, storageClassName: string, storage = '64Mi'): object => ({
    apiVersion: 'v1',
    kind: 'PersistentVolumeClaim',
    metadata: { name, namespace: 'default' },
    spec: { accessModes: ['ReadWriteOnce'], storageClassName, resources: { requests: { storage } } },
  });
  const pod = (name: string, more: Partial<PodWithVolume> = {}): object =>
    podWithVolume({
      name,
      volume: name,
      image: fixture.busybox,
      node: '',
      script: 'echo "$HOSTNAME" >>/data/who; sleep 100000',
      ...more,
    });
  const onAnyNode = (affinity: object = {}): Partial<PodWithVolume> => ({ more: { nodeSelector: {}, affinity } });
  const waitUntilReady = (...pods: readonly string[]): Promise<string> =>
    kubectl('wait', '--for=condition=Ready', '--timeout=110s', ...pods.map((name) => `pod/${name}`));
  const nodeOfPod = (name: string): Promise<string> =>
    kubectl('get', 'pod', name, '--output=jsonpath={.spec.nodeName}');
  /** The node of each volume, by the name of its claim. */
  const nodesOfVolumes = async (): Promise<Readonly<Record<string, string | undefined>>> =>
    Object.fromEntries(
      (await list('pv')).map(({ spec: { claimRef, nodeAffinity } }) => [
        claimRef?.name ?? '',
        nodeAffinity?.required.nodeSelectorTerms[0]?.matchExpressions[0]?.values[0],
      ]),
    );
  const phase = (name: string): Promise<string> => kubectl('get', 'pvc', name, '--output=jsonpath={.status.phase}');
  /** The number of entries in the stores of each node, without records. */
  const volumesPerNode = async (): Promise<readonly number[]> =>
    await Promise.all(
      fixture.cluster.nodes.map(async (node) => {
        const found = await node.inside(
          'sh',
          '-c',
          `find ${storesFolder}/*/ -mindepth 1 -maxdepth 1 -name 'pvc-*' -type d`,
        );
        return found.split('\n').filter((line) => line !== '').length;
      }),
    );
  const expectNothingLeft = async (): Promise<void> => {
    await expect.poll(() => list('pvc,pv'), pollOptions).toEqual([]);
    await expect.poll(volumesPerNode, pollOptions).toEqual([0, 0]);
  };
  const eventsOf = (name: string): Promise<string> =>
    kubectl(
      'get',
      'events',
      `--field-selector=involvedObject.name=${name}`,
      '--output=jsonpath={range .items[*]}{.message}{"\\n"}{end}',
    );

  const readyMessage = (name: string): Promise<string> =>
    kubectl('get', 'store', name, '--output=jsonpath={.status.conditions[?(@.type=="Ready")].message}');

  test(
    'a store reports its number of nodes, and its classes report the capacity of each node',
    async () => {
      await expect.poll(() => readyMessage('small'), pollOptions).toBe('Open on 2 of 2 nodes');
      const capacities = async (): Promise<readonly string[]> =>
        (await list('csistoragecapacities')).flatMap((capacity) =>
          capacity.storageClassName === 'small'
            ? `${capacity.nodeTopology?.matchLabels?.['local.stowage.dev/node']}=${capacity.capacity}`
            : [],
        );
      await expect
        .poll(async () => (await capacities()).toSorted(), pollOptions)
        .toEqual(names.map((name) => `${name}=100Mi`).toSorted());
    },
    longTimeoutMs,
  );

  test(
    'a store on an unmounted disk is not created elsewhere, opens when the disk is mounted, and works after its files were copied to another disk',
    async () => {
      const [first] = fixture.cluster.nodes;
      if (first === undefined) throw new Error('no node');
      await expect
        .poll(() => readyMessage('disk'), pollOptions)
        .toMatch(/^Open on 0 of 2 nodes; .*volumes does not exist/);
      expect(await first.inside('ls', disk)).toBe('');
      await first.inside('mount', '-t', 'tmpfs', 'disk', disk);
      try {
        await first.inside('mkdir', `${disk}/volumes`);
        await expect.poll(() => readyMessage('disk'), pollOptions).toMatch(/^Open on 1 of 2 nodes; /);
        await fixture.cluster.apply(claim('on-disk', 'disk'), pod('on-disk', { node: first.name }));
        await waitUntilReady('on-disk');
        expect(await first.inside('sh', '-c', `cat ${disk}/volumes/pvc-*/who`)).toBe('on-disk');
        await kubectl('delete', 'pod', 'on-disk', '--wait', '--timeout=90s');
        // Moves a store to another disk as in docs/kubernetes-operations.md. The kubelet unstages a volume only after
        // its pod is gone.
        const countMounts = (): Promise<string> =>
          first.inside('grep', '-c', '/var/lib/stowage/mounts/', '/proc/self/mountinfo').catch(() => '0');
        await expect.poll(countMounts, pollOptions).toBe('0');
        await first.inside('mkdir', '-p', `${disk}-new`);
        await first.inside('mount', '-t', 'tmpfs', 'new', `${disk}-new`);
        await first.inside('cp', '-a', '--sparse=always', `${disk}/.`, `${disk}-new/`);
        await first.inside('umount', '--lazy', disk);
        await first.inside('mount', '--bind', `${disk}-new`, disk);
        const agent = ['--selector=app.kubernetes.io/component=agent', `--field-selector=spec.nodeName=${first.name}`];
        await fixture.namespacedKubectl('delete', 'pod', ...agent, '--wait', '--timeout=90s');
        await fixture.namespacedKubectl('rollout', 'status', 'daemonset/stowage-agent', '--timeout=120s');
        await fixture.cluster.apply(pod('again', { node: first.name, volume: 'on-disk' }));
        await waitUntilReady('again');
        expect(await first.inside('sh', '-c', `cat ${disk}/volumes/pvc-*/who`)).toBe('on-disk\nagain');
        const name = await fixture.namespacedKubectl(
          'get',
          'pods',
          ...agent,
          '--output=jsonpath={.items[0].metadata.name}',
        );
        expect(await fixture.namespacedKubectl('exec', name, '--', 'stowage', 'store', 'check', 'disk')).toContain(
          'room',
        );
        await kubectl('delete', 'pod', 'again', '--wait', '--timeout=90s');
        await kubectl('delete', 'pvc', 'on-disk');
        await expectNothingLeft();
      } finally {
        await first.inside('sh', '-c', `umount --lazy ${disk} ${disk}-new; true`);
      }
    },
    longTimeoutMs,
  );

  test(
    'a store inside the agents’ containers is refused, with an action',
    async () => {
      const spec = { uri: 'local:///tmp/volumes' };
      await fixture.cluster.apply({ apiVersion: 'stowage.dev/v1', kind: 'Store', metadata: { name: 'lost' }, spec });
      await expect
        .poll(() => readyMessage('lost'), pollOptions)
        .toMatch(
          /^Open on 0 of 2 nodes; .*in the container of its agent\. .*add \/tmp\/volumes to the chart value agent\.hostPaths/,
        );
      await kubectl('delete', 'store', 'lost');
    },
    longTimeoutMs,
  );

  test(
    'a claim that waits for its pod gets its volume on the pod’s node, grows there, and leaves nothing behind',
    async () => {
      await fixture.cluster.apply(claim('data', 'local'));
      await fixture.cluster.apply(pod('data', { node: names[1] ?? '' }));
      await waitUntilReady('data');
      expect(await nodesOfVolumes()).toEqual({ data: names[1] });
      expect(await volumesPerNode()).toEqual([0, 1]);
      await kubectl('patch', 'pvc', 'data', '--patch={"spec":{"resources":{"requests":{"storage":"1Gi"}}}}');
      const size = (): Promise<string> => kubectl('get', 'pvc', 'data', '--output=jsonpath={.status.capacity.storage}');
      await expect.poll(size, pollOptions).toBe('1Gi');
      // The scheduler must place the next pod on the volume's node, where the pod finds the data of the first one.
      await kubectl('delete', 'pod', 'data', '--wait', '--timeout=90s');
      await fixture.cluster.apply(pod('second', { volume: 'data', ...onAnyNode() }));
      await waitUntilReady('second');
      expect(await nodeOfPod('second')).toBe(names[1]);
      expect(await kubectl('exec', 'second', '--', 'cat', '/data/who')).toBe('data\nsecond');
      await kubectl('delete', 'pod', 'second', '--wait', '--timeout=90s');
      await kubectl('delete', 'pvc', 'data');
      await expectNothingLeft();
    },
    longTimeoutMs,
  );

  test(
    'a claim that binds immediately gets its volume at once, and its pod is scheduled there',
    async () => {
      await fixture.cluster.apply(claim('at-once', 'quick'));
      await expect.poll(() => phase('at-once'), pollOptions).toBe('Bound');
      await fixture.cluster.apply(pod('at-once', onAnyNode()));
      await waitUntilReady('at-once');
      expect(await nodesOfVolumes()).toEqual({ 'at-once': await nodeOfPod('at-once') });
      await kubectl('delete', 'pod', 'at-once', '--wait', '--timeout=90s');
      await kubectl('delete', 'pvc', 'at-once');
      await expectNothingLeft();
    },
    longTimeoutMs,
  );

  test(
    'a StatefulSet with three replicas has three volumes on two nodes, each on the node of its pod',
    async () => {
      const labels = { app: 'trio' };
      const { spec } = pod('trio') as { readonly spec: { readonly containers: readonly object[] } };
      const spread = [
        {
          maxSkew: 1,
          topologyKey: 'kubernetes.io/hostname',
          whenUnsatisfiable: 'DoNotSchedule',
          labelSelector: { matchLabels: labels },
        },
      ];
      const { spec: wanted } = claim('data', 'local') as { readonly spec: object };
      await fixture.cluster.apply({
        apiVersion: 'apps/v1',
        kind: 'StatefulSet',
        metadata: { name: 'trio', namespace: 'default' },
        spec: {
          replicas: 3,
          podManagementPolicy: 'Parallel',
          serviceName: 'trio',
          selector: { matchLabels: labels },
          template: {
            metadata: { labels },
            spec: {
              terminationGracePeriodSeconds: 0,
              topologySpreadConstraints: spread,
              containers: spec.containers,
            },
          },
          volumeClaimTemplates: [{ metadata: { name: 'data' }, spec: wanted }],
        },
      });
      await kubectl('rollout', 'status', 'statefulset/trio', '--timeout=110s');
      const pods = ['trio-0', 'trio-1', 'trio-2'];
      const nodesOfPods = await Promise.all(pods.map(async (name) => [`data-${name}`, await nodeOfPod(name)]));
      expect(await nodesOfVolumes()).toEqual(Object.fromEntries(nodesOfPods));
      expect((await volumesPerNode()).toSorted()).toEqual([1, 2]);
      await kubectl('delete', 'statefulset', 'trio', '--cascade=foreground', '--wait', '--timeout=90s');
      await kubectl('delete', 'pvc', '--all');
      await expectNothingLeft();
    },
    longTimeoutMs,
  );

  test(
    'a pod whose node is full is scheduled to another one',
    async () => {
      await fixture.cluster.apply(claim('first', 'small'), pod('first', { node: names[0] ?? '' }));
      await waitUntilReady('first');
      const preferences = [
        {
          weight: 100,
          preference: { matchExpressions: [{ key: 'kubernetes.io/hostname', operator: 'In', values: [names[0]] }] },
        },
      ];
      const affinity = { nodeAffinity: { preferredDuringSchedulingIgnoredDuringExecution: preferences } };
      await fixture.cluster.apply(claim('next', 'small'), pod('next', onAnyNode(affinity)));
      await waitUntilReady('next');
      expect(await nodesOfVolumes()).toEqual({ first: names[0], next: names[1] });
      expect(await volumesPerNode()).toEqual([1, 1]);
      await kubectl('delete', 'pod', 'first', 'next', '--wait', '--timeout=90s');
      await kubectl('delete', 'pvc', '--all');
      await expectNothingLeft();
    },
    longTimeoutMs,
  );

  test(
    'a claim waits for the agent of its node, reports that in an Event, and gets its volume when the agent is back',
    async () => {
      const nodeSelectorPatch = (node: string | null): string =>
        JSON.stringify({ spec: { template: { spec: { nodeSelector: { 'kubernetes.io/hostname': node } } } } });
      await fixture.namespacedKubectl(
        'patch',
        'daemonset',
        'stowage-agent',
        '--patch',
        nodeSelectorPatch(names[1] ?? ''),
      );
      const agents = async (): Promise<string> =>
        await fixture.namespacedKubectl(
          'get',
          'pods',
          '--selector=app.kubernetes.io/component=agent',
          '--output=jsonpath={.items[*].spec.nodeName}',
        );
      await expect.poll(agents, pollOptions).toBe(names[1]);
      await fixture.cluster.apply(claim('late', 'local'), pod('late', { node: names[0] ?? '' }));
      await expect.poll(() => eventsOf('late'), pollOptions).toMatch(/agent of node \S+ is not connected/);
      await fixture.namespacedKubectl('patch', 'daemonset', 'stowage-agent', '--patch', nodeSelectorPatch(null));
      await waitUntilReady('late');
      expect(await nodesOfVolumes()).toEqual({ late: names[0] });
      await kubectl('delete', 'pod', 'late', '--wait', '--timeout=90s');
      await kubectl('delete', 'pvc', 'late');
      await expectNothingLeft();
    },
    longTimeoutMs,
  );

  test(
    'the controller creates each volume once although it is killed while claims wait',
    async () => {
      const count = 40;
      const claimNames = Array.from({ length: count }, (_, at) => `many-${at}`);
      const countBound = async (): Promise<number> =>
        (await kubectl('get', 'pvc', '--output=jsonpath={.items[*].status.phase}'))
          .split(' ')
          .filter((phaseOfClaim) => phaseOfClaim === 'Bound').length;
      await fixture.cluster.apply(...claimNames.map((name) => claim(name, 'quick', '1Mi')));
      await expect.poll(countBound, { ...pollOptions, interval: 20 }).toBeGreaterThan(0);
      await fixture.namespacedKubectl(
        'delete',
        'pods',
        '--selector=app.kubernetes.io/component=controller',
        '--grace-period=0',
        '--force',
      );
      await expect.poll(countBound, pollOptions).toBe(count);
      const [one = 0, two = 0] = await volumesPerNode();
      expect(one + two).toBe(count);
      await kubectl('delete', 'pvc', '--all');
      await expectNothingLeft();
    },
    longTimeoutMs,
  );
});
