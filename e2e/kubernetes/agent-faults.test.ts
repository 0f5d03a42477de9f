import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { type AgentFixture, agentComponents, startAgents } from './agent-fixture.ts';
import { namespace } from './agent-objects.ts';
import { createPods, longTimeoutMs, type Pods, pollOptions } from './agent-pods.ts';

const { signal } = new AbortController();
const [file, local] = ['file.stowage.dev', 'local.stowage.dev'] as const;
/** Appends numbered lines until a file `stop` exists. Ends at the first write that fails. */
const appendScript =
  'i=0; while [ ! -e /data/stop ]; do i=$((i+1)); echo "line $i" >>/data/log || exit 1; sleep 0.05; done';

describe.skipIf(lacks(...agentComponents))('Stowage on the nodes of a cluster, during failures', () => {
  let fixture: AgentFixture;
  let pods: Pods;

  beforeAll(async () => {
    fixture = await startAgents(signal);
    pods = createPods(fixture);
  }, 400_000);
  afterAll(() => fixture?.[Symbol.asyncDispose](), 60_000);

  /** Kills the server process only. The shell is process 1 of the container, and killing it would end the container. */
  const killAgent = async (node: number): Promise<void> => {
    // The brackets keep the pattern from matching the command line of this shell.
    const isAgent = `tr '\\0' ' ' <"$at/cmdline" 2>/dev/null | grep -q '[s]towage.mjs node --kubelet'`;
    // The kill ends the container and this shell. The shell sleeps until then.
    const find = `for at in /proc/[0-9]*; do if ${isAgent}; then kill -9 "\${at#/proc/}"; sleep 60; fi; done`;
    const inAgent = ['exec', '--namespace', namespace, await fixture.agentOn(node), '--', 'sh', '-c', find];
    await expect(fixture.cluster.kubectl(...inAgent)).rejects.toThrow('exit code 137');
  };
  const restarts = async (node: number): Promise<number> => {
    const restartCountPath = 'jsonpath={.status.containerStatuses[0].restartCount}';
    const options = ['--namespace', namespace, '--output', restartCountPath];
    return Number(await fixture.cluster.kubectl('get', 'pod', await fixture.agentOn(node), ...options));
  };
  const waitUntilAnswering = (node: number) =>
    expect
      .poll(() => fixture.stowage(node, 'status', '--quiet').then(() => 'it does', String), pollOptions)
      .toBe('it does');
  const lines = (pod: string): Promise<number> => pods.exec(pod, 'wc -l </data/log').then(Number);
  const keepsWriting = async (pod: string): Promise<void> => {
    const before = await lines(pod);
    await expect.poll(() => lines(pod), pollOptions).toBeGreaterThan(before);
  };
  const expectWholeLog = async (pod: string): Promise<void> => {
    const log = (await pods.exec(pod, 'cat /data/log')).split('\n');
    expect(log).toEqual(log.map((_, i) => `line ${i + 1}`));
  };

  test(
    'mounts the volumes of all pods although the agent is killed meanwhile',
    async () => {
      // In this fixture the keepers run in the agent's container and end with it. Other tests cover keepers in pods of
      // their own.
      const names = ['a', 'b', 'c', 'd', 'e', 'f'].map((name) => ({ name: `killed-${name}` }));
      const ids: string[] = [];
      for (const { name } of names) {
        const handle = await fixture.create(0, `images/${name}`, '--size', '64M');
        ids.push(handle);
        await pods.createVolume({ name, driver: local, handle, mode: 'ReadWriteOnce' });
      }
      const before = await restarts(0);
      for (const { name } of names) await pods.createPod({ name, node: 0, volume: name });
      await killAgent(0);
      await expect.poll(() => restarts(0).catch(() => before), pollOptions).toBeGreaterThan(before);
      await pods.waitUntilReady(...names.map(({ name }) => name));
      for (const { name } of names)
        expect(await pods.exec(name, 'echo text >/data/file && cat /data/file')).toBe('text');
      await pods.deletePods(...names.map(({ name }) => name));
      for (const id of ids) await pods.waitUntilNothingLeft(0, id);
    },
    longTimeoutMs,
  );

  test(
    'does not disturb a pod that writes to a local volume when the agent is killed',
    async () => {
      const handle = await fixture.create(1, 'images/busy', '--size', '64M');
      await pods.createVolume({ name: 'busy', driver: local, handle, mode: 'ReadWriteOnce' });
      await pods.createPod({ name: 'busy', node: 1, volume: 'busy', script: `${appendScript}; sleep 100000` });
      await pods.waitUntilReady('busy');
      await keepsWriting('busy');
      const before = await restarts(1);
      await killAgent(1);
      await keepsWriting('busy');
      await expect.poll(() => restarts(1).catch(() => before), pollOptions).toBeGreaterThan(before);
      await waitUntilAnswering(1);
      await keepsWriting('busy');
      // The next agent finds the mount and publishes it to another pod.
      await pods.createPod({ name: 'beside', node: 1, volume: 'busy' });
      await pods.waitUntilReady('beside');
      const seen = await lines('beside');
      await expect.poll(() => lines('beside'), pollOptions).toBeGreaterThan(seen);
      await pods.deletePods('beside');
      await expectWholeLog('busy');
      await pods.deletePods('busy');
      await pods.waitUntilNothingLeft(1, handle);
    },
    longTimeoutMs,
  );

  test(
    'keeps working when a kubelet restarts',
    async () => {
      const handle = await fixture.create(0, 'files/kept', '--size', '64M');
      await pods.createVolume({ name: 'kept', driver: file, handle, mode: 'ReadWriteMany' });
      await pods.createPod({ name: 'kept', node: 0, volume: 'kept', script: `${appendScript}; sleep 100000` });
      await pods.waitUntilReady('kept');
      await fixture.cluster.nodes[0]?.restartKubelet();
      await expect.poll(() => keepsWriting('kept').then(() => true, String), pollOptions).toBe(true);
      // The driver is registered again.
      await pods.createPod({ name: 'later', node: 0, volume: 'kept' });
      await pods.waitUntilReady('later');
      await fixture.cluster.nodes[0]?.killKubelet();
      await fixture.cluster.kubectl('delete', 'pod', 'later', 'kept', '--wait=false');
      await fixture.cluster.nodes[0]?.startKubelet();
      await fixture.cluster.kubectl('wait', '--for=delete', 'pod/later', 'pod/kept', '--timeout=90s');
      await pods.waitUntilNothingLeft(0, handle);
    },
    longTimeoutMs,
  );

  test(
    'lets pods terminate while the server of their volumes does not answer',
    async () => {
      const handle = await fixture.create(0, 'files/silent', '--size', '64M');
      await pods.createVolume({ name: 'silent', driver: file, handle, mode: 'ReadWriteMany' });
      for (const node of [0, 1]) {
        await pods.createPod({
          name: `silent-${node}`,
          node,
          volume: 'silent',
          script: `${appendScript}; sleep 100000`,
        });
        await pods.waitUntilReady(`silent-${node}`);
      }
      const volumeAttributes = { store: 'files', size: '64Mi' };
      // The script keeps the file open, so the last writes wait for the server.
      const script = `(exec 3>>/data/held; while sleep 0.05; do echo held >&3; done) & ${appendScript}; sleep 100000`;
      await pods.createPod({ name: 'passing', node: 0, volume: { driver: file, volumeAttributes }, script });
      await pods.waitUntilReady('passing');
      await keepsWriting('silent-0');
      await keepsWriting('passing');
      await fixture.filer.freeze();
      try {
        // Dirty data stay in the staged mount, and no pod waits for it. The data of inline volumes are discarded.
        await pods.deletePods('silent-0', 'silent-1', 'passing');
      } finally {
        fixture.filer.thaw();
      }
      await expect
        .poll(() => fixture.stowage(0, 'volume', 'list', '--store', 'files', '--json'), pollOptions)
        .not.toMatch(/csi-/);
      for (const node of [0, 1]) await pods.waitUntilNothingLeft(node, handle);
      await pods.createPod({ name: 'again', node: 1, volume: 'silent' });
      await pods.waitUntilReady('again');
      await pods.deletePods('again');
      await pods.waitUntilNothingLeft(1, handle);
    },
    longTimeoutMs,
  );
});
