import { execFile } from 'node:child_process';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { needs, toolPath } from '#testbed/needs.ts';
import { type ChartGround, startChartGround } from '../chart-ground.ts';

const { signal } = new AbortController();
const components = ['root', 'mount', 'netns', 'firewall', 'kubernetes', 'busybox', 'helm', 'fuse'] as const;

describe.skipIf(needs(...components))('the tests for any cluster', () => {
  let ground: ChartGround;

  beforeAll(async () => {
    ground = await startChartGround(signal);
  }, 400_000);
  afterAll(() => ground?.[Symbol.asyncDispose](), 60_000);

  test('all pass on the one of the test bed, and leave nothing', async () => {
    const { kubeconfig, kubectl } = ground.cluster;
    const words = [join(import.meta.dirname, 'main.ts'), '--kubeconfig', kubeconfig, '--image', 'stowage:testbed'];
    const more = ['--shell-image', ground.busybox, '--helm', toolPath('helm')];
    // There is no DNS that hears of services by itself.
    const address = ['--set', 'embeddedNFS.clusterIP=10.96.7.7'];
    const { stdout } = await promisify(execFile)(process.execPath, [...words, ...more, ...address], {
      ...{ timeout: 600_000, maxBuffer: 1 << 24 },
    }).catch((thrown: unknown) => thrown as { readonly stdout: string });
    expect(stdout).toContain('Stowage: by the chart');
    expect(stdout.trimEnd().split('\n').at(-1), stdout).toBe('8 passed, 0 failed, 0 skipped');
    expect(await kubectl('get', 'namespaces', '--output=name')).not.toContain('stowage');
    const kinds = 'persistentvolumes,storageclasses,csidrivers,customresourcedefinitions,clusterroles';
    expect(await kubectl('get', kinds, '--output=name')).not.toContain('stowage');
  }, 700_000);
});
