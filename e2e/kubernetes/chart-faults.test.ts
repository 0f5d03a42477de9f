import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { type Filer, startFiler } from './agent-filer.ts';
import { podWithVolume } from './agent-objects.ts';
import { type ChartFixture, chart, claim, killMountingAgent, startChartFixture } from './chart-fixture.ts';

const { signal } = new AbortController();
const pollOptions = { interval: 250, timeout: 90_000 };
const longTimeoutMs = 600_000;
const components = [
  ...(['root', 'mount', 'netns', 'firewall', 'kubernetes', 'busybox', 'helm', 'fuse', 'ganesha'] as const),
  'fio',
] as const;

/**
 * Repeats rounds in which fio writes at random, reads back and compares, until a file `stop` exists. Ends at the first
 * wrong byte. Records when each round ended.
 */
const verifyScript = [
  'while [ ! -e /tmp/stop ]; do',
  'fio --name=x --directory=/data --rw=randrw --bs=4k-128k --size=4m --verify=crc32c --verify_fatal=1 --ioengine=psync',
  '--numjobs=2 --fsync=20 --verify_state_save=0 --output=/tmp/fio || { cat /tmp/fio; exit 1; };',
  'date +%s >>/tmp/rounds; done; sleep 100000',
].join(' ');
/** Host folders with the programs of the node, for fio. */
const hostProgramFolders = ['/usr', '/lib', '/lib64'];

