import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { needs } from '#testbed/needs.ts';
import { loseMounts } from './chart-ground.ts';
import { components, type HealthGround, long, startHealthGround, wait } from './health-ground.ts';

const { signal } = new AbortController();

describe.skipIf(needs(...components))('an unhealthy volume', () => {
  let ground: HealthGround;
  let kubectl: HealthGround['cluster']['kubectl'];

  beforeAll(async () => {
    ground = await startHealthGround(signal);
    ({ kubectl } = ground.cluster);
  }, 400_000);
  afterAll(() => ground?.[Symbol.asyncDispose](), 60_000);

  const condition = (kind: string, name: string, type: string): Promise<string> => {
    const chosen = `{.status.conditions[?(@.type=="${type}")]`;
    return kubectl('get', kind, name, `--output=jsonpath=${chosen}.status} ${chosen}.reason}`);
  };
  const ofClaim = (name: string): Promise<string> => condition('pvc', name, 'stowage.dev/Healthy');
  /** On which nodes, as the next leader reads it. */
  const noted = (): Promise<string> => {
    const annotation = '{.metadata.annotations.stowage\\.dev/unhealthy-nodes}';
    return kubectl('get', 'pvc', 'quiet', `--output=jsonpath=${annotation}`);
  };
  const ofStore = (): Promise<string> => kubectl('get', 'store', 'files', '--output=jsonpath={.status.unhealthyNodes}');
  const podOf = (name: string): Promise<string> =>
    kubectl('get', 'pods', `--selector=app=${name}`, '--output=jsonpath={.items[0].metadata.name}');
  test(
    'is reported on the store, the claim and the pod, and so is its recovery',
    async () => {
      await ground.application('quiet', 0);
      await ground.filer.freeze();
      try {
        await expect.poll(() => ofClaim('quiet'), wait).toBe('False StoreSilent');
        await expect.poll(() => condition('store', 'files', 'MountsHealthy'), wait).toBe('False StoreSilent');
        expect(await noted()).toBe('node-1');
        expect(await ofStore()).toBe('["node-1"]');
        const note = "Warning VolumeConditionAbnormal: On node-1: the server of store 'files' does not answer.";
        await expect.poll(() => ground.told('quiet'), wait).toContain(note);
        const pod = await podOf('quiet');
        await expect
          .poll(() => ground.told(pod), wait)
          .toContain("Warning VolumeConditionAbnormal: The volume of claim 'quiet' is unhealthy on node-1");
      } finally {
        ground.filer.thaw();
      }
      await expect.poll(() => ofClaim('quiet'), wait).toBe('True Well');
      await expect.poll(() => condition('store', 'files', 'MountsHealthy'), wait).toBe('True Well');
      expect(await Promise.all([noted(), ofStore()])).toEqual(['', '']);
      await expect
        .poll(() => ground.told('quiet'), wait)
        .toContain('Normal VolumeConditionNormal: The volume is healthy');
      expect(await ground.exec('quiet', 'echo well >/data/file && cat /data/file')).toBe('well');
    },
    long,
  );

  test(
    'whose mount was lost is healthy for a new pod, and Stowage evicts the old one only if the claim asks for it',
    async () => {
      await ground.application('asking', 0, { 'stowage.dev/restart-consumers': 'true' });
      await ground.application('silent', 0);
      for (const name of ['asking', 'silent']) await ground.exec(name, 'echo kept >/data/file; sync');
      const before = { asking: await podOf('asking'), silent: await podOf('silent') };
      await loseMounts(ground, 0);
      await expect.poll(() => ofClaim('silent'), wait).toBe('False RestartNeeded');
      await expect
        .poll(() => ground.told(before.asking), wait)
        .toContain('Normal RestartedForVolume: Evicted: the mount of claim');
      await expect.poll(() => ground.exec('asking', 'cat /data/file').catch(String), wait).toBe('kept');
      expect(await podOf('asking')).not.toBe(before.asking);
      await expect.poll(() => ofClaim('asking'), wait).toBe('True Well');
      expect(await podOf('silent')).toBe(before.silent);
      await expect(ground.exec('silent', 'cat /data/file')).rejects.toThrow(/endpoint is not connected|abort/);
      await kubectl('delete', 'pod', before.silent);
      await expect.poll(() => ground.exec('silent', 'cat /data/file').catch(String), wait).toBe('kept');
      await expect.poll(() => ofClaim('silent'), wait).toBe('True Well');
    },
    long,
  );

  test(
    'figures are there for Prometheus, of the controller and of agents',
    async () => {
      await ground.application('counted', 0);
      const about = '--output=jsonpath={.spec.template.spec.containers[0].args}';
      const args = await ground.own('get', 'daemonset', 'stowage-agent', about);
      const [, address = ''] = /--health=([\d.:]+)/.exec(args) ?? [];
      const ask = async (where: string): Promise<string> => {
        const script = `fetch('http://${where}/metrics').then((it) => it.text()).then(console.log)`;
        return (await ground.cluster.nodes[0]?.inside(process.execPath, '--eval', script)) ?? '';
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
      const places = (await ground.own('get', 'pods', chosen, each)).split('\n');
      const controllers = (await Promise.all(places.map(ask))).join('');
      expect(controllers.match(/^stowage_controller_leading 1$/gm)).toHaveLength(1);
      expect(controllers).toMatch(/^stowage_controller_agents 2$/m);
      expect(controllers).toMatch(
        /^stowage_controller_events_total\{type="Normal",reason="ProvisioningSucceeded"\} [1-9]/m,
      );
    },
    long,
  );
});
