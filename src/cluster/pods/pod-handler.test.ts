import { describe, expect, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { silentLog } from '#base/log.ts';
import { eventually } from '#testing/controller-fixture.ts';
import { type LeaderServer, leaderServers, testNamespace } from '#testing/leader-servers.ts';
import { createAgentReviews } from '../auth/agent-reviews.ts';
import { refuseUnknownPath } from '../server/tls-server.ts';
import type { AgentTunnel } from '../tunnel/agent-tunnel.ts';
import { createPodHandler } from './pod-handler.ts';

const servers = leaderServers();
const { signal } = new AbortController();

async function startLeader(): Promise<LeaderServer> {
  const clock = systemClock();
  const reviews = createAgentReviews(servers.client, clock);
  const options = { client: servers.client, clock, reviews, namespace: testNamespace, log: silentLog(), signal };
  return await servers.startServer({ handle: createPodHandler(options, refuseUnknownPath) });
}

async function connectedAgent(node = 'node-1'): Promise<AgentTunnel> {
  servers.publishLeader(await startLeader());
  const agent = servers.connectAgent({ node, api: (_, response) => response.end('{}') });
  await eventually(() => agent.isConnected).toBe(true);
  return agent;
}

/** Derives the pod's uid from its name. */
const putPod = (name: string, nodeName: string, more: object = {}): unknown =>
  servers.api.put('/api/v1/namespaces/team/pods', {
    metadata: { name, namespace: 'team', uid: `uid-${name}` },
    spec: { nodeName, ...more },
  } as never);
const requestedPod = (name: string, uid = `uid-${name}`) => ({ namespace: 'team', name, uid });
const podReadCount = (): number => servers.api.requests.filter((one) => one.includes('/namespaces/team/pods/')).length;

describe('an agent that requests a pod', () => {
  test('learns whether the pod has its own user namespace', async () => {
    putPod('plain', 'node-1');
    putPod('own', 'node-1', { hostUsers: false });
    const agent = await connectedAgent();
    expect(await agent.pod(requestedPod('plain'), signal)).toEqual({ uid: 'uid-plain', hostUsers: true });
    expect(await agent.pod(requestedPod('own'), signal)).toEqual({ uid: 'uid-own', hostUsers: false });
  });

  test('learns nothing about pods of other nodes, other pods of that name, or pods that do not exist', async () => {
    putPod('elsewhere', 'node-2', { hostUsers: false });
    putPod('another', 'node-1', { hostUsers: false });
    const agent = await connectedAgent();
    expect(await agent.pod(requestedPod('elsewhere'), signal)).toBeUndefined();
    expect(await agent.pod(requestedPod('another', 'uid-before'), signal)).toBeUndefined();
    expect(await agent.pod(requestedPod('none'), signal)).toBeUndefined();
    expect(await (await connectedAgent('node-2')).pod(requestedPod('elsewhere'), signal)).toMatchObject({
      hostUsers: false,
    });
  });

  test('sends one request per pod for any number of volumes, and its token is reviewed once for several pods', async () => {
    for (let i = 0; i < 10; i++) putPod(`p${i}`, 'node-1');
    const agent = await connectedAgent();
    const reviewed = servers.reviewed.length;
    const all = Array.from({ length: 30 }, (_, i) => agent.pod(requestedPod(`p${i % 10}`), signal));
    expect(await Promise.all(all)).toEqual(all.map((_, i) => ({ uid: `uid-p${i % 10}`, hostUsers: true })));
    await servers.api.down();
    expect(await agent.pod(requestedPod('p3'), signal)).toEqual({ uid: 'uid-p3', hostUsers: true });
    expect([podReadCount(), servers.reviewed.length - reviewed]).toEqual([10, 1]);
  });

  test('is not delayed without a leader', async () => {
    const agent = servers.connectAgent({ api: (_, response) => response.end('{}') });
    expect(await agent.pod(requestedPod('any'), signal)).toBeUndefined();
  });
});