describe.skipIf(lacks(...components))('pods that use a shared volume during failures', () => {
  let fixture: ChartFixture;
  let filer: Filer;
  let kubectl: ChartFixture['cluster']['kubectl'];

  beforeAll(async () => {
    fixture = await startChartFixture(signal);
    ({ kubectl } = fixture.cluster);
    filer = await startFiler(fixture.cluster, signal);
    const store = { name: 'files', ...filer.spec, storageClass: {} };
    const values = ['--set', 'image.tag=testbed', '--set-json', `stores=${JSON.stringify([store])}`];
    await fixture.helm('install', 'stowage', chart, '--create-namespace', ...values);
    for (const workload of ['deployment/stowage-controller', 'daemonset/stowage-agent', 'daemonset/stowage-keeper'])
      await fixture.namespacedKubectl('rollout', 'status', workload, '--timeout=120s');
  }, 400_000);
  afterAll(async () => {
    await filer?.[Symbol.asyncDispose]();
    await fixture?.[Symbol.asyncDispose]();
  }, 60_000);

  const exec = (name: string, script: string): Promise<string> => kubectl('exec', name, '--', 'sh', '-c', script);
  const waitUntilReady = (...names: readonly string[]): Promise<string> =>
    kubectl('wait', '--for=condition=Ready', '--timeout=120s', ...names.map((name) => `pod/${name}`));
  const nodeName = (node: number): string => fixture.cluster.nodes[node]?.name ?? '';
  const pod = (name: string, node: number, script: string): object => {
    const basePod = podWithVolume({ name, node: nodeName(node), image: fixture.busybox, script, volume: name }) as {
      readonly spec: {
        readonly containers: readonly [{ readonly volumeMounts: readonly object[] }];
        readonly volumes: readonly object[];
      };
    };
    const names = hostProgramFolders.map((path) => ({ path, name: path.slice(1) }));
    const [main] = basePod.spec.containers;
    const mounts = names.map(({ path, name: which }) => ({ name: which, mountPath: path, readOnly: true }));
    const env = [{ name: 'PATH', value: '/bin:/usr/bin' }];
    return {
      ...basePod,
      spec: {
        ...basePod.spec,
        containers: [{ ...main, env, volumeMounts: [...main.volumeMounts, ...mounts] }],
        volumes: [
          ...basePod.spec.volumes,
          ...names.map(({ path, name: which }) => ({ name: which, hostPath: { path } })),
        ],
      },
    };
  };
  const rounds = (name: string): Promise<number> => exec(name, 'cat /tmp/rounds 2>/dev/null | wc -l').then(Number);
  /** Waits for a complete round that starts now, and throws if fio ended. */
  const waitForVerifiedRound = async (name: string): Promise<void> => {
    const before = await rounds(name);
    await expect.poll(() => rounds(name), pollOptions).toBeGreaterThan(before + 1);
  };
  /** The number of complete rounds that ended between two moments. */
  const roundsBetween = async (name: string, since: number, until: number): Promise<number> => {
    const ended = (await exec(name, 'cat /tmp/rounds')).split('\n').map((second) => Number(second) * 1_000);
    return ended.filter((endedAt) => endedAt > since && endedAt < until).length;
  };
  const podOnNode = (component: string, node: number): Promise<string> =>
    fixture.namespacedKubectl(
      'get',
      'pods',
      `--selector=app.kubernetes.io/component=${component}`,
      `--field-selector=spec.nodeName=${nodeName(node)}`,
      '--output=jsonpath={.items[*].metadata.name}',
    );
  const waitForRollout = (component: string): Promise<string> =>
    fixture.namespacedKubectl('rollout', 'status', `daemonset/stowage-${component}`, '--timeout=120s');
  const restartsOf = (name: string): Promise<string> =>
    kubectl('get', 'pod', name, '--output=jsonpath={.status.containerStatuses[*].restartCount} {.status.phase}');

  test(
    'read back what they wrote while the data path pods are killed',
    async () => {
      await fixture.cluster.apply(
        claim({ name: 'checked', storageClassName: 'files', mode: 'ReadWriteMany' }),
        pod('checked', 0, verifyScript),
      );
      await waitUntilReady('checked');
      await waitForVerifiedRound('checked');
      for (let kill = 0; kill < 3; kill++) {
        const before = await podOnNode('keeper', 0);
        await fixture.namespacedKubectl('delete', 'pod', before, '--grace-period=0', '--force');
        await waitForVerifiedRound('checked');
        await expect.poll(() => podOnNode('keeper', 0), pollOptions).not.toContain(before);
        await waitForRollout('keeper');
      }
      expect(await restartsOf('checked')).toBe('0 Running');
    },
    longTimeoutMs,
  );

  /** What is left of volumes: mounts of any kind, files of the kubelet, use records on the server. */
  const remainsOf = async (ids: readonly string[]): Promise<readonly string[]> => {
    const volumeDataFiles = ['plugins/kubernetes.io/csi/*/*', 'pods/*/volumes/*/*'].map(
      (folder) => `/var/lib/kubelet/${folder}/vol_data.json`,
    );
    const words = ids.flatMap((id) => ['-e', id]).join(' ');
    const searchScript = `grep ${words} /proc/self/mountinfo; grep -ls ${words} ${volumeDataFiles.join(' ')}; :`;
    const onNodes = await Promise.all(fixture.cluster.nodes.map((node) => node.inside('sh', '-c', searchScript)));
    const records = readdirSync(join(filer.exported, '.stowage', 'users')).filter((id) => ids.includes(id));
    return [...onNodes.flatMap((output) => output.split('\n')).filter(Boolean), ...records];
  };
  /** The number of mounts that each keeper of a node serves, as the agent reports it. */
  const servedMounts = async (node: number): Promise<readonly number[]> => {
    const args = ['--container=agent', await podOnNode('agent', node), '--', 'stowage', 'client', 'status'];
    const dataPaths = JSON.parse(await fixture.namespacedKubectl('exec', ...args, '--json')) as readonly {
      readonly mounts: number;
    }[];
    return dataPaths.map(({ mounts }) => mounts);
  };
  const keepers = (): Promise<string> =>
    fixture.namespacedKubectl(
      'get',
      'pods',
      '--selector=app.kubernetes.io/component=keeper',
      '--sort-by=.metadata.name',
      '--output=jsonpath={range .items[*]}{.metadata.name} {.status.containerStatuses[*].restartCount}{"\\n"}{end}',
    );

  test(
    'get their volumes although the agent is killed while it mounts them, and running pods keep theirs',
    async () => {
      const [first, second] = [
        ['mounted-a', 'mounted-b'],
        ['mounted-c', 'mounted-d', 'mounted-e', 'mounted-f'],
      ] as const;
      const allNames = [...first, ...second];
      const modeOf = (name: string) =>
        name === 'mounted-a' || name === 'mounted-c' ? 'ReadWriteOnce' : 'ReadWriteMany';
      await fixture.cluster.apply(
        ...allNames.map((name) => claim({ name, storageClassName: 'files', mode: modeOf(name) })),
      );
      const claims = allNames.map((name) => `persistentvolumeclaim/${name}`);
      await kubectl('wait', '--for=jsonpath={.status.phase}=Bound', ...claims, '--timeout=60s');
      const names = '--output=jsonpath={range .items[*]}{.spec.claimRef.name} {.spec.csi.volumeHandle}{"\\n"}{end}';
      const handles = (await kubectl('get', 'pv', names)).split('\n').map((line) => line.split(' '));
      const ids = handles.flatMap(([name, id]) => (allNames.some((candidate) => candidate === name) ? (id ?? '') : []));
      const [keepersBefore, servedBefore] = [await keepers(), await servedMounts(0)];
      for (const podNames of [first, second]) {
        const killed = killMountingAgent(fixture, 0);
        await fixture.cluster.apply(...podNames.map((name) => pod(name, 0, 'sleep 100000')));
        await killed;
      }
      await waitUntilReady(...allNames);
      for (const name of allNames) expect(await exec(name, 'echo text >/data/file && cat /data/file')).toBe('text');
      await waitForVerifiedRound('checked');
      expect(await restartsOf('checked')).toBe('0 Running');
      expect(await keepers()).toBe(keepersBefore);
      await kubectl('delete', 'pod', ...allNames, '--timeout=90s');
      await expect.poll(() => remainsOf(ids), pollOptions).toEqual([]);
      await expect.poll(() => servedMounts(0), pollOptions).toEqual(servedBefore);
      // No node uses the single-node volumes any longer.
      await fixture.cluster.apply(...['mounted-a', 'mounted-c'].map((name) => pod(name, 1, 'sleep 100000')));
      await waitUntilReady('mounted-a', 'mounted-c');
      for (const name of ['mounted-a', 'mounted-c']) expect(await exec(name, 'cat /data/file')).toBe('text');
      await kubectl('delete', 'pod', 'mounted-a', 'mounted-c', '--timeout=90s');
      await kubectl('delete', 'pvc', ...allNames, '--timeout=60s');
      await expect.poll(() => remainsOf(ids), pollOptions).toEqual([]);
      await expect.poll(() => kubectl('get', 'pv', names), pollOptions).not.toContain('mounted-');
    },
    longTimeoutMs,
  );

  test(
    'read back what they wrote while the API server is down for half a minute, and later claims get volumes, too',
    async () => {
      const names = ['before', 'after'] as const;
      const claimAndPod = (name: string, node: number): readonly object[] => [
        claim({ name, storageClassName: 'local', mode: 'ReadWriteOnce' }),
        pod(name, node, 'sleep 100000'),
      ];
      const { apiServer, controllerManager, scheduler } = fixture.cluster;
      await fixture.cluster.apply(...claimAndPod('before', 0));
      const stoppedAt = Date.now();
      await apiServer.stop();
      // These programs reconnect with a backoff of up to half a minute. The test restarts them instead of waiting.
      await Promise.all([controllerManager.stop(), scheduler.stop()]);
      const awayAt = Date.now();
      await expect.poll(() => Date.now() - stoppedAt, pollOptions).toBeGreaterThan(30_000);
      const backAt = Date.now();
      await apiServer.start();
      await Promise.all([controllerManager.start(), scheduler.start()]);
      await fixture.cluster.apply(...claimAndPod('after', 1));
      await Promise.all([waitUntilReady(...names), waitForVerifiedRound('checked')]);
      for (const name of names) expect(await exec(name, 'echo text >/data/file && cat /data/file')).toBe('text');
      expect(await roundsBetween('checked', awayAt + 2_000, backAt)).toBeGreaterThan(1);
      expect(await restartsOf('checked')).toBe('0 Running');
      const bound = '--output=jsonpath={.items[?(@.spec.storageClassName=="local")].spec.claimRef.name}';
      expect((await kubectl('get', 'pv', bound)).split(' ').toSorted()).toEqual(names.toSorted());
      await kubectl('delete', 'pod', ...names, '--timeout=90s');
      await kubectl('delete', 'pvc', ...names, '--timeout=60s');
      await expect.poll(() => kubectl('get', 'pv', bound), pollOptions).toBe('');
      for (const node of fixture.cluster.nodes)
        expect(await node.inside('sh', '-c', 'ls /var/lib/stowage/stores/local')).toBe('');
    },
    longTimeoutMs,
  );

  test(
    'read back what they wrote while agent and keeper are upgraded',
    async () => {
      const before = await podOnNode('agent', 0);
      await fixture.helm('upgrade', 'stowage', chart, '--reuse-values', '--set', 'image.tag=next');
      await waitForRollout('agent');
      await waitForRollout('keeper');
      expect(await podOnNode('agent', 0)).not.toContain(before);
      await waitForVerifiedRound('checked');
      expect(await restartsOf('checked')).toBe('0 Running');
    },
    longTimeoutMs,
  );

  test(
    'leave a drained node within a bounded time while the server does not answer',
    async () => {
      await fixture.cluster.apply(
        claim({ name: 'drained', storageClassName: 'files', mode: 'ReadWriteOnce' }),
        pod('drained', 1, 'while :; do echo line >>/data/log; sleep 0.05; done'),
      );
      await waitUntilReady('drained');
      await expect.poll(() => exec('drained', 'wc -l </data/log').then(Number), pollOptions).toBeGreaterThan(3);
      await filer.freeze();
      try {
        await kubectl(
          'drain',
          nodeName(1),
          '--force',
          '--ignore-daemonsets',
          '--delete-emptydir-data',
          '--timeout=90s',
        );
        expect(await kubectl('get', 'pods', '--output=jsonpath={.items[*].metadata.name}')).toBe('checked');
        expect(await podOnNode('keeper', 1)).not.toBe('');
      } finally {
        filer.thaw();
      }
      await kubectl('uncordon', nodeName(1));
      await waitForVerifiedRound('checked');
      // The drained pod was the only user of the volume, and its node has released it.
      await fixture.cluster.apply(pod('drained', 0, 'sleep 100000'));
      await waitUntilReady('drained');
      expect(Number(await exec('drained', 'wc -l </data/log'))).toBeGreaterThan(3);
    },
    longTimeoutMs,
  );

  test(
    'leave nothing behind when they are deleted',
    async () => {
      await exec('checked', 'touch /tmp/stop');
      expect(await restartsOf('checked')).toBe('0 Running');
      await kubectl('delete', 'pod', 'checked', 'drained', '--timeout=90s');
      await kubectl('delete', 'pvc', 'checked', 'drained', '--timeout=60s');
      await expect.poll(() => kubectl('get', 'pv', '--output=name'), pollOptions).toBe('');
      for (const node of fixture.cluster.nodes)
        await expect
          .poll(() => node.inside('sh', '-c', 'grep -c "/csi/.*stowage" /proc/self/mountinfo; :'), pollOptions)
          .toBe('0');
    },
    longTimeoutMs,
  );
});
