import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { type AgentFixture, agentComponents, startAgents } from './agent-fixture.ts';
import { createPods, longTimeoutMs, type Pods, pollOptions } from './agent-pods.ts';

const { signal } = new AbortController();
const [file, local] = ['file.stowage.dev', 'local.stowage.dev'] as const;

describe.skipIf(lacks(...agentComponents))('Stowage on the nodes of a cluster', () => {
  let fixture: AgentFixture;
  let pods: Pods;

  beforeAll(async () => {
    fixture = await startAgents(signal);
    pods = createPods(fixture);
  }, 400_000);
  afterAll(() => fixture?.[Symbol.asyncDispose](), 60_000);

  test('registers both drivers with both kubelets', async () => {
    const { kubectl, nodes } = fixture.cluster;
    for (const { name: nodeID } of nodes) {
      const drivers = async (): Promise<readonly { readonly name: string }[]> => {
        const { spec } = JSON.parse(await kubectl('get', 'csinode', nodeID, '--output=json'));
        return (spec.drivers ?? []).sort((a: { name: string }, b: { name: string }) => a.name.localeCompare(b.name));
      };
      const allocatable = { count: 1_000 };
      await expect.poll(drivers, pollOptions).toEqual([
        { name: file, nodeID, topologyKeys: null, allocatable },
        { name: local, nodeID, topologyKeys: ['local.stowage.dev/node'], allocatable },
      ]);
      const label = 'jsonpath={.metadata.labels.local\\.stowage\\.dev/node}';
      expect(await kubectl('get', 'node', nodeID, '--output', label)).toBe(nodeID);
    }
  });

  test(
    'gives pods on two nodes the same files, and leaves nothing behind',
    async () => {
      const handle = await fixture.create(0, 'files/shared', '--size', '1G');
      await pods.createVolume({ name: 'shared', driver: file, handle, mode: 'ReadWriteMany' });
      await pods.createPod({ name: 'writer', node: 0, volume: 'shared' });
      await pods.waitUntilReady('writer');
      await pods.exec('writer', 'echo text >/data/file && sync');
      await pods.createPod({ name: 'reader', node: 1, volume: 'shared' });
      await pods.waitUntilReady('reader');
      expect(await pods.exec('reader', 'cat /data/file')).toBe('text');
      await pods.exec('reader', 'echo more >>/data/file && sync');
      expect(readFileSync(join(fixture.filer.exported, 'shared', 'file'), 'utf8')).toBe('text\nmore\n');
      expect(await pods.exec('writer', 'cat /data/file')).toBe('text\nmore');
      // Both agents list the users by their Kubernetes node and pod names.
      const uses = await fixture.stowage(1, 'volume', 'show', 'files/shared', '--json');
      for (const user of ['node-1', 'node-2', 'default/reader']) expect(uses).toContain(user);
      await pods.deletePods('writer', 'reader');
      for (const node of [0, 1]) await pods.waitUntilNothingLeft(node, handle);
    },
    longTimeoutMs,
  );

  test(
    'refuses a single-node volume on a second node, and an Event on the refused pod names the pod that uses the volume',
    async () => {
      const handle = await fixture.create(0, 'files/single', '--size', '1G');
      await pods.createVolume({ name: 'single', driver: file, handle, mode: 'ReadWriteOnce' });
      await pods.createPod({ name: 'first', node: 0, volume: 'single' });
      await pods.waitUntilReady('first');
      await pods.createPod({ name: 'beside', node: 0, volume: 'single' });
      await pods.waitUntilReady('beside');
      await pods.createPod({ name: 'elsewhere', node: 1, volume: 'single' });
      await expect
        .poll(() => pods.eventsOf('elsewhere'), pollOptions)
        .toMatch(
          /volume 'files\/single' is written by host node-1 \(pod default\/\w+(, pod default\/\w+)?\), and only one host may write to it\. Stop using it there first\./,
        );
      await pods.deletePods('first', 'beside');
      await pods.waitUntilReady('elsewhere');
      await pods.deletePods('elsewhere');
      await pods.waitUntilNothingLeft(1, handle);
    },
    longTimeoutMs,
  );

  test(
    'refuses a single-pod volume for a second pod',
    async () => {
      const handle = await fixture.create(0, 'files/alone', '--size', '1G');
      await pods.createVolume({ name: 'alone', driver: file, handle, mode: 'ReadWriteOncePod' });
      await pods.createPod({ name: 'only', node: 0, volume: 'alone' });
      await pods.waitUntilReady('only');
      // The test sets the node name, because the scheduler would not place the second pod.
      const more = { nodeName: fixture.cluster.nodes[1]?.name };
      await pods.createPod({ name: 'second', node: 1, volume: 'alone', more });
      await expect
        .poll(() => pods.eventsOf('second'), pollOptions)
        .toContain(
          "volume 'files/alone' is written by host node-1 (pod default/only), and only one host may write to it",
        );
      await pods.createPod({
        name: 'third',
        node: 0,
        volume: 'alone',
        more: { nodeName: fixture.cluster.nodes[0]?.name },
      });
      await expect.poll(() => pods.eventsOf('third'), pollOptions).toMatch(/already in use|in use by/);
      await pods.deletePods('second', 'third', 'only');
      await pods.waitUntilNothingLeft(0, handle);
    },
    longTimeoutMs,
  );

  test(
    'mounts read-only volumes read-only',
    async () => {
      const handle = await fixture.create(0, 'files/frozen', '--size', '1G');
      await pods.createVolume({ name: 'frozen-rw', driver: file, handle, mode: 'ReadWriteMany' });
      await pods.createPod({ name: 'filler', node: 0, volume: 'frozen-rw' });
      await pods.waitUntilReady('filler');
      await pods.exec('filler', 'echo text >/data/file && sync');
      await pods.createVolume({ name: 'frozen', driver: file, handle, mode: 'ReadOnlyMany', readOnly: true });
      await pods.createPod({ name: 'looker', node: 1, volume: 'frozen' });
      await pods.waitUntilReady('looker');
      expect(await pods.exec('looker', 'cat /data/file')).toBe('text');
      // A read-only pod on the writer's node uses the same staged mount.
      const claim = { claimName: 'frozen-rw', readOnly: true };
      const more = { volumes: [{ name: 'data', persistentVolumeClaim: claim }] };
      await pods.createPod({ name: 'beside', node: 0, volume: 'frozen-rw', more });
      await pods.waitUntilReady('beside');
      for (const name of ['looker', 'beside']) {
        await expect(pods.exec(name, 'echo more >/data/file')).rejects.toThrow('Read-only file system');
        expect(await pods.exec(name, 'grep " /data " /proc/mounts')).toMatch(/ ro,/);
      }
      await pods.exec('filler', 'echo more >>/data/file && sync');
      await pods.deletePods('filler', 'looker', 'beside');
      for (const node of [0, 1]) await pods.waitUntilNothingLeft(node, handle);
    },
    longTimeoutMs,
  );

  test(
    'gives a pod a block device that keeps its data',
    async () => {
      const handle = await fixture.create(0, 'images/raw-bytes', '--size', '64M', '--block');
      await pods.createVolume({ name: 'raw', driver: local, handle, mode: 'ReadWriteOnce', block: true });
      const bytes = () => pods.exec('device', 'dd if=/dev/data bs=512 count=1 skip=7 2>/dev/null | head -c 5');
      for (const turn of [1, 2]) {
        await pods.createPod({ name: 'device', node: 0, volume: 'raw', block: true });
        await pods.waitUntilReady('device');
        if (turn === 1)
          await pods.exec('device', 'echo bytes | dd of=/dev/data bs=512 seek=7 conv=sync,fsync 2>/dev/null');
        expect(await bytes()).toBe('bytes');
        expect(Number(await pods.exec('device', 'blockdev --getsize64 /dev/data'))).toBe(64 << 20);
        await pods.deletePods('device');
        await pods.waitUntilNothingLeft(0, handle);
      }
      // Waits until both loop devices are gone: Stowage's device, and the one that the kubelet attaches to it. They are
      // detached last. losetup would query every loop device of the machine.
      const words = ['sh', '-c', 'cat /sys/block/loop*/loop/backing_file 2>/dev/null || true'] as const;
      const devices = async () => await fixture.cluster.nodes[0]?.inside(...words);
      await expect.poll(devices, pollOptions).not.toMatch(new RegExp(`${handle}|raw-bytes`));
    },
    longTimeoutMs,
  );

  test.each([
    [file, 'files'],
    [local, 'images'],
  ])(
    'creates an inline volume on a store of %s together with its pod, and deletes it together with its pod',
    async (driver, store) => {
      const volumeAttributes = { store, size: '64M' };
      await pods.createPod({ name: 'passing', node: 1, volume: { driver, volumeAttributes } });
      await pods.waitUntilReady('passing');
      await pods.exec('passing', 'echo text >/data/file && sync');
      const volumes = (): Promise<string> => fixture.stowage(1, 'volume', 'list', '--store', store, '--json');
      expect(await volumes()).toMatch(/csi-/);
      await pods.deletePods('passing');
      await expect.poll(volumes, pollOptions).not.toMatch(/csi-/);
      if (driver === file)
        expect(readdirSync(fixture.filer.exported).filter((name) => name.startsWith('csi-'))).toEqual([]);
    },
    longTimeoutMs,
  );

  test(
    'reports invalid attributes of an inline volume on its pod',
    async () => {
      const volumeAttributes = { store: 'nowhere', size: '64M' };
      await pods.createPod({ name: 'astray', node: 1, volume: { driver: file, volumeAttributes } });
      await expect
        .poll(() => pods.eventsOf('astray'), pollOptions)
        .toContain(
          "driver file.stowage.dev has no store 'nowhere'. Set the parameter store to one of the stores of the driver: files",
        );
      await pods.deletePods('astray');
    },
    longTimeoutMs,
  );

  test(
    'reports volume usage to the kubelet',
    async () => {
      const files = await fixture.create(0, 'files/counted', '--size', '1G');
      const disk = await fixture.create(0, 'images/counted', '--size', '128M');
      await pods.createVolume({ name: 'counted-files', driver: file, handle: files, mode: 'ReadWriteMany' });
      await pods.createVolume({ name: 'counted-disk', driver: local, handle: disk, mode: 'ReadWriteOnce' });
      for (const name of ['counted-files', 'counted-disk']) await pods.createPod({ name, node: 0, volume: name });
      await pods.waitUntilReady('counted-files', 'counted-disk');
      for (const name of ['counted-files', 'counted-disk'])
        await pods.exec(name, 'dd if=/dev/zero of=/data/file bs=1M count=20 2>/dev/null && sync');
      interface Summary {
        readonly pods: readonly {
          readonly podRef: { readonly name: string };
          readonly volume?: readonly {
            readonly name: string;
            readonly capacityBytes: number;
            readonly usedBytes: number;
          }[];
        }[];
      }
      const usageOf = async (name: string) => {
        const summary: Summary = JSON.parse(
          await fixture.cluster.kubectl('get', '--raw', '/api/v1/nodes/node-1/proxy/stats/summary'),
        );
        const { volume = [] } = summary.pods.find(({ podRef }) => podRef.name === name) ?? {};
        const { capacityBytes, usedBytes } = volume.find((entry) => entry.name === 'data') ?? {};
        return { capacityBytes, usedMiB: Math.floor((usedBytes ?? 0) / (1 << 20)) };
      };
      await expect.poll(() => usageOf('counted-files'), pollOptions).toEqual({ capacityBytes: 1 << 30, usedMiB: 20 });
      await expect
        .poll(() => usageOf('counted-disk'), pollOptions)
        .toSatisfy(({ usedMiB }: { readonly usedMiB: number }) => usedMiB >= 20 && usedMiB < 60);
      await pods.deletePods('counted-files', 'counted-disk');
      await pods.waitUntilNothingLeft(0, files);
      await pods.waitUntilNothingLeft(0, disk);
    },
    longTimeoutMs,
  );

  test(
    'makes the container runtime refuse pods with user namespaces',
    async () => {
      const handle = await fixture.create(0, 'files/mapped', '--size', '1G');
      await pods.createVolume({ name: 'mapped', driver: file, handle, mode: 'ReadWriteMany' });
      await pods.createPod({ name: 'mapped', node: 0, volume: 'mapped', more: { hostUsers: false } });
      await expect.poll(() => pods.eventsOf('mapped'), pollOptions).toMatch(/does not support user namespaces/);
      await pods.deletePods('mapped');
      await pods.waitUntilNothingLeft(0, handle);
    },
    longTimeoutMs,
  );
});
