import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, onTestFinished, test, vi } from 'vitest';
import { silentLog } from '#base/log.ts';
import type { Connection } from '#keeper/connection.ts';
import { listenForPeers } from '#keeper/listening-socket.ts';
import type { KeeperState } from '#keeper/protocol.ts';
import { lacks } from '#testbed/lacks.ts';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { settled } from '#testing/keeper/fake-children.ts';
import { eventually } from '#testing/keeper/keeper-process.ts';
import { createKeepers } from './keepers.ts';

// As if this process and the keeper ran in two containers.
vi.mock(import('#keeper/system-calls.ts'), async (original) => ({
  ...(await original()),
  killProcess: () => {
    throw new Error('pidfd_send_signal: EINVAL');
  },
}));

const unending = new AbortController().signal;
const idleState: KeeperState = {
  doing: 'idle',
  active: null,
  standby: null,
  mounts: 0,
  sockets: 0,
  takeovers: 0,
  deaths: 0,
  report: '',
  shares: false,
  isBorrowed: false,
};
const kind = { network: undefined, privilegedPorts: false };

describe.skipIf(lacks('linux'))('a keeper that hangs in another container', () => {
  test('makes callers fail at once with advice, until it answers again', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'stowage-reach-'));
    const clock = createFakeClock();
    const connections: Connection[] = [];
    let isAnswering = true;
    const server = listenForPeers({
      path: join(folder, 'host', 'sock'),
      clock,
      log: silentLog(),
      connected: (connection) => {
        connections.push(connection);
        connection.handle({
          accepts: ['hello', 'list', 'status'],
          message: (message) => {
            if (message.kind === 'hello' || !isAnswering) return;
            const { kind: asked, ask } = message;
            if (asked === 'list') connection.send({ kind: 'listed', ask, mounts: ['m'], more: false });
            else connection.send({ kind: 'state', ask, state: idleState });
          },
          closed: () => undefined,
        });
      },
    });
    const keepers = createKeepers({
      clock,
      log: silentLog(),
      folder,
      version: 'test',
      onMountsLost: () => undefined,
      onAbandoned: () => expect.fail(),
    });
    onTestFinished(async () => {
      server[Symbol.dispose]();
      for (const connection of connections) connection.close();
      await keepers[Symbol.asyncDispose]();
      rmSync(folder, { recursive: true });
    });
    const callKeeper = () => keepers.useHolder('m', kind, unending, async () => 'used');
    expect(await callKeeper()).toBe('used');
    isAnswering = false;
    // Checked after ten seconds, and once more; each check takes five.
    for (const ms of [10_000, 5_000, 5_000]) {
      clock.advance(ms);
      await settled();
    }
    const expectedError = {
      reason: 'data-path-unavailable',
      action: expect.stringContaining('Restart the container'),
    };
    await expect(callKeeper()).rejects.toMatchObject(expectedError);
    await expect(keepers.use(kind, unending, async () => 'used')).rejects.toMatchObject(expectedError);
    await expect(keepers.upgrade(unending)).rejects.toMatchObject(expectedError);
    isAnswering = true;
    clock.advance(10_000);
    await eventually(
      () => callKeeper().catch(() => ''),
      (said) => said === 'used',
    );
  });
});
