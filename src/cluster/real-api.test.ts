import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { type Cluster, startCluster } from '#testbed/kubernetes/cluster.ts';
import { addresses } from '#testbed/kubernetes/network.ts';
import { lacks } from '#testbed/lacks.ts';
import { scopeOf } from '#testing/leader-servers.ts';
import type { KubeAccess } from '#wire/kube/access.ts';
import { createKubeClient, type KubeClient } from '#wire/kube/client.ts';
import { fromKubeconfig } from '#wire/kube/config.ts';
import { configMaps, endpointSlices, pods, secrets, tokenRequests } from '#wire/kube/resources.ts';
import { createAgentReviews } from './auth/agent-reviews.ts';
import { createTokenReviews, nodeOfAgent } from './auth/token-reviews.ts';
import { type Credential, readCredential } from './leader/certificate.ts';
import { maintainCredentials } from './leader/credentials.ts';
import { maintainLeaderSlice, removeLeaderSlice } from './leader/endpoint-slice.ts';
import { audiences, serverNames } from './names.ts';

const clock = systemClock();
const { signal } = new AbortController();
const namespace = 'stowage-system';
const program = join(import.meta.dirname, '../../bin/stowage');
const linkProgram = join(import.meta.dirname, '../testing/link-program.ts');
const wait = { timeout: 60_000, interval: 50 };
const waitBriefly = { timeout: 30_000, interval: 20 };

const account = (name: string): object => ({ apiVersion: 'v1', kind: 'ServiceAccount', metadata: { namespace, name } });
/** A pod on a node without a kubelet never starts: the tests need only its object. */
const pod = (name: string, nodeName: string, serviceAccountName: string): object => ({
  apiVersion: 'v1',
  kind: 'Pod',
  metadata: { namespace, name },
  spec: { nodeName, serviceAccountName, containers: [{ name: 'main', image: 'nowhere.invalid/nothing:1' }] },
});
/** The permissions that an agent needs to find the leader. */
const agentRole = {
  apiVersion: 'rbac.authorization.k8s.io/v1',
  kind: 'Role',
  metadata: { namespace, name: 'stowage-agent' },
  rules: [
    { apiGroups: [''], resources: ['configmaps'], resourceNames: ['stowage-ca'], verbs: ['list', 'watch'] },
    {
      apiGroups: ['discovery.k8s.io'],
      resources: ['endpointslices'],
      resourceNames: ['stowage-leader'],
      verbs: ['list', 'watch'],
    },
  ],
};
const agentBinding = {
  apiVersion: 'rbac.authorization.k8s.io/v1',
  kind: 'RoleBinding',
  metadata: { namespace, name: 'stowage-agent' },
  roleRef: { apiGroup: 'rbac.authorization.k8s.io', kind: 'Role', name: 'stowage-agent' },
  subjects: [{ kind: 'ServiceAccount', namespace, name: 'stowage-agent' }],
};

