import { setImmediate } from 'node:timers/promises';
import { describe, expect, test } from 'vitest';
import { createDirectoryClient, type DirectoryClientParts } from '#clients/kinds/directory.ts';
import { createNfsClient, type NfsClientParts } from '#clients/kinds/nfs.ts';
import { createNfsStoreKind } from '#stores/nfs/kind.ts';
import { aCall } from '#testing/core-calls.ts';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { createFakeEngine } from '#testing/fakes/container-engine.ts';
import { type ClientTable, createClients } from './clients.ts';
import type { ContainerEngine } from './containers.ts';
import type { Source, Volume } from './model.ts';
import { createRemappedUsers } from './remapped-users.ts';

const volume = { store: 'silver', name: 'photos' } as Volume;
const podman = '2f73349cfc4630255319c6c8dfc1b46a8996ace9d14d8e07563b165915918ec2';
const onNfs = (squash: 'none' | 'root' | 'all') => ({ kind: 'nfs', way: { squash } }) as Source;

interface CountingEngine extends ContainerEngine {
  times: number;
  answer: boolean | Error;
}

function engine(kind: 'docker' | 'podman', answer: boolean | Error): CountingEngine {
  const countingEngine: CountingEngine = {
    ...createFakeEngine(kind),
    times: 0,
    answer,
    remapsUsers: async () => {
      countingEngine.times++;
      if (countingEngine.answer instanceof Error) throw countingEngine.answer;
      return countingEngine.answer;
    },
  };
  return countingEngine;
}

const clients = createClients({
  directory: createDirectoryClient({} as DirectoryClientParts),
  nfs: createNfsClient({} as NfsClientParts),
} as unknown as ClientTable);

const kinds = new Map([['nfs', createNfsStoreKind()]]);

function createCheck(engines: readonly ContainerEngine[], source = onNfs('root')) {
  const clock = createFakeClock();
  const use = async (_name: string, work: (store: never, config: never) => Promise<unknown>) =>
    await work({ source: async () => source } as never, undefined as never);
  const users = createRemappedUsers({ engines, clients, stores: () => ({ use }) as never, kinds, clock });
  return {
    clock,
    look: () => users.refreshAnswers(aCall()),
    refuse: (id = 'a1b2') => users.refuseIfRemapped(volume, id, aCall()),
  };
}

describe('an engine that remaps users', () => {
  test('cannot mount volumes, and the error has an action', async () => {
    for (const source of [onNfs('none'), onNfs('root'), { kind: 'directory' } as Source])
      await expect(createCheck([engine('docker', true)], source).refuse()).rejects.toMatchObject({
        code: 'unsupported',
        reason: 'engine-remaps-users',
        message: "volume 'silver/photos' cannot be used by docker, which remaps users",
        action: expect.stringContaining('squash=all'),
      });
  });

  test('can mount volumes of a store that maps all users to one', async () => {
    await createCheck([engine('docker', true)], onNfs('all')).refuse();
  });

  test('is identified by its kind; with two engines of one kind, mounts are allowed', async () => {
    const { refuse } = createCheck([engine('docker', true), engine('podman', false)]);
    await refuse(podman);
    await expect(refuse()).rejects.toMatchObject({ reason: 'engine-remaps-users' });
    await createCheck([engine('docker', true), engine('docker', false)]).refuse();
    await createCheck([]).refuse();
  });

  test('is asked again after a while, and its last answer counts while it does not answer', async () => {
    const docker = engine('docker', true);
    const { clock, look, refuse } = createCheck([docker]);
    await look();
    await look();
    await expect(refuse()).rejects.toMatchObject({ reason: 'engine-remaps-users' });
    expect(docker.times).toBe(1);
    clock.advance(10_001);
    docker.answer = new Error('connect ECONNREFUSED');
    await look();
    await expect(refuse()).rejects.toMatchObject({ reason: 'engine-remaps-users' });
    expect(docker.times).toBe(2);
    docker.answer = false;
    clock.advance(1_001);
    await look();
    await refuse();
    expect(docker.times).toBe(3);
  });

  test('since its restart cannot mount from the next mount on', async () => {
    const docker = engine('docker', false);
    const { clock, refuse } = createCheck([docker]);
    await refuse();
    docker.answer = true;
    clock.advance(10_001);
    await expect(refuse()).rejects.toMatchObject({ reason: 'engine-remaps-users' });
  });

  test.each([
    ['docker', 'a1b2', 1_000],
    ['podman', podman, 200],
  ] as const)('of kind %s delays a mount only briefly if it does not answer during the mount', async (kind, id, ms) => {
    const silentEngine = engine(kind, false);
    const { promise, resolve } = Promise.withResolvers<boolean>();
    silentEngine.remapsUsers = () => promise;
    const { clock, look, refuse } = createCheck([silentEngine]);
    const endedMounts: string[] = [];
    const first = refuse(id).then(() => endedMounts.push('first'));
    clock.advance(ms - 1);
    // Both requests share one wait.
    const second = refuse(id).then(() => endedMounts.push('second'));
    await Promise.resolve();
    expect(endedMounts).toEqual([]);
    clock.advance(1);
    await Promise.all([first, second]);
    await refuse(id);
    resolve(true);
    await look();
    await expect(refuse(id)).rejects.toMatchObject({ reason: 'engine-remaps-users' });
  });

  test('cannot mount if it answers late but within the timeout', async () => {
    const docker = engine('docker', true);
    const { promise, resolve } = Promise.withResolvers<boolean>();
    docker.remapsUsers = () => promise;
    const { clock, refuse } = createCheck([docker]);
    const rejection = expect(refuse()).rejects.toMatchObject({ reason: 'engine-remaps-users' });
    clock.advance(900);
    await setImmediate();
    resolve(true);
    await rejection;
  });

  test('is asked again soon after it did not answer, and the failure does not count as an answer', async () => {
    const docker = engine('docker', new Error('connect ECONNREFUSED'));
    const { clock, refuse } = createCheck([docker]);
    await refuse();
    docker.answer = true;
    clock.advance(1_001);
    await expect(refuse()).rejects.toMatchObject({ reason: 'engine-remaps-users' });
  });
});
