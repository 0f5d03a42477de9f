import { mkdtempDisposable } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { type ConformanceFixture, components, startConformanceFixture } from './conformance/conformance-fixture.ts';
import { type Driver, runSuite } from './conformance/suite.ts';

const { signal } = new AbortController();
describe.skipIf(lacks(...components))('Kubernetes’ own tests of storage', () => {
  let fixture: ConformanceFixture;

  beforeAll(async () => {
    fixture = await startConformanceFixture(signal);
  }, 400_000);
  afterAll(() => fixture?.[Symbol.asyncDispose](), 60_000);

  // A few quick tests. `npm run e2e:conformance` runs all of them.
  test.each<[Driver, readonly string[]]>([
    [
      'file',
      [
        'Dynamic PV (default fs)] volumes should store data',
        'Dynamic PV (default fs)] subPath should support existing directory',
        'CSI Ephemeral-volume (default fs)] ephemeral should create read/write inline ephemeral volume',
        'Dynamic PV (default fs)(allowExpansion)] volume-expand should resize volume when PVC is edited while pod is using it',
      ],
    ],
    [
      'local',
      [
        'Dynamic PV (default fs)] volumes should store data',
        'Dynamic PV (block volmode)] volumes should store data',
        'Dynamic PV (default fs)] capacity provides storage capacity information',
        'Dynamic PV (delayed binding)] topology should provision a volume and schedule a pod with AllowedTopologies',
      ],
    ],
  ])(
    'pass with %s.stowage.dev',
    async (driver, names) => {
      await using work = await mkdtempDisposable(join(tmpdir(), 'stowage-conformance-'));
      const focus = `(${names.map((name) => `${RegExp.escape(name)}$`).join('|')})`;
      const specs = await runSuite({
        driver,
        focus,
        signal,
        parallel: names.length,
        minutes: 5,
        folder: work.path,
        kubeconfig: fixture.cluster.kubeconfig,
      });
      expect(specs.filter(({ state }) => state !== 'passed')).toEqual([]);
      expect(specs).toHaveLength(names.length);
    },
    360_000,
  );
});
