import { mkdirSync, readFileSync } from 'node:fs';
import { dirname } from 'node:path';
import { describe, expect, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { lacks } from '#testbed/lacks.ts';
import { createKeeperFixture, eventually } from '#testing/keeper/keeper-process.ts';
import { type Launch, launchProcess } from './launch.ts';

describe.skipIf(lacks('linux', 'root'))('starting a keeper', () => {
  test('keeps it running if the start is aborted after it took charge', { timeout: 60_000 }, async () => {
    await using scratch = createKeeperFixture();
    const first = await scratch.startKeeper();
    const client = scratch.client();
    await scratch.adopt(client, 'm');
    const clock = {
      ...systemClock(),
      // Between two checks it takes charge, and the caller aborts.
      sleep: async () => {
        await first.ended;
        await eventually(
          () => scratch.log().match(/"this keeper is in charge"/g)?.length,
          (count) => count === 2,
        );
        throw new Error('the caller no longer waits');
      },
    };
    const second = await scratch.startKeeper({ clock });
    expect(readFileSync(`/proc/${second.pid}/stat`, 'utf8')).not.toContain(') Z ');
    expect(await scratch.client().status(scratch.signal)).toMatchObject({ mounts: 1 });
  });

  test('recognizes an invisible keeper by the socket that it publishes', { timeout: 60_000 }, async () => {
    await using scratch = createKeeperFixture();
    const first = await scratch.startKeeper();
    const client = scratch.client();
    await scratch.adopt(client, 'm');
    const launchInvisible: Launch = async (...how) => ({ ...(await launchProcess(...how)), pid: undefined });
    expect((await scratch.startKeeper({ launch: launchInvisible })).pid).toBe(0);
    // It publishes the socket before it reports that.
    await eventually(
      () => scratch.log().match(/"this keeper is in charge"/g)?.length,
      (count) => count === 2,
    );
    // The previous keeper has handed over and is exiting.
    await first.ended;
    const next = scratch.client();
    expect(await next.status(scratch.signal)).toMatchObject({ mounts: 1 });
    // No other process knows its pid.
    await next.end(scratch.signal);
  });

  test('reports an invisible keeper that exits at once', async () => {
    await using scratch = createKeeperFixture();
    await scratch.startKeeper();
    const launchFailing: Launch = async () => ({
      pid: undefined,
      ended: Promise.resolve(2),
      kill: async () => undefined,
    });
    await expect(scratch.startKeeper({ launch: launchFailing })).rejects.toMatchObject({ reason: 'out-of-reach' });
    expect(await scratch.client().status(scratch.signal)).toMatchObject({ mounts: 0 });
  });

  test('reports the exit status, and the log has the reason', { timeout: 60_000 }, async () => {
    await using scratch = createKeeperFixture();
    mkdirSync(dirname(scratch.socket), { mode: 0o755 });
    await expect(scratch.startKeeper()).rejects.toThrow(
      `the keeper exited while starting (exit status 1): see ${scratch.folder}/log`,
    );
    expect(scratch.log()).toContain(
      `${dirname(scratch.socket)} must be a directory that belongs to this user and is closed to all others`,
    );
  });

  test('reports the signal that killed the keeper', { timeout: 60_000 }, async () => {
    await using scratch = createKeeperFixture();
    const enter = ['sh', '-c', 'kill -SEGV $$'];
    await expect(scratch.startKeeper({ enter })).rejects.toThrow(
      `the keeper exited while starting (SIGSEGV): see ${scratch.folder}/log`,
    );
  });
});
