import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { beforeEach, describe, expect, test } from 'vitest';
import { silentLog } from '#base/log.ts';
import { StowageError } from '#core/errors.ts';
import type { Volume } from '#core/model.ts';
import { type AgentNode, anAgentNode } from '#testing/agent-nodes.ts';
import { controllerFixture } from '#testing/controller-fixture.ts';
import { aCall } from '#testing/core-calls.ts';
import { type AgentVolumes, createAgentVolumes } from './agent-volumes.ts';
import { retainedLabel } from './provisioner.ts';

const fixture = controllerFixture();
const scope = { signal: new AbortController().signal, log: silentLog() };
const gib = 1024n ** 3n;

let node: AgentNode;
let agent: AgentVolumes;
beforeEach(async () => {
  node = await anAgentNode(fixture, 'node-1', '?onDelete=archive&retention=7d');
  agent = createAgentVolumes(fixture.agents, 'cluster');
});

const create = (name: string): Promise<Volume> =>
  node.server.core.volumes.create(
    { store: 'disks', name, bytes: gib, access: undefined, labels: {}, ownLabels: {} },
    aCall(),
  );
const restore = (id: string): Promise<Volume> => node.server.core.deletions.restore(id, undefined, () => true, aCall());
const volumeNames = async (): Promise<readonly string[]> => (await node.volumes()).map(({ name }) => name);
const folderExists = (name: string): boolean => existsSync(join(node.server.folder, 'disks', name));

/** Loses the answer to the next request, which the agent carries out. */
function loseNextAnswer(): void {
  node.connect();
  const { answer } = node;
  fixture.agents.connect('node-1', async (request) => {
    await answer(request);
    node.connect();
    throw new StowageError('the connection was lost', {
      code: 'unavailable',
      reason: 'agent-lost',
      action: 'Wait a moment.',
    });
  });
}

describe('an agent that gets a request to delete', () => {
  test('deletes a volume a second time after it was restored', async () => {
    const { id } = await create('a');
    for (const _ of ['first', 'second', 'third']) {
      expect(await agent.delete('node-1', id, 'uid-of-pv', scope)).toBe('done');
      expect([await volumeNames(), folderExists('a')]).toEqual([[], false]);
      await restore(id);
      expect([await volumeNames(), folderExists('a')]).toEqual([['a'], true]);
    }
  });

  test('deletes another volume of that name for another PersistentVolume', async () => {
    for (const uid of ['uid-1', 'uid-2', undefined, undefined]) {
      await create('a');
      expect(await agent.delete('node-1', 'disks..a', uid, scope)).toBe('done');
      expect([await volumeNames(), folderExists('a')]).toEqual([[], false]);
    }
  });

  test('does not delete another volume of that name when a request is repeated after its answer was lost', async () => {
    await create('a');
    loseNextAnswer();
    const remove = () => agent.delete('node-1', 'disks..a', 'uid-1', scope);
    await expect(remove()).rejects.toMatchObject({ reason: 'agent-lost' });
    const { id } = await create('a');
    expect(await remove()).toBe('done');
    expect(await node.volumes()).toMatchObject([{ id }]);
  });

  test('returns that the volume is unknown when the request is repeated after its answer was lost', async () => {
    const { id } = await create('a');
    loseNextAnswer();
    await expect(agent.delete('node-1', id, 'uid-of-pv', scope)).rejects.toMatchObject({ reason: 'agent-lost' });
    expect(await volumeNames()).toEqual([]);
    expect(await agent.delete('node-1', id, 'uid-of-pv', scope)).toBe('unknown');
  });

  test('deletes the volume once when it gets two requests at the same time', async () => {
    const { id } = await create('a');
    const outcomes = await Promise.all([
      agent.delete('node-1', id, 'uid-of-pv', scope),
      agent.delete('node-1', id, 'uid-of-pv', scope),
    ]);
    expect(outcomes.toSorted()).toEqual(['done', 'unknown']);
    expect(await node.server.core.deletions.trashOf('disks', aCall())).toHaveLength(1);
  });

  test('discards an empty volume whose handle belonged to another volume before', async () => {
    for (const _ of ['first', 'second']) {
      await create('a');
      await agent.discard('node-1', 'disks..a', scope);
      expect(await volumeNames()).toEqual([]);
    }
    await expect(agent.discard('node-1', 'disks..a', scope)).rejects.toMatchObject({ reason: 'volume-unknown' });
  });
});

test('an agent expands the volume that has the handle now, after another volume had it', async () => {
  for (const _ of ['first', 'second']) {
    const { id } = await create('a');
    expect(await agent.expand('node-1', 'disks..a', 2n * gib, scope)).toBe(2n * gib);
    expect(await node.volumes()).toMatchObject([{ id, bytes: 2n * gib }]);
    await agent.delete('node-1', 'disks..a', undefined, scope);
  }
});

test('an agent labels the volume that has the handle now, after another volume had it', async () => {
  for (const _ of ['first', 'second']) {
    const { id } = await create('a');
    await agent.retain('node-1', 'disks..a', scope);
    expect(await node.volumes()).toMatchObject([{ id, labels: { [retainedLabel]: 'true' } }]);
    await agent.delete('node-1', 'disks..a', undefined, scope);
  }
});

test('an agent creates no second volume when a request is repeated after its answer was lost', async () => {
  const claim = { namespace: 'shop', name: 'data', uid: 'uid-of-data' };
  const request = { claim, name: 'a', bytes: gib, access: 'filesystem', labels: {}, enforce: false } as never;
  loseNextAnswer();
  await expect(agent.create('node-1', 'disks', request, scope)).rejects.toMatchObject({ reason: 'agent-lost' });
  const [volume] = await node.volumes();
  expect((await agent.create('node-1', 'disks', request, scope)).volume.id).toBe(volume?.id);
  expect(await volumeNames()).toEqual(['a']);
});
