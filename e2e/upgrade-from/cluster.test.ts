import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { EarlierCommit } from '#testbed/earlier-commit.ts';
import { buildImage } from '#testbed/image.ts';
import { lacks } from '#testbed/lacks.ts';
import { type Filer, startFiler } from '../kubernetes/agent-filer.ts';
import { podWithVolume } from '../kubernetes/agent-objects.ts';
import { type ChartFixture, chart, claim, namespace, startChartFixture } from '../kubernetes/chart-fixture.ts';
import { appendLines, type LineWriters, lineWriters } from '../kubernetes/line-writers.ts';
import { buildEarlierImage, checkOutEarlierVersion } from './earlier-version.ts';

const { signal } = new AbortController();
const pollOptions = { interval: 250, timeout: 120_000 };
const longTimeoutMs = 600_000;
const components = ['root', 'mount', 'netns', 'firewall', 'kubernetes', 'busybox', 'helm', 'ganesha', 'fuse'] as const;
const writerPods = ['own', 'remote', 'shared', 'embedded'] as const;

describe.skipIf(lacks(...components))('an upgrade of the chart from an earlier version, while pods write', () => {
  const resources = new AsyncDisposableStack();
  let earlier: EarlierCommit;
  let fixture: ChartFixture;
  let filer: Filer;
  let writers: LineWriters;
  let kubectl: ChartFixture['cluster']['kubectl'];

  beforeAll(async () => {
    earlier = resources.use(await checkOutEarlierVersion(signal));
    const before = resources.use(await buildEarlierImage(earlier, signal));
    const images = [
      { tar: before.tar, tags: ['earlier'] },
      { tar: await buildImage(signal), tags: ['now'] },
    ];
    fixture = resources.use(await startChartFixture(signal, images));
    filer = resources.use(await startFiler(fixture.cluster, signal));
    writers = lineWriters(fixture);
    ({ kubectl } = fixture.cluster);
  }, longTimeoutMs);
  afterAll(async () => await resources.disposeAsync(), 60_000);

  const waitForRollouts = async (): Promise<void> => {
    const parts = ['deployment/stowage-controller', 'daemonset/stowage-agent', 'daemonset/stowage-keeper'];
    for (const part of [...parts, 'statefulset/stowage-nfs'])
      await fixture.namespacedKubectl('rollout', 'status', part, '--timeout=180s');
  };
  const runningImages = async (): Promise<ReadonlySet<string>> => {
    const running = '--field-selector=status.phase=Running';
    const found = await fixture.namespacedKubectl(
      'get',
      'pods',
      running,
      '--output=jsonpath={.items[*].spec.containers[*].image}',
    );
    return new Set(found.split(' '));
  };
  const withScript =
    (script: string) =>
    (name: string, node: number, volume: string): object =>
      podWithVolume({ name, volume, script, node: fixture.cluster.nodes[node]?.name ?? '', image: fixture.busybox });
  const writingPod = withScript(appendLines);
  const idlePod = withScript('sleep 100000');
  const waitUntilReady = (...names: readonly string[]): Promise<string> =>
    kubectl('wait', '--for=condition=Ready', '--timeout=180s', ...names.map((name) => `pod/${name}`));
  /** The claims' volumes, with everything that the earlier version wrote into them. */
  const volumes = async (): Promise<unknown> => {
    const { items } = JSON.parse(await kubectl('get', 'pv', '--output=json'));
    return items.map(({ metadata, spec }: { metadata: Readonly<Record<string, unknown>>; spec: unknown }) => ({
      name: metadata['name'],
      annotations: metadata['annotations'],
      labels: metadata['labels'],
      spec,
    }));
  };

  test(
    'begins with pods that write on volumes of the earlier version',
    async () => {
      const values = join(fixture.cluster.folder, 'values.json');
      const embeddedNFS = { enabled: true, volume: { size: '1Gi' } };
      const stores = [{ name: 'silver', ...filer.spec, storageClass: {} }];
      await writeFile(values, JSON.stringify({ embeddedNFS, stores }));
      await kubectl('create', 'namespace', namespace);
      const earlierChart = join(earlier.path, 'deploy', 'kubernetes', 'chart');
      await fixture.helm('install', 'stowage', earlierChart, '--values', values, '--set', 'image.tag=earlier');
      await fixture.registerInDns();
      await waitForRollouts();
      await fixture.cluster.apply(
        claim({ name: 'own', storageClassName: 'local', mode: 'ReadWriteOnce' }),
        claim({ name: 'remote', storageClassName: 'silver', mode: 'ReadWriteMany' }),
        claim({ name: 'shared', storageClassName: 'silver', mode: 'ReadWriteMany' }),
        claim({ name: 'embedded', storageClassName: 'network', mode: 'ReadWriteMany' }),
        writingPod('own', 0, 'own'),
        writingPod('remote', 1, 'remote'),
        writingPod('shared', 0, 'shared'),
        writingPod('embedded', 1, 'embedded'),
        idlePod('reader', 1, 'shared'),
      );
      await waitUntilReady(...writerPods, 'reader');
      await writers.expectProgress(...writerPods, 'reader');
    },
    longTimeoutMs,
  );

  test(
    'does not disturb the pods, and changes no volume',
    async () => {
      const before = await volumes();
      await kubectl('apply', '--server-side', '--force-conflicts', '--filename', join(chart, 'crds'));
      // Versions before the check did not ask for this.
      const accepted = ['--set', 'embeddedNFS.insecure=true'];
      const now = ['--reset-then-reuse-values', '--set', 'image.tag=now', ...accepted];
      await fixture.helm('upgrade', 'stowage', chart, ...now);
      await waitForRollouts();
      await expect.poll(runningImages, pollOptions).toEqual(new Set(['stowage:now']));
      await writers.expectRunning(...writerPods, 'reader');
      await writers.expectProgress(...writerPods, 'reader');
      await writers.expectWholeLogs(...writerPods);
      expect(await volumes()).toEqual(before);
    },
    longTimeoutMs,
  );

  test(
    'leaves claims that new pods can use, and new claims get volumes',
    async () => {
      await fixture.cluster.apply(
        claim({ name: 'new', storageClassName: 'silver', mode: 'ReadWriteMany' }),
        writingPod('new', 0, 'new'),
      );
      await waitUntilReady('new');
      await writers.expectProgress('new');
      await kubectl('delete', 'pod', 'remote', '--timeout=90s');
      await fixture.cluster.apply(idlePod('remote', 0, 'remote'));
      await waitUntilReady('remote');
      await writers.expectWholeLogs('remote');
    },
    longTimeoutMs,
  );

  test(
    'can be undone with helm rollback, which does not disturb the pods either',
    async () => {
      const rest = ['own', 'shared', 'embedded', 'new'];
      await fixture.helm('rollback', 'stowage');
      await waitForRollouts();
      await expect.poll(runningImages, pollOptions).toEqual(new Set(['stowage:earlier']));
      await writers.expectRunning(...rest);
      await writers.expectProgress(...rest);
      await fixture.helm('rollback', 'stowage');
      await waitForRollouts();
      await expect.poll(runningImages, pollOptions).toEqual(new Set(['stowage:now']));
      await writers.expectRunning(...rest);
      await writers.expectProgress(...rest);
      await writers.expectWholeLogs(...rest);
    },
    longTimeoutMs,
  );

  test(
    'leaves nothing behind when the pods and claims of the earlier version are deleted',
    async () => {
      await kubectl('delete', 'pod', ...writerPods, 'reader', 'new', '--timeout=120s');
      await kubectl('delete', 'pvc', 'own', 'remote', 'shared', 'embedded', 'new', '--timeout=90s');
      await expect
        .poll(() => kubectl('get', 'pv', '--output=jsonpath={.items[*].spec.claimRef.name}'), pollOptions)
        .toBe('stowage-nfs');
      for (const node of fixture.cluster.nodes)
        await expect
          .poll(() => node.inside('sh', '-c', 'grep -c "/pods/.*stowage" /proc/self/mountinfo; :'), pollOptions)
          .toMatch(/^[01]$/);
    },
    longTimeoutMs,
  );
});
