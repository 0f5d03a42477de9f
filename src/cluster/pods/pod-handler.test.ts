import { describe, expect, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { silentLog } from '#base/log.ts';
import { eventually } from '#testing/controller-fixture.ts';
import { leaderServers, type OpenedServer, testNamespace } from '#testing/leader-servers.ts';
import { createAgentReviews } from '../auth/agent-reviews.ts';
import { refuseUnknownPath } from '../server/tls-server.ts';
import type { AgentTunnel } from '../tunnel/agent-tunnel.ts';
import { createPodHandler } from './pod-handler.ts';

const it = leaderServers();
const { signal } = new AbortController();

async function open(): Promise<OpenedServer> {
  const clock = systemClock();
  const reviews = createAgentReviews(it.client, clock);
  const about = { client: it.client, clock, reviews, namespace: testNamespace, log: silentLog(), signal };
  return await it.open({ handle: createPodHandler(about, refuseUnknownPath) });
}

async function linked(node = 'node-1'): Promise<AgentTunnel> {
  it.lead(await open());
  const link = it.link({ node, api: (_, response) => response.end('{}') });
  await eventually(() => link.isConnected).toBe(true);
  return link;
}

/** Derives the pod's uid from its name. */
const pod = (name: string, nodeName: string, more: object = {}): unknown =>
  it.api.put('/api/v1/namespaces/team/pods', {
    metadata: { name, namespace: 'team', uid: `uid-${name}` },
    spec: { nodeName, ...more },
  } as never);
const asked = (name: string, uid = `uid-${name}`) => ({ namespace: 'team', name, uid });
const podsRead = (): number => it.api.requests.filter((one) => one.includes('/namespaces/team/pods/')).length;

describe('an agent that asks about a pod', () => {
  test('learns whether the pod has its own user namespace', async () => {
    pod('plain', 'node-1');
    pod('own', 'node-1', { hostUsers: false });
    const link = await linked();
    expect(await link.pod(asked('plain'), signal)).toEqual({ uid: 'uid-plain', hostUsers: true });
    expect(await link.pod(asked('own'), signal)).toEqual({ uid: 'uid-own', hostUsers: false });
  });

  test('learns nothing about pods of other nodes, other pods of that name, or pods that do not exist', async () => {
    pod('elsewhere', 'node-2', { hostUsers: false });
    pod('another', 'node-1', { hostUsers: false });
    const link = await linked();
    expect(await link.pod(asked('elsewhere'), signal)).toBeUndefined();
    expect(await link.pod(asked('another', 'uid-before'), signal)).toBeUndefined();
    expect(await link.pod(asked('none'), signal)).toBeUndefined();
    expect(await (await linked('node-2')).pod(asked('elsewhere'), signal)).toMatchObject({ hostUsers: false });
  });

  test('asks once for any number of volumes, and its token is reviewed once for several pods', async () => {
    for (let i = 0; i < 10; i++) pod(`p${i}`, 'node-1');
    const link = await linked();
    const reviewed = it.reviewed.length;
    const all = Array.from({ length: 30 }, (_, i) => link.pod(asked(`p${i % 10}`), signal));
    expect(await Promise.all(all)).toEqual(all.map((_, i) => ({ uid: `uid-p${i % 10}`, hostUsers: true })));
    await it.api.down();
    expect(await link.pod(asked('p3'), signal)).toEqual({ uid: 'uid-p3', hostUsers: true });
    expect([podsRead(), it.reviewed.length - reviewed]).toEqual([10, 1]);
  });

  test('is not delayed without a leader', async () => {
    const link = it.link({ api: (_, response) => response.end('{}') });
    expect(await link.pod(asked('any'), signal)).toBeUndefined();
  });
});
