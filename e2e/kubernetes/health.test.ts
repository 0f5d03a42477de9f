import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { needs } from '#testbed/needs.ts';
import { killMountHolders } from './chart-fixture.ts';
import { components, type HealthFixture, longTimeoutMs, pollOptions, startHealthFixture } from './health-fixture.ts';

const { signal } = new AbortController();

describe.skipIf(needs(...components))('an unhealthy volume', () => {
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
  const ofClaim = (name: string): Promise<string> => condition('pvc', name, 'stowage.dev/Healthy');
  /** The unhealthy nodes that the PV's annotation records for the next leader. */
  const recordedNodes = (): Promise<string> => {
    const annotation = '{.metadata.annotations.stowage\\.dev/unhealthy-nodes}';
    return kubectl('get', 'pvc', 'quiet', `--output=jsonpath=${annotation}`);
  };
  const ofStore = (): Promise<string> => kubectl('get', 'store', 'files', '--output=jsonpath={.status.unhealthyNodes}');
  const podOf = (name: string): Promise<string> =>
    kubectl('get', 'pods', `--selector=app=${name}`, '--output=jsonpath={.items[0].metadata.name}');
  test(
    'is reported on the store, the claim and the pod, and so is its recovery',
    async () => {
      await fixture.application('quiet', 0);
      await fixture.filer.freeze();
      try {
        await expect.poll(() => ofClaim('quiet'), pollOptions).toBe('False StoreSilent');
        await expect.poll(() => condition('store', 'files', 'MountsHealthy'), pollOptions).toBe('False StoreSilent');
        expect(await recordedNodes()).toBe('node-1');
        expect(await ofStore()).toBe('["node-1"]');
        const note = "Warning VolumeConditionAbnormal: On node-1: the server of store 'files' does not answer.";
        await expect.poll(() => fixture.eventsOf('quiet'), pollOptions).toContain(note);
        const pod = await podOf('quiet');
        await expect
          .poll(() => fixture.eventsOf(pod), pollOptions)
          .toContain("Warning VolumeConditionAbnormal: The volume of claim 'quiet' is unhealthy on node-1");
      } finally {
        fixture.filer.thaw();
      }
      await expect.poll(() => ofClaim('quiet'), pollOptions).toBe('True Well');
      await expect.poll(() => condition('store', 'files', 'MountsHealthy'), pollOptions).toBe('True Well');
      expect(await Promise.all([recordedNodes(), ofStore()])).toEqual(['', '']);
      await expect
        .poll(() => fixture.eventsOf('quiet'), pollOptions)
        .toContain('Normal VolumeConditionNormal: The volume is healthy');
      expect(await fixture.exec('quiet', 'echo well >/data/file && cat /data/file')).toBe('well');
    },
    longTimeoutMs,
  );

  test(
    'with a lost mount is healthy in a new pod, and Stowage replaces the pod only if the claim allows it',
    async () => {
      await fixture.application('asking', 0, { 'stowage.dev/restart-consumers': 'true' });
      await fixture.application('silent', 0);
      for (const name of ['asking', 'silent']) await fixture.exec(name, 'echo kept >/data/file; sync');
      const before = { asking: await podOf('asking'), silent: await podOf('silent') };
      await killMountHolders(fixture, 0);
      await expect.poll(() => ofClaim('silent'), pollOptions).toBe('False RestartNeeded');
      await expect
        .poll(() => fixture.eventsOf(before.asking), pollOptions)
        .toContain('Normal RestartedForVolume: Evicted: the mount of claim');
      await expect.poll(() => fixture.exec('asking', 'cat /data/file').catch(String), pollOptions).toBe('kept');
      expect(await podOf('asking')).not.toBe(before.asking);
      await expect.poll(() => ofClaim('asking'), pollOptions).toBe('True Well');
      expect(await podOf('silent')).toBe(before.silent);
      await expect(fixture.exec('silent', 'cat /data/file')).rejects.toThrow(/endpoint is not connected|abort/);
      await kubectl('delete', 'pod', before.silent);
      await expect.poll(() => fixture.exec('silent', 'cat /data/file').catch(String), pollOptions).toBe('kept');
      await expect.poll(() => ofClaim('silent'), pollOptions).toBe('True Well');
    },
    longTimeoutMs,
  );

  test(
    'shows in the Prometheus metrics of the controller and of agents',
    async () => {
      await fixture.application('counted', 0);
      const about = '--output=jsonpath={.spec.template.spec.containers[0].args}';
      const args = await fixture.own('get', 'daemonset', 'stowage-agent', about);
      const [, address = ''] = /--health=([\d.:]+)/.exec(args) ?? [];
      const ask = async (where: string): Promise<string> => {
        const script = `fetch('http://${where}/metrics').then((it) => it.text()).then(console.log)`;
        return (await fixture.cluster.nodes[0]?.inside(process.execPath, '--eval', script)) ?? '';
      };
      const agent = await ask(address);
      expect(agent).toMatch(
        /^stowage_csi_calls_total\{driver="file.stowage.dev",method="NodeStageVolume",code="ok"\} [1-9]/m,
      );
      expect(agent).toMatch(/^stowage_mounts\{store="files",condition="ok"\} [1-9]/m);
      expect(agent).toMatch(/^stowage_data_path_mounts\{name="\w+"\} [1-9]/m);
      const chosen = '--selector=app.kubernetes.io/component=controller';
      const port = '{.spec.containers[0].ports[?(@.name=="health")].containerPort}';
      const each = `--output=jsonpath={range .items[*]}{.status.podIP}:${port}{"\\n"}{end}`;
      const places = (await fixture.own('get', 'pods', chosen, each)).split('\n');
      const controllers = (await Promise.all(places.map(ask))).join('');
      expect(controllers.match(/^stowage_controller_leading 1$/gm)).toHaveLength(1);
      expect(controllers).toMatch(/^stowage_controller_agents 2$/m);
      expect(controllers).toMatch(
        /^stowage_controller_events_total\{type="Normal",reason="ProvisioningSucceeded"\} [1-9]/m,
      );
    },
    longTimeoutMs,
  );
});
