import { mkdirSync, readFileSync } from 'node:fs';
import { dirname } from 'node:path';
import { describe, expect, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { needs } from '#testbed/needs.ts';
import { createKeeperFixture, eventually } from '#testing/keeper/keeper-process.ts';
import { type Launch, launchProcess } from './launch.ts';

describe.skipIf(needs('linux', 'root'))('starting a keeper', () => {
  test('keeps it running if the start is aborted after it took charge', { timeout: 60_000 }, async () => {
    await using ground = createKeeperFixture();
    const first = await ground.startKeeper();
    const client = ground.client();
    await ground.adopt(client, 'm');
    const clock = {
      ...systemClock(),
      // Between two checks it takes charge, and the caller aborts.
      sleep: async () => {
        await first.ended;
        await eventually(
          () => ground.log().match(/"this keeper is in charge"/g)?.length,
          (count) => count === 2,
        );
        throw new Error('the caller no longer waits');
      },
    };
    const second = await ground.startKeeper({ clock });
    expect(readFileSync(`/proc/${second.pid}/stat`, 'utf8')).not.toContain(') Z ');
    expect(await ground.client().status(ground.signal)).toMatchObject({ mounts: 1 });
  });

  test('recognizes an invisible keeper by the socket that it publishes', { timeout: 60_000 }, async () => {
    await using ground = createKeeperFixture();
    const first = await ground.startKeeper();
    const client = ground.client();
    await ground.adopt(client, 'm');
    const hidden: Launch = async (...how) => ({ ...(await launchProcess(...how)), pid: undefined });
    expect((await ground.startKeeper({ launch: hidden })).pid).toBe(0);
    // It publishes the socket before it reports that.
    await eventually(
      () => ground.log().match(/"this keeper is in charge"/g)?.length,
      (count) => count === 2,
    );
    // The previous keeper has handed over and is exiting.
    await first.ended;
    const next = ground.client();
    expect(await next.status(ground.signal)).toMatchObject({ mounts: 1 });
    // No other process knows its pid.
    await next.end(ground.signal);
  });

  test('reports an invisible keeper that exits at once', async () => {
    await using ground = createKeeperFixture();
    await ground.startKeeper();
    const broken: Launch = async () => ({ pid: undefined, ended: Promise.resolve(2), kill: async () => undefined });
    await expect(ground.startKeeper({ launch: broken })).rejects.toMatchObject({ reason: 'out-of-reach' });
    expect(await ground.client().status(ground.signal)).toMatchObject({ mounts: 0 });
  });

  test('reports the exit status, and the log has the reason', { timeout: 60_000 }, async () => {
    await using ground = createKeeperFixture();
    mkdirSync(dirname(ground.socket), { mode: 0o755 });
    await expect(ground.startKeeper()).rejects.toThrow(
      `the keeper exited while starting (exit status 1): see ${ground.folder}/log`,
    );
    expect(ground.log()).toContain(
      `${dirname(ground.socket)} must be a directory that belongs to this user and is closed to all others`,
    );
  });

  test('reports the signal that killed the keeper', { timeout: 60_000 }, async () => {
    await using ground = createKeeperFixture();
    const enter = ['sh', '-c', 'kill -SEGV $$'];
    await expect(ground.startKeeper({ enter })).rejects.toThrow(
      `the keeper exited while starting (SIGSEGV): see ${ground.folder}/log`,
    );
  });
});
