import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { needs } from '#testbed/needs.ts';
import { type AgentFixture, agentComponents, startAgents } from './agent.ts';
import { namespace } from './agent-objects.ts';
import { createPods, longTimeoutMs, type Pods, pollOptions } from './agent-pods.ts';

const { signal } = new AbortController();
const [file, local] = ['file.stowage.dev', 'local.stowage.dev'] as const;
/** Appends numbered lines until a file `stop` exists. Ends at the first write that fails. */
const appendScript =
  'i=0; while [ ! -e /data/stop ]; do i=$((i+1)); echo "line $i" >>/data/log || exit 1; sleep 0.05; done';

describe.skipIf(needs(...agentComponents))('Stowage on the nodes of a cluster, during failures', () => {
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
    const isIt = `tr '\\0' ' ' <"$at/cmdline" 2>/dev/null | grep -q '[s]towage.mjs node --kubelet'`;
    // The kill ends the container and with it this shell, which waits for that.
    const find = `for at in /proc/[0-9]*; do if ${isIt}; then kill -9 "\${at#/proc/}"; sleep 60; fi; done`;
    const inAgent = ['exec', '--namespace', namespace, await fixture.agentOn(node), '--', 'sh', '-c', find];
    await expect(fixture.cluster.kubectl(...inAgent)).rejects.toThrow('exit code 137');
  };
  const restarts = async (node: number): Promise<number> => {
    const about = 'jsonpath={.status.containerStatuses[0].restartCount}';
    const where = ['--namespace', namespace, '--output', about];
    return Number(await fixture.cluster.kubectl('get', 'pod', await fixture.agentOn(node), ...where));
  };
  const answers = (node: number) =>
    expect
      .poll(() => fixture.stowage(node, 'status', '--quiet').then(() => 'it does', String), pollOptions)
      .toBe('it does');
  const lines = (pod: string): Promise<number> => pods.exec(pod, 'wc -l </data/log').then(Number);
  const keepsWriting = async (pod: string): Promise<void> => {
    const before = await lines(pod);
    await expect.poll(() => lines(pod), pollOptions).toBeGreaterThan(before);
  };
  const isWhole = async (pod: string): Promise<void> => {
    const log = (await pods.exec(pod, 'cat /data/log')).split('\n');
    expect(log).toEqual(log.map((_, i) => `line ${i + 1}`));
  };

  test(
    'mounts for all pods although the agent is killed meanwhile',
    async () => {
      // In this fixture the keepers run in the agent's container and end with it. Other tests cover keepers in pods of
      // their own.
      const names = ['a', 'b', 'c', 'd', 'e', 'f'].map((name) => ({ name: `killed-${name}` }));
      const ids: string[] = [];
      for (const { name } of names) {
        const handle = await fixture.create(0, `images/${name}`, '--size', '64M');
        ids.push(handle);
        await pods.volume({ name, driver: local, handle, mode: 'ReadWriteOnce' });
      }
      const before = await restarts(0);
      for (const { name } of names) await pods.pod({ name, node: 0, volume: name });
      await killAgent(0);
      await expect.poll(() => restarts(0).catch(() => before), pollOptions).toBeGreaterThan(before);
      await pods.ready(...names.map(({ name }) => name));
      for (const { name } of names)
        expect(await pods.exec(name, 'echo text >/data/file && cat /data/file')).toBe('text');
      await pods.end(...names.map(({ name }) => name));
      for (const id of ids) await pods.untilNothingLeft(0, id);
    },
    longTimeoutMs,
  );

  test(
    'does not disturb a pod that writes to a local volume when the agent is killed',
    async () => {
      const handle = await fixture.create(1, 'images/busy', '--size', '64M');
      await pods.volume({ name: 'busy', driver: local, handle, mode: 'ReadWriteOnce' });
      await pods.pod({ name: 'busy', node: 1, volume: 'busy', script: `${appendScript}; sleep 100000` });
      await pods.ready('busy');
      await keepsWriting('busy');
      const before = await restarts(1);
      await killAgent(1);
      await keepsWriting('busy');
      await expect.poll(() => restarts(1).catch(() => before), pollOptions).toBeGreaterThan(before);
      await answers(1);
      await keepsWriting('busy');
      // The next agent finds the mount and publishes it to another pod.
      await pods.pod({ name: 'beside', node: 1, volume: 'busy' });
      await pods.ready('beside');
      const seen = await lines('beside');
      await expect.poll(() => lines('beside'), pollOptions).toBeGreaterThan(seen);
      await pods.end('beside');
      await isWhole('busy');
      await pods.end('busy');
      await pods.untilNothingLeft(1, handle);
    },
    longTimeoutMs,
  );

  test(
    'keeps working when a kubelet restarts',
    async () => {
      const handle = await fixture.create(0, 'files/kept', '--size', '64M');
      await pods.volume({ name: 'kept', driver: file, handle, mode: 'ReadWriteMany' });
      await pods.pod({ name: 'kept', node: 0, volume: 'kept', script: `${appendScript}; sleep 100000` });
      await pods.ready('kept');
      await fixture.cluster.nodes[0]?.restartKubelet();
      await expect.poll(() => keepsWriting('kept').then(() => true, String), pollOptions).toBe(true);
      // The driver is registered again.
      await pods.pod({ name: 'later', node: 0, volume: 'kept' });
      await pods.ready('later');
      await fixture.cluster.nodes[0]?.killKubelet();
      await fixture.cluster.kubectl('delete', 'pod', 'later', 'kept', '--wait=false');
      await fixture.cluster.nodes[0]?.startKubelet();
      await fixture.cluster.kubectl('wait', '--for=delete', 'pod/later', 'pod/kept', '--timeout=90s');
      await pods.untilNothingLeft(0, handle);
    },
    longTimeoutMs,
  );

  test(
    'lets pods terminate while the server of their volumes does not answer',
    async () => {
      const handle = await fixture.create(0, 'files/silent', '--size', '64M');
      await pods.volume({ name: 'silent', driver: file, handle, mode: 'ReadWriteMany' });
      for (const node of [0, 1]) {
        await pods.pod({ name: `silent-${node}`, node, volume: 'silent', script: `${appendScript}; sleep 100000` });
        await pods.ready(`silent-${node}`);
      }
      const volumeAttributes = { store: 'files', size: '64Mi' };
      // The script keeps the file open, so the last writes wait for the server.
      const script = `(exec 3>>/data/held; while sleep 0.05; do echo held >&3; done) & ${appendScript}; sleep 100000`;
      await pods.pod({ name: 'passing', node: 0, volume: { driver: file, volumeAttributes }, script });
      await pods.ready('passing');
      await keepsWriting('silent-0');
      await keepsWriting('passing');
      await fixture.filer.freeze();
      try {
        // Dirty data stay in the staged mount, and no pod waits for it. The data of inline volumes are discarded.
        await pods.end('silent-0', 'silent-1', 'passing');
      } finally {
        fixture.filer.thaw();
      }
      await expect
        .poll(() => fixture.stowage(0, 'volume', 'list', '--store', 'files', '--json'), pollOptions)
        .not.toMatch(/csi-/);
      for (const node of [0, 1]) await pods.untilNothingLeft(node, handle);
      await pods.pod({ name: 'again', node: 1, volume: 'silent' });
      await pods.ready('again');
      await pods.end('again');
      await pods.untilNothingLeft(1, handle);
    },
    longTimeoutMs,
  );
});