describe.skipIf(lacks('root', 'mount', 'netns', 'firewall', 'kubernetes', 'busybox'))('on a real API server', () => {
  let cluster: Cluster;
  let access: KubeAccess;
  let client: KubeClient;
  let folder: string;

  beforeAll(async () => {
    folder = mkdtempSync(join(tmpdir(), 'stowage-link-'));
    cluster = await startCluster(signal, { nodes: 1 });
    const config: unknown = JSON.parse(await readFile(cluster.kubeconfig, 'utf8'));
    access = await fromKubeconfig({ config, folder: dirname(cluster.kubeconfig), clock, env: {} });
    client = createKubeClient({ access, clock, userAgent: 'stowage/test' });
    await cluster.kubectl('apply', '--filename', join(import.meta.dirname, '../../deploy/kubernetes/crds'));
    await cluster.apply(
      { apiVersion: 'v1', kind: 'Namespace', metadata: { name: namespace } },
      // No kubelet registered the node, so the node controller does not delete its pod within the test.
      { apiVersion: 'v1', kind: 'Node', metadata: { name: 'node-9' } },
      ...['stowage-agent', 'stowage-controller'].map(account),
      agentRole,
      agentBinding,
    );
    await cluster.apply(
      pod('agent-1', 'node-1', 'stowage-agent'),
      pod('agent-9', 'node-9', 'stowage-agent'),
      pod('agent-gone', 'node-1', 'stowage-agent'),
      pod('other', 'node-1', 'stowage-controller'),
    );
  }, 180_000);
  afterAll(async () => {
    client?.[Symbol.dispose]();
    await cluster?.[Symbol.asyncDispose]();
    rmSync(folder, { recursive: true, force: true });
  }, 60_000);

  interface TokenSpec {
    readonly account?: string;
    readonly pod?: string;
    readonly audience?: string;
  }
  async function tokenOf({ account: name = 'stowage-agent', pod: podName, audience }: TokenSpec): Promise<string> {
    const found = podName === undefined ? undefined : await client.get(pods, { namespace, name: podName }, signal);
    const { uid = '' } = found?.metadata ?? {};
    const bound =
      podName === undefined ? {} : { boundObjectRef: { apiVersion: 'v1', kind: 'Pod', name: podName, uid } };
    const tokenAudiences = audience === undefined ? [audiences.agents] : audience === '' ? [] : [audience];
    const body = {
      apiVersion: 'authentication.k8s.io/v1',
      metadata: {},
      spec: { audiences: tokenAudiences, ...bound },
    };
    const { status } = await client.create(tokenRequests, body, signal, { namespace, name, subresource: 'token' });
    return status?.token ?? '';
  }

  describe('the token', () => {
    const reviewedNode = async (wanted: TokenSpec): Promise<string> => {
      const reviews = createTokenReviews({ client, clock, audience: audiences.agents });
      return nodeOfAgent(await reviews.review(await tokenOf(wanted), scopeOf()), namespace);
    };

    test('of an agent’s pod names its node, and the token of another pod names another node', async () => {
      expect([await reviewedNode({ pod: 'agent-1' }), await reviewedNode({ pod: 'agent-9' })]).toEqual([
        'node-1',
        'node-9',
      ]);
      // The agents' reviews also check the claims before a review: a real token passes that check.
      const reviewed = await createAgentReviews(client, clock).review(await tokenOf({ pod: 'agent-1' }), scopeOf());
      expect(nodeOfAgent(reviewed, namespace)).toBe('node-1');
    });

    test.each<[string, TokenSpec, string]>([
      ['for another audience of ours', { pod: 'agent-1', audience: 'stowage.dev' }, 'token-refused'],
      ['for the API server', { pod: 'agent-1', audience: '' }, 'token-refused'],
      ['of another service account', { pod: 'other', account: 'stowage-controller' }, 'agent-account-other'],
      ['of no pod', {}, 'agent-node-unknown'],
    ])('%s is refused', async (_, wanted, reason) => {
      await expect(reviewedNode(wanted)).rejects.toMatchObject({ reason });
    });

    test('of a pod that is gone is refused', async () => {
      const token = await tokenOf({ pod: 'agent-gone' });
      const reviews = createTokenReviews({ client, clock, audience: audiences.agents });
      expect(await reviews.review(token, scopeOf())).toMatchObject({
        username: expect.stringContaining('stowage-agent'),
      });
      await client.delete(pods, { namespace, name: 'agent-gone' }, { graceSeconds: 0 }, signal);
      await expect
        .poll(
          () =>
            reviews.review(token, scopeOf()).then(
              () => 'accepted',
              (error: Error) => error.message,
            ),
          waitBriefly,
        )
        .toBe('Kubernetes does not accept the token');
    });
  });

  test('the certificate and the leader’s address are published, kept and repaired', async () => {
    const ending = new AbortController();
    const scope = scopeOf(ending.signal);
    const credentials: Credential[] = [];
    const common = { client, clock, namespace };
    const leaderOptions = { ...common, address: '10.0.0.5', port: 8443 };
    const running = [
      maintainCredentials({ ...common, applyCredential: (one) => void credentials.push(one) }, scope),
      maintainLeaderSlice(leaderOptions, scope),
    ];
    const slice = () => client.get(endpointSlices, { namespace, name: 'stowage-leader' }, signal);
    await expect.poll(() => credentials.length, wait).toBe(1);
    const { type, data } = await client.get(secrets, { namespace, name: 'stowage-tls' }, signal);
    const text = (key: string): string => Buffer.from(data?.[key] ?? '', 'base64').toString();
    expect([type, readCredential(text('tls.crt'), text('tls.key')).isFor(serverNames(namespace)[0])]).toEqual([
      'kubernetes.io/tls',
      true,
    ]);
    const publishedAuthority = () => client.get(configMaps, { namespace, name: 'stowage-ca' }, signal);
    expect((await publishedAuthority()).data).toEqual({ 'ca.crt': text('tls.crt') });
    await expect.poll(slice, wait).toMatchObject({ endpoints: [{ addresses: ['10.0.0.5'] }] });
    await client.update(endpointSlices, { ...(await slice()), endpoints: [] }, signal);
    await expect.poll(slice, wait).toMatchObject({ endpoints: [{ addresses: ['10.0.0.5'] }] });
    const { resourceVersion } = (await slice()).metadata;
    await client.delete(configMaps, { namespace, name: 'stowage-ca' }, {}, signal);
    await expect
      .poll(() => publishedAuthority().catch(() => undefined), wait)
      .toMatchObject({ data: { 'ca.crt': text('tls.crt') } });
    ending.abort();
    await Promise.all(running);
    // No process writes an object that is already correct.
    expect((await slice()).metadata.resourceVersion).toBe(resourceVersion);
    const nextStop = new AbortController();
    const nextLeaderOptions = { ...common, address: 'fd00::5', port: 8443 };
    const nextMaintenance = maintainLeaderSlice(nextLeaderOptions, scopeOf(nextStop.signal));
    await expect.poll(slice, wait).toMatchObject({ addressType: 'IPv6', endpoints: [{ addresses: ['fd00::5'] }] });
    nextStop.abort();
    await nextMaintenance;
    await removeLeaderSlice(leaderOptions, scopeOf());
    expect((await slice()).addressType).toBe('IPv6');
    await removeLeaderSlice(nextLeaderOptions, scopeOf());
    await expect(slice()).rejects.toMatchObject({ reason: 'NotFound' });
  }, 120_000);

  describe('an agent on a node', () => {
    interface RunningProgram {
      output(): string;
      signal(name: NodeJS.Signals): void;
      ended: Promise<unknown>;
    }

    function start(commandLine: readonly string[]): RunningProgram {
      const [file = '', ...rest] = commandLine;
      const child = spawn(file, rest, { stdio: ['ignore', 'pipe', 'pipe'] });
      const ended = once(child, 'close');
      onTestFinished(async () => {
        child.kill('SIGCONT');
        child.kill('SIGKILL');
        await ended;
      });
      let output = '';
      for (const stream of [child.stdout, child.stderr])
        stream.setEncoding('utf8').on('data', (chunk: string) => {
          output += chunk;
        });
      return { output: () => output, signal: (name) => void child.kill(name), ended };
    }

    /** A kubeconfig with the address of the API server in the cluster's own network. */
    async function kubeconfigFor(name: string, user: object): Promise<string> {
      const server = `https://${addresses.controlPlane}:${addresses.apiPort}`;
      const { tls } = await access.identity(signal);
      const ca = Buffer.from(String(tls.ca)).toString('base64');
      const config = {
        apiVersion: 'v1',
        kind: 'Config',
        'current-context': 'it',
        contexts: [{ name: 'it', context: { cluster: 'it', user: 'it', namespace } }],
        clusters: [{ name: 'it', cluster: { server, 'certificate-authority-data': ca } }],
        users: [{ name: 'it', user }],
      };
      const path = join(folder, name);
      writeFileSync(path, JSON.stringify(config));
      return path;
    }

    let controllers = 0;
    async function startController(port: number): Promise<RunningProgram> {
      const { tls } = await access.identity(signal);
      const base64Of = (what: unknown): string => Buffer.from(String(what)).toString('base64');
      const admin = { 'client-certificate-data': base64Of(tls.cert), 'client-key-data': base64Of(tls.key) };
      const state = join(folder, `state-${controllers++}`);
      return start([
        ...cluster.network.inside,
        program,
        'controller',
        '--log-level',
        'info',
        '--state',
        state,
        '--kubeconfig',
        await kubeconfigFor('admin.json', admin),
        '--namespace',
        namespace,
        '--listen',
        `${addresses.controlPlane}:${port}`,
      ]);
    }
    async function startAgent(): Promise<RunningProgram> {
      const token = await tokenOf({ pod: 'agent-1', audience: '' });
      const kubeconfig = await kubeconfigFor('agent.json', { token });
      const tokenFile = join(folder, 'token');
      writeFileSync(tokenFile, await tokenOf({ pod: 'agent-1' }));
      const [node] = cluster.nodes;
      const agentCommand = [process.execPath, linkProgram, kubeconfig, namespace, tokenFile];
      return start([...(node?.beside ?? []), ...agentCommand]);
    }
    const count = (text: string, searched: string): number => text.split(searched).length - 1;
    const waitForConnection = (running: RunningProgram, port: number, times = 1) =>
      expect
        .poll(
          () =>
            count(running.output(), `connected to the controller {"host":"${addresses.controlPlane}","port":${port}}`),
          wait,
        )
        .toBe(times);
    const waitForAgent = (running: RunningProgram, times = 1) =>
      expect.poll(() => count(running.output(), 'an agent is connected'), wait).toBe(times);

    test('connects to the next leader when the first is killed, and reconnects after its node lost the network', async () => {
      const first = await startController(8443);
      await expect.poll(() => first.output(), wait).toContain('the Service points to this process');
      const second = await startController(8444);
      const agent = await startAgent();
      await waitForConnection(agent, 8443);
      await waitForAgent(first);
      expect(first.output()).toMatch(/an agent is connected.*node-1|node-1.*an agent is connected/);
      first.signal('SIGKILL');
      await waitForConnection(agent, 8444);
      await waitForAgent(second);

      // From now on packets are lost, and neither end gets an error.
      const [node] = cluster.nodes;
      await node?.cutOff();
      await expect.poll(() => second.output(), waitBriefly).toContain('an agent stopped answering');
      await expect.poll(() => agent.output(), waitBriefly).toContain('the controller stopped answering');
      await node?.reconnect();
      await waitForConnection(agent, 8444, 2);
      await waitForAgent(second, 2);

      // The leader withdraws its address and closes its connections.
      second.signal('SIGTERM');
      await second.ended;
      expect(second.output()).toContain('stowage controller stopped');
      await expect(client.get(endpointSlices, { namespace, name: 'stowage-leader' }, signal)).rejects.toMatchObject({
        reason: 'NotFound',
      });
      await expect.poll(() => agent.output(), wait).toContain('the connection to the controller ended');
    }, 200_000);

    test('notices a frozen leader, and connects to the next one', async () => {
      const first = await startController(8443);
      await expect.poll(() => first.output(), wait).toContain('the Service points to this process');
      const second = await startController(8444);
      const agent = await startAgent();
      await waitForConnection(agent, 8443);
      first.signal('SIGSTOP');
      await waitForConnection(agent, 8444);
      await waitForAgent(second);
      // The first controller notices that it is no longer the leader, and ends without changing the address of the second controller.
      first.signal('SIGCONT');
      await first.ended;
      const found = await client.get(endpointSlices, { namespace, name: 'stowage-leader' }, signal);
      expect(found).toMatchObject({ ports: [{ port: 8444 }] });
      expect(count(agent.output(), '"port":8443')).toBeGreaterThan(0);
      second.signal('SIGTERM');
      await second.ended;
    }, 200_000);
  });
});
