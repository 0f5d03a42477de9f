import { readdirSync, readlinkSync } from 'node:fs';
import { createServer, type Socket } from 'node:net';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { lacks } from '#testbed/lacks.ts';
import { createKeeperFixture, eventually, type KeeperFixture } from '#testing/keeper/keeper-process.ts';
import { suspend } from '#testing/suspend.ts';
import { createDescriptorCopies, type DescriptorCopies } from './descriptor-copies.ts';
import { connectKeeper, type KeeperClient } from './keeper-client.ts';

const clock = systemClock();

describe.skipIf(lacks('linux', 'root'))("an agent with copies of the keeper's descriptors", () => {
  let scratch: KeeperFixture;
  let copies: DescriptorCopies;

  beforeEach(() => {
    scratch = createKeeperFixture();
    copies = createDescriptorCopies();
  });
  afterEach(async () => {
    copies[Symbol.dispose]();
    await scratch[Symbol.asyncDispose]();
  });

  function connect(copiesOfClient: DescriptorCopies = copies): KeeperClient {
    const client = connectKeeper({
      path: scratch.socket,
      user: 0,
      clock,
      version: 'test',
      copies: copiesOfClient,
      changed: () => undefined,
      closed: () => undefined,
    });
    onTestFinished(() => client[Symbol.dispose]());
    return client;
  }

  async function connectAndShare(): Promise<KeeperClient> {
    const client = connect();
    expect(await client.status(scratch.signal)).toMatchObject({ shares: true });
    await client.share(scratch.signal);
    return client;
  }

  const everything = () => copies.held ?? expect.fail('nothing is held');
  const waitUntilServing = (client: KeeperClient) =>
    eventually(
      () => client.status(scratch.signal),
      ({ active }) => active?.ready === true,
    );
  const descriptorTargets = (pid: number | 'self'): readonly string[] =>
    readdirSync(`/proc/${pid}/fd`).flatMap((fd) => {
      try {
        return [readlinkSync(`/proc/${pid}/fd/${fd}`)];
      } catch {
        return [];
      }
    });

  test('receives every change, and closes what is dropped', async () => {
    await scratch.startKeeper();
    const { promise: connected, resolve } = Promise.withResolvers<Socket>();
    const server = createServer(resolve).listen(0, '127.0.0.1');
    onTestFinished(() => void server.close());
    await eventually(
      () => server.listening,
      (isSo) => isSo,
    );
    const address = server.address();
    const port = typeof address === 'object' ? (address?.port ?? 0) : 0;
    scratch.behave({ connectsToPort: port });
    const before = scratch.client();
    await scratch.adopt(before, 'early');
    await waitUntilServing(before);
    const client = await connectAndShare();
    expect(copies.mounts).toEqual(['early']);
    await scratch.adopt(client, 'late', { secret: 'spec' });
    expect(copies.mounts).toEqual(['early', 'late']);
    expect(everything().mounts.get('late')?.spec).toEqual({ secret: 'spec' });
    await client.drop('early', scratch.signal);
    expect(copies.mounts).toEqual(['late']);
    expect(descriptorTargets('self').filter((name) => name === join(scratch.folder, 'early'))).toEqual([]);
    (await connected).destroy();
    await eventually(
      () => everything().sockets.size,
      (count) => count === 1,
    );
    copies.drop();
    await scratch.adopt(client, 'unheard');
    expect(copies.mounts).toEqual([]);
    const kept = descriptorTargets('self').filter((name) => name.startsWith(scratch.folder));
    expect(kept.filter((name) => !name.endsWith('.sock'))).toEqual([]);
  });

  test('restores them into the next keeper, which continues with the same journal', async () => {
    const keeper = await scratch.startKeeper();
    const client = await connectAndShare();
    await scratch.adopt(client, 'm');
    const { active, standby } = await eventually(
      () => client.status(scratch.signal),
      (state) => state.active?.ready === true && state.standby !== null,
    );
    // Like the end of a container.
    for (const pid of [keeper.pid, active?.pid ?? 0, standby?.pid ?? 0]) process.kill(pid, 'SIGKILL');
    await keeper.ended;
    await scratch.startKeeper();
    const next = connect();
    await next.restore(everything(), scratch.signal);
    expect(await scratch.recordAfter('m', 2)).toMatchObject({ as: 'successor', served: 2 });
    await next.share(scratch.signal);
    expect(copies.mounts).toEqual(['m']);
  });

  test('does not restore them into a keeper with mounts, or while a data path serves them', {
    timeout: 60_000,
  }, async () => {
    const keeper = await scratch.startKeeper();
    const client = await connectAndShare();
    await scratch.adopt(client, 'm');
    const { active } = await waitUntilServing(client);
    const pid = active?.pid ?? 0;
    const occupied = { reason: 'occupied' };
    await expect(client.restore(everything(), scratch.signal)).rejects.toMatchObject(occupied);
    await suspend(pid);
    process.kill(keeper.pid, 'SIGKILL');
    await keeper.ended;
    const second = await scratch.startKeeper();
    const next = connect(createDescriptorCopies());
    await expect(next.restore(everything(), scratch.signal)).rejects.toMatchObject({ reason: 'served' });
    // A keeper that refused it keeps nothing.
    expect(descriptorTargets(second.pid).filter((name) => name === join(scratch.folder, 'm'))).toEqual([]);
    process.kill(pid, 'SIGCONT');
    const after = await eventually(
      () => next.status(scratch.signal),
      ({ mounts }) => mounts === 1,
    );
    expect(after.active?.pid).toBe(pid);
    expect(scratch.recordsOf('m')).toHaveLength(1);
  });
});
