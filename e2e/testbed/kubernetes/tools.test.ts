import { execFile } from 'node:child_process';
import { mkdir, mkdtempDisposable, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { lacks, toolPath } from '../lacks.ts';
import { agnhost, binaries } from './build.ts';
import { type Cluster, startCluster } from './cluster.ts';
import { importSuiteImages } from './images.ts';

const { signal } = new AbortController();
const execute = promisify(execFile);

describe.skipIf(lacks('root', 'mount', 'netns', 'firewall', 'kubernetes', 'busybox'))('a cluster of one node', () => {
  let cluster: Cluster;

  beforeAll(async () => {
    cluster = await startCluster(signal, { nodes: 1 });
  });
  afterAll(() => cluster[Symbol.asyncDispose]());

  test.skipIf(lacks('helm'))('installs a chart with Helm, and uninstalls it', async () => {
    await using work = await mkdtempDisposable(join(tmpdir(), 'stowage-helm-'));
    const chart = join(work.path, 'chart');
    await mkdir(join(chart, 'templates'), { recursive: true });
    await writeFile(join(chart, 'Chart.yaml'), 'apiVersion: v2\nname: tried\nversion: 1.0.0\n');
    await writeFile(
      join(chart, 'templates', 'map.yaml'),
      'apiVersion: v1\nkind: ConfigMap\nmetadata: {name: "{{ .Release.Name }}"}\ndata: {said: "{{ .Values.said }}"}\n',
    );
    const helm = async (...words: readonly string[]): Promise<string> => {
      const env = { PATH: process.env['PATH'], HOME: work.path, KUBECONFIG: cluster.kubeconfig };
      return (await execute(toolPath('helm'), words, { env, signal, timeout: 60_000 })).stdout;
    };
    await helm('install', 'mine', chart, '--set', 'said=hello', '--wait');
    expect(await cluster.kubectl('get', 'configmap', 'mine', '--output', 'jsonpath={.data.said}')).toBe('hello');
    await helm('uninstall', 'mine', '--wait');
    await expect(cluster.kubectl('get', 'configmap', 'mine')).rejects.toThrow('NotFound');
  });

  test.skipIf(lacks('k8s-e2e'))(
    'passes one of Kubernetes’ own tests',
    async () => {
      const suite = toolPath('k8s-e2e');
      await importSuiteImages(cluster, { suite, agnhost: agnhost(), kubectl: join(binaries(), 'kubectl') }, signal);
      const focus = 'EmptyDir volumes should support \\(root,0644,tmpfs\\)';
      const words = [
        '--kubeconfig',
        cluster.kubeconfig,
        '--provider=skeleton',
        '--ginkgo.no-color',
        `--ginkgo.focus=${focus}`,
      ];
      // The program leaves a temporary folder behind.
      await using own = await mkdtempDisposable(join(tmpdir(), 'stowage-suite-'));
      const env = { ...process.env, TMPDIR: own.path };
      const { stdout } = await execute(suite, words, { env, signal, timeout: 110_000, maxBuffer: 64 * 1024 * 1024 });
      expect(stdout).toMatch(/Ran 1 of \d+ Specs/);
      expect(stdout).toMatch(/1 Passed.* 0 Failed/);
    },
    120_000,
  );
});
