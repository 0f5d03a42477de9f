import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { components, type HealthFixture, longTimeoutMs, pollOptions, startHealthFixture } from './health-fixture.ts';

const { signal } = new AbortController();
const outOfService = 'node.kubernetes.io/out-of-service';

describe.skipIf(lacks(...components))('a single-node volume whose node is lost', () => {
  let fixture: HealthFixture;
  let kubectl: HealthFixture['cluster']['kubectl'];

  beforeAll(async () => {
    fixture = await startHealthFixture(signal);
    ({ kubectl } = fixture.cluster);
  }, 400_000);
  afterAll(() => fixture?.[Symbol.asyncDispose](), 60_000);

  /** The nodes that the store lists as users of the application's volume. */
  const userNodes = async (name: string): Promise<readonly string[]> => {
    const volumeNamePath = '--output=jsonpath={.spec.volumeName}';
    const volume = await kubectl('get', 'pvc', name, volumeNamePath);
    const id = await kubectl('get', 'pv', volume, '--output=jsonpath={.spec.csi.volumeHandle}');
    const folder = join(fixture.filer.exported, '.stowage', 'users', id);
    const hosts = readdirSync(folder).filter((entry) => !entry.startsWith('.'));
    return hosts
      .map((entry) => (JSON.parse(readFileSync(join(folder, entry), 'utf8')) as { node: string }).node)
      .sort();
  };
  const knownNodes = (): Promise<string> =>
    fixture.namespacedKubectl('get', 'configmap', 'stowage-nodes', '--output=jsonpath={.data}').catch(String);

  test(
    'is used on another node with its data as soon as the node has the out-of-service taint',
    async () => {
      const [lostNode, otherNode] = [fixture.nodeName(1), fixture.nodeName(0)];
      await fixture.createApplication('cut', 1);
      await fixture.exec('cut', 'echo kept >/data/file; sync');
      expect(await fixture.nodeOf('cut')).toBe(lostNode);
      await expect
        .poll(knownNodes, pollOptions)
        .toMatch(new RegExp(`${otherNode} .*${lostNode} |${lostNode} .*${otherNode} `));
      await fixture.cluster.nodes[1]?.cutOff();
      await kubectl('wait', '--for=condition=Ready=Unknown', `node/${lostNode}`, '--timeout=120s');
      // A node that does not answer still counts as a user.
      expect(await userNodes('cut')).toEqual([lostNode]);
      await kubectl('taint', 'node', lostNode, `${outOfService}=nodeshutdown:NoExecute`);
      await expect.poll(() => fixture.nodeOf('cut'), pollOptions).toBe(otherNode);
      expect(await fixture.exec('cut', 'cat /data/file; echo more >>/data/file')).toBe('kept');
      expect(await userNodes('cut')).toEqual([otherNode]);
      // The node comes back and releases the volume.
      await fixture.cluster.nodes[1]?.reconnect();
      await kubectl('wait', '--for=condition=Ready', `node/${lostNode}`, '--timeout=120s');
      await kubectl('taint', 'node', lostNode, `${outOfService}-`);
      await fixture.namespacedKubectl('rollout', 'status', 'daemonset/stowage-agent', '--timeout=120s');
      await expect.poll(() => userNodes('cut'), pollOptions).toEqual([otherNode]);
      expect(await fixture.exec('cut', 'cat /data/file')).toBe('kept\nmore');
    },
    longTimeoutMs,
  );

  test(
    'is used on another node although the node was deleted while there was no leader',
    async () => {
      const [lostNode, otherNode] = [fixture.nodeName(1), fixture.nodeName(0)];
      await fixture.createApplication('killed', 1);
      await fixture.exec('killed', 'echo kept >/data/file; sync');
      await fixture.namespacedKubectl('scale', 'deployment/stowage-controller', '--replicas=0');
      await fixture.namespacedKubectl(
        'wait',
        '--for=delete',
        'pod',
        '--selector=app.kubernetes.io/component=controller',
      );
      await fixture.cluster.nodes[1]?.killNode();
      await kubectl('delete', 'node', lostNode);
      // The first pod is deleted. The next pod may not use the volume yet.
      const [pod] = (await kubectl('get', 'pods', '--selector=app=killed', '--output=name')).split('\n');
      await kubectl('delete', pod ?? '', '--force', '--grace-period=0', '--ignore-not-found');
      const eventsOfNextPod = async (): Promise<string> => {
        const name = await kubectl(
          'get',
          'pods',
          '--selector=app=killed',
          '--output=jsonpath={.items[0].metadata.name}',
        );
        return await fixture.eventsOf(name);
      };
      await expect.poll(() => eventsOfNextPod().catch(String), pollOptions).toMatch(/FailedMount: .*written by host/);
      expect(await userNodes('killed')).toEqual([lostNode]);
      await fixture.namespacedKubectl('scale', 'deployment/stowage-controller', '--replicas=1');
      await expect.poll(() => fixture.nodeOf('killed'), pollOptions).toBe(otherNode);
      expect(await fixture.exec('killed', 'cat /data/file')).toBe('kept');
      expect(await userNodes('killed')).toEqual([otherNode]);
      await expect.poll(knownNodes, pollOptions).not.toContain(`${lostNode} `);
    },
    longTimeoutMs,
  );
});
