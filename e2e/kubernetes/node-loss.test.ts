import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { needs } from '#testbed/needs.ts';
import { components, type HealthFixture, longTimeoutMs, pollOptions, startHealthFixture } from './health-fixture.ts';

const { signal } = new AbortController();
const outOfService = 'node.kubernetes.io/out-of-service';

describe.skipIf(needs(...components))('a single-node volume whose node is lost', () => {
  let fixture: HealthFixture;
  let kubectl: HealthFixture['cluster']['kubectl'];

  beforeAll(async () => {
    fixture = await startHealthFixture(signal);
    ({ kubectl } = fixture.cluster);
  }, 400_000);
  afterAll(() => fixture?.[Symbol.asyncDispose](), 60_000);

  /** The nodes that the store lists as users of the application's volume. */
  const users = async (name: string): Promise<readonly string[]> => {
    const of = '--output=jsonpath={.spec.volumeName}';
    const volume = await kubectl('get', 'pvc', name, of);
    const id = await kubectl('get', 'pv', volume, '--output=jsonpath={.spec.csi.volumeHandle}');
    const folder = join(fixture.filer.exported, '.stowage', 'users', id);
    const hosts = readdirSync(folder).filter((one) => !one.startsWith('.'));
    return hosts.map((one) => (JSON.parse(readFileSync(join(folder, one), 'utf8')) as { node: string }).node).sort();
  };
  const known = (): Promise<string> =>
    fixture.own('get', 'configmap', 'stowage-nodes', '--output=jsonpath={.data}').catch(String);

  test(
    'is used on another node with its data as soon as the node has the out-of-service taint',
    async () => {
      const [here, there] = [fixture.nodeName(1), fixture.nodeName(0)];
      await fixture.application('cut', 1);
      await fixture.exec('cut', 'echo kept >/data/file; sync');
      expect(await fixture.runsOn('cut')).toBe(here);
      await expect.poll(known, pollOptions).toMatch(new RegExp(`${there} .*${here} |${here} .*${there} `));
      await fixture.cluster.nodes[1]?.cutOff();
      await kubectl('wait', '--for=condition=Ready=Unknown', `node/${here}`, '--timeout=120s');
      // A node that does not answer still counts as a user.
      expect(await users('cut')).toEqual([here]);
      await kubectl('taint', 'node', here, `${outOfService}=nodeshutdown:NoExecute`);
      await expect.poll(() => fixture.runsOn('cut'), pollOptions).toBe(there);
      expect(await fixture.exec('cut', 'cat /data/file; echo more >>/data/file')).toBe('kept');
      expect(await users('cut')).toEqual([there]);
      // The node comes back and releases the volume.
      await fixture.cluster.nodes[1]?.reconnect();
      await kubectl('wait', '--for=condition=Ready', `node/${here}`, '--timeout=120s');
      await kubectl('taint', 'node', here, `${outOfService}-`);
      await fixture.own('rollout', 'status', 'daemonset/stowage-agent', '--timeout=120s');
      await expect.poll(() => users('cut'), pollOptions).toEqual([there]);
      expect(await fixture.exec('cut', 'cat /data/file')).toBe('kept\nmore');
    },
    longTimeoutMs,
  );

  test(
    'is used on another node although the node was deleted while there was no leader',
    async () => {
      const [here, there] = [fixture.nodeName(1), fixture.nodeName(0)];
      await fixture.application('killed', 1);
      await fixture.exec('killed', 'echo kept >/data/file; sync');
      await fixture.own('scale', 'deployment/stowage-controller', '--replicas=0');
      await fixture.own('wait', '--for=delete', 'pod', '--selector=app.kubernetes.io/component=controller');
      await fixture.cluster.nodes[1]?.killNode();
      await kubectl('delete', 'node', here);
      // The first pod is deleted. The next pod may not use the volume yet.
      const [pod] = (await kubectl('get', 'pods', '--selector=app=killed', '--output=name')).split('\n');
      await kubectl('delete', pod ?? '', '--force', '--grace-period=0', '--ignore-not-found');
      const next = async (): Promise<string> => {
        const name = await kubectl(
          'get',
          'pods',
          '--selector=app=killed',
          '--output=jsonpath={.items[0].metadata.name}',
        );
        return await fixture.eventsOf(name);
      };
      await expect.poll(() => next().catch(String), pollOptions).toMatch(/FailedMount: .*written by host/);
      expect(await users('killed')).toEqual([here]);
      await fixture.own('scale', 'deployment/stowage-controller', '--replicas=1');
      await expect.poll(() => fixture.runsOn('killed'), pollOptions).toBe(there);
      expect(await fixture.exec('killed', 'cat /data/file')).toBe('kept');
      expect(await users('killed')).toEqual([there]);
      await expect.poll(known, pollOptions).not.toContain(`${here} `);
    },
    longTimeoutMs,
  );
});
