import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { killKeeperAndAgent } from './chart-fixture.ts';
import { components, type HealthFixture, longTimeoutMs, pollOptions, startHealthFixture } from './health-fixture.ts';

const { signal } = new AbortController();

describe.skipIf(lacks(...components))('an unhealthy volume', () => {
  let fixture: HealthFixture;
  let kubectl: HealthFixture['cluster']['kubectl'];

  beforeAll(async () => {
    fixture = await startHealthFixture(signal);
    ({ kubectl } = fixture.cluster);
  }, 400_000);
  afterAll(() => fixture?.[Symbol.asyncDispose](), 60_000);

  const condition = (kind: string, name: string, type: string): Promise<string> => {
    const chosen = `{.status.conditions[?(@.type=="${type}")]`;
    return kubectl('get', kind, name, `--output=jsonpath=${chosen}.status} ${chosen}.reason}`);
  };
  const claimCondition = (name: string): Promise<string> => condition('pvc', name, 'stowage.dev/Healthy');
  /** The unhealthy nodes that the PV's annotation records for the next leader. */
  const recordedNodes = (): Promise<string> => {
    const annotation = '{.metadata.annotations.stowage\\.dev/unhealthy-nodes}';
    return kubectl('get', 'pvc', 'quiet', `--output=jsonpath=${annotation}`);
  };
  const storeUnhealthyNodes = (): Promise<string> =>
    kubectl('get', 'store', 'files', '--output=jsonpath={.status.unhealthyNodes}');
  const podOf = (name: string): Promise<string> =>
    kubectl('get', 'pods', `--selector=app=${name}`, '--output=jsonpath={.items[0].metadata.name}');
  test(
    'is reported on the store, the claim and the pod, and so is its recovery',
    async () => {
      await fixture.createApplication('quiet', 0);
      await fixture.filer.freeze();
      try {
        await expect.poll(() => claimCondition('quiet'), pollOptions).toBe('False StoreSilent');
        await expect.poll(() => condition('store', 'files', 'MountsHealthy'), pollOptions).toBe('False StoreSilent');
        expect(await recordedNodes()).toBe('node-1');
        expect(await storeUnhealthyNodes()).toBe('["node-1"]');
        const note = "Warning VolumeConditionAbnormal: On node-1: the server of store 'files' does not answer.";
        await expect.poll(() => fixture.eventsOf('quiet'), pollOptions).toContain(note);
        const pod = await podOf('quiet');
        await expect
          .poll(() => fixture.eventsOf(pod), pollOptions)
          .toContain("Warning VolumeConditionAbnormal: The volume of claim 'quiet' is unhealthy on node-1");
      } finally {
        fixture.filer.thaw();
      }
      await expect.poll(() => claimCondition('quiet'), pollOptions).toBe('True Well');
      await expect.poll(() => condition('store', 'files', 'MountsHealthy'), pollOptions).toBe('True Well');
      expect(await Promise.all([recordedNodes(), storeUnhealthyNodes()])).toEqual(['', '']);
      await expect
        .poll(() => fixture.eventsOf('quiet'), pollOptions)
        .toContain('Normal VolumeConditionNormal: The volume is healthy');
      expect(await fixture.exec('quiet', 'echo well >/data/file && cat /data/file')).toBe('well');
    },
    longTimeoutMs,
  );

  test(
    'becomes healthy in a new pod after its mount was lost, and Stowage evicts the old pod only if the claim allows that',
    async () => {
      await fixture.createApplication('asking', 0, { 'stowage.dev/restart-consumers': 'true' });
      await fixture.createApplication('silent', 0);
      for (const name of ['asking', 'silent']) await fixture.exec(name, 'echo kept >/data/file; sync');
      const before = { asking: await podOf('asking'), silent: await podOf('silent') };
      await killKeeperAndAgent(fixture, 0);
      await expect.poll(() => claimCondition('silent'), pollOptions).toBe('False RestartNeeded');
      await expect
        .poll(() => fixture.eventsOf(before.asking), pollOptions)
        .toContain('Normal RestartedForVolume: Evicted: the mount of claim');
      await expect.poll(() => fixture.exec('asking', 'cat /data/file').catch(String), pollOptions).toBe('kept');
      expect(await podOf('asking')).not.toBe(before.asking);
      await expect.poll(() => claimCondition('asking'), pollOptions).toBe('True Well');
      expect(await podOf('silent')).toBe(before.silent);
      await expect(fixture.exec('silent', 'cat /data/file')).rejects.toThrow(/endpoint is not connected|abort/);
      await kubectl('delete', 'pod', before.silent);
      await expect.poll(() => fixture.exec('silent', 'cat /data/file').catch(String), pollOptions).toBe('kept');
      await expect.poll(() => claimCondition('silent'), pollOptions).toBe('True Well');
    },
    longTimeoutMs,
  );

  test(
    'shows in the Prometheus metrics of the controller and of agents',
    async () => {
      await fixture.createApplication('counted', 0);
      const output = '--output=jsonpath={.spec.template.spec.containers[0].args}';
      const args = await fixture.namespacedKubectl('get', 'daemonset', 'stowage-agent', output);
      const [, address = ''] = /--health=([\d.:]+)/.exec(args) ?? [];
      const fetchMetrics = async (address: string): Promise<string> => {
        const script = `fetch('http://${address}/metrics').then((it) => it.text()).then(console.log)`;
        return (await fixture.cluster.nodes[0]?.inside(process.execPath, '--eval', script)) ?? '';
      };
      const agent = await fetchMetrics(address);
      expect(agent).toMatch(
        /^stowage_csi_calls_total\{driver="file.stowage.dev",method="NodeStageVolume",code="ok"\} [1-9]/m,
      );
      expect(agent).toMatch(/^stowage_mounts\{store="files",condition="ok"\} [1-9]/m);
      expect(agent).toMatch(/^stowage_data_path_mounts\{name="\w+"\} [1-9]/m);
      const chosen = '--selector=app.kubernetes.io/component=controller';
      const port = '{.spec.containers[0].ports[?(@.name=="health")].containerPort}';
      const addressTemplate = `--output=jsonpath={range .items[*]}{.status.podIP}:${port}{"\\n"}{end}`;
      const metricsAddresses = (await fixture.namespacedKubectl('get', 'pods', chosen, addressTemplate)).split('\n');
      const controllers = (await Promise.all(metricsAddresses.map(fetchMetrics))).join('');
      expect(controllers.match(/^stowage_controller_leading 1$/gm)).toHaveLength(1);
      expect(controllers).toMatch(/^stowage_controller_agents 2$/m);
      expect(controllers).toMatch(
        /^stowage_controller_events_total\{type="Normal",reason="ProvisioningSucceeded"\} [1-9]/m,
      );
    },
    longTimeoutMs,
  );
});
