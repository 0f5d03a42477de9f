import { execFile } from 'node:child_process';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { lacks, toolPath } from '#testbed/lacks.ts';
import { type ChartFixture, startChartFixture } from '../chart-fixture.ts';

const { signal } = new AbortController();
const components = ['root', 'mount', 'netns', 'firewall', 'kubernetes', 'busybox', 'helm', 'fuse'] as const;
/** The kinds of all cluster-scoped objects of an installation, and Namespace. */
const kinds = [
  'namespaces',
  'persistentvolumes',
  'storageclasses',
  'csidrivers',
  'customresourcedefinitions',
  'validatingadmissionpolicies',
  'validatingadmissionpolicybindings',
  'clusterroles',
  'clusterrolebindings',
  'priorityclasses',
];

interface Run {
  readonly stdout: string;
  readonly stderr: string;
  /** The exit status. Undefined: 0. */
  readonly code?: number;
}

describe.skipIf(lacks(...components))('the tests for any cluster', () => {
  let fixture: ChartFixture;
  let before: string;

  const listObjects = (): Promise<string> => fixture.cluster.kubectl('get', kinds.join(','), '--output=name');
  const run = (more: readonly string[], timeout = 600_000): Promise<Run> => {
    const main = join(import.meta.dirname, 'main.ts');
    const requiredArgs = ['--kubeconfig', fixture.cluster.kubeconfig, '--image', 'stowage:testbed'];
    const words = [main, ...requiredArgs, '--shell-image', fixture.busybox, ...more];
    const execOptions = { timeout, maxBuffer: 1 << 24 };
    return promisify(execFile)(process.execPath, words, execOptions).catch((thrown: unknown) => thrown as Run);
  };
  const lastLine = ({ stdout }: Run): string | undefined => stdout.trimEnd().split('\n').at(-1);

  beforeAll(async () => {
    fixture = await startChartFixture(signal);
    before = await listObjects();
  }, 400_000);
  afterAll(() => fixture?.[Symbol.asyncDispose](), 60_000);

  test('change nothing if the cluster contains remains of a Stowage that does not run', async () => {
    const { apply, kubectl } = fixture.cluster;
    const claimRef = {
      apiVersion: 'v1',
      kind: 'PersistentVolumeClaim',
      name: 'stowage-nfs',
      namespace: 'stowage-system',
    };
    const disk = {
      apiVersion: 'v1',
      kind: 'PersistentVolume',
      metadata: { name: 'retained' },
      spec: {
        capacity: { storage: '1Gi' },
        accessModes: ['ReadWriteOnce'],
        persistentVolumeReclaimPolicy: 'Retain',
        hostPath: { path: '/srv' },
        claimRef: { ...claimRef, uid: '4d0b8d1c-5b1f-4b8e-9c53-0d4d0f1d3c11' },
      },
    };
    await apply({ apiVersion: 'v1', kind: 'Namespace', metadata: { name: 'stowage-system' } }, disk);
    const seen = await listObjects();
    const { code, stderr, stdout } = await run(['--helm', toolPath('helm')], 60_000);
    expect({ code, stdout }).toEqual({ code: 1, stdout: '' });
    expect(stderr).toContain(
      '  Namespace stowage-system\n  PersistentVolume retained, of the claim stowage-system/stowage-nfs\n',
    );
    expect(await listObjects()).toBe(seen);
    const policy = '--output=jsonpath={.spec.persistentVolumeReclaimPolicy}';
    expect(await kubectl('get', 'persistentvolume', 'retained', policy)).toBe('Retain');
    await kubectl('delete', 'namespace/stowage-system', 'persistentvolume/retained', '--timeout=60s');
  }, 120_000);

  test('install the plain manifests if there is no Helm, and leave nothing behind', async () => {
    const result = await run(['--helm', 'none', '--only', 'a claim of a local store']);
    expect(result.stdout).toContain('Stowage: by deploy/kubernetes/stowage.yaml');
    expect(lastLine(result), `${result.stdout}${result.stderr}`).toBe('1 passed, 0 failed, 0 skipped');
    expect(result.code, result.stderr).toBeUndefined();
    expect(await listObjects()).toBe(before);
  }, 400_000);

  test('all pass on the cluster of the test bed, and leave nothing behind', async () => {
    // This cluster has no DNS for services.
    const address = ['--set', 'embeddedNFS.clusterIP=10.96.7.7'];
    const result = await run(['--helm', toolPath('helm'), ...address]);
    expect(result.stdout).toContain('Stowage: by the chart');
    expect(lastLine(result), `${result.stdout}${result.stderr}`).toBe('8 passed, 0 failed, 0 skipped');
    expect(result.code, result.stderr).toBeUndefined();
    expect(await listObjects()).toBe(before);
  }, 700_000);
});
