import { describe, expect, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { silentLog } from '#base/log.ts';
import { eventually } from '#testing/controlled.ts';
import { doorNamespace, doors, type OpenedDoor } from '#testing/door.ts';
import { nothingHere } from './door.ts';
import type { ControllerLink } from './link.ts';
import { audiences } from './names.ts';
import { answeringPods } from './pod-questions.ts';
import { createReviews } from './reviews.ts';

const it = doors();
const { signal } = new AbortController();

async function open(): Promise<OpenedDoor> {
  const clock = systemClock();
  const reviews = createReviews({ client: it.client, clock, audience: audiences.agents });
  const about = { client: it.client, clock, reviews, namespace: doorNamespace, log: silentLog(), signal };
  return await it.open({ handle: answeringPods(about, nothingHere) });
}

async function linked(node = 'node-1'): Promise<ControllerLink> {
  it.lead(await open());
  const link = it.link({ node, socket: await it.serve((_, response) => response.end('{}')) });
  await eventually(() => link.isConnected).toBe(true);
  return link;
}

const pod = (name: string, nodeName: string, more: object = {}): unknown =>
  it.api.put('/api/v1/namespaces/team/pods', {
    metadata: { name, namespace: 'team' },
    spec: { nodeName, ...more },
  } as never);

describe('an agent that asks about a pod', () => {
  test('is told whether it has users of its own', async () => {
    pod('plain', 'node-1');
    pod('own', 'node-1', { hostUsers: false });
    const link = await linked();
    expect(await link.pod('team', 'plain', signal)).toEqual({ uid: expect.any(String), hostUsers: true });
    expect(await link.pod('team', 'own', signal)).toEqual({ uid: expect.any(String), hostUsers: false });
  });

  test('is told nothing of pods of other nodes, or of those that are not there', async () => {
    pod('elsewhere', 'node-2', { hostUsers: false });
    const link = await linked();
    expect(await link.pod('team', 'elsewhere', signal)).toBeUndefined();
    expect(await link.pod('team', 'none', signal)).toBeUndefined();
    expect(await (await linked('node-2')).pod('team', 'elsewhere', signal)).toMatchObject({ hostUsers: false });
  });

  test('is not kept when nobody leads', async () => {
    const link = it.link({ socket: await it.serve((_, response) => response.end('{}')) });
    expect(await link.pod('team', 'any', signal)).toBeUndefined();
  });
});
