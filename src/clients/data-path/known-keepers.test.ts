import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, onTestFinished, test } from 'vitest';
import { silentLog } from '#base/log.ts';
import type { Connection } from '#keeper/connection.ts';
import { listenForPeers } from '#keeper/listening-socket.ts';
import type { KeeperState } from '#keeper/protocol.ts';
import { lacks } from '#testbed/lacks.ts';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { eventually } from '#testing/keeper/keeper-process.ts';
import type { AbandonedKeeper } from './keeper-termination.ts';
import { mountsOf } from './known-keeper.ts';
import { createKnownKeepers } from './known-keepers.ts';

const unending = new AbortController().signal;
const unservedState: KeeperState = {
  doing: 'taking over',
  active: null,
  standby: null,
  mounts: 1,
  sockets: 0,
  takeovers: 1,
  deaths: 1,
  report: '',
  shares: false,
  isBorrowed: false,
};

describe.skipIf(lacks('linux'))('known keepers', () => {
  test('a keeper that has just replaced another one gets the full timeout, however long its predecessor served nothing', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'stowage-known-'));
    const clock = createFakeClock();
    const socketOf = (name: string): string => join(folder, name, 'sock');
    const abandoned: AbandonedKeeper[] = [];
    const connections: Connection[] = [];
    const server = listenForPeers({
      path: socketOf('host'),
      clock,
      log: silentLog(),
      connected: (connection) => {
        connections.push(connection);
        connection.handle({
          accepts: ['hello', 'list', 'end'],
          message: (message) => {
            if (message.kind === 'hello') connection.send({ kind: 'state', ask: 0, state: unservedState });
            else if (message.kind === 'list')
              connection.send({ kind: 'listed', ask: message.ask, mounts: ['m'], more: false });
            else connection.send({ kind: 'done', ask: message.ask });
          },
          closed: () => undefined,
        });
      },
    });
    const known = createKnownKeepers({
      clock,
      folder,
      version: 'test',
      log: silentLog(),
      stuckMs: 2_000,
      keeperWaitMs: 1_000,
      onMountsLost: () => undefined,
      starter: {
        socketOf,
        start: () => expect.fail(),
        restart: () => expect.fail(),
        areExternal: false,
        user: async () => 0,
        createExternalFolder: () => expect.fail(),
        removeEndedContainers: () => expect.fail(),
        kill: () => expect.fail(),
        isMisplaced: () => expect.fail(),
      },
      onAbandoned: (what) => void abandoned.push(what),
    });
    onTestFinished(() => {
      for (const disposable of [known, server]) disposable[Symbol.dispose]();
      for (const connection of connections) connection.close();
      rmSync(folder, { recursive: true });
    });
    const keeper = known.getOrCreate('host');
    const waitForUnservedSince = (at: number) =>
      eventually(
        () => keeper.unservedSince,
        (found) => found === at,
      );
    const previousClient = await known.connect(keeper);
    await waitForUnservedSince(0);
    clock.advance(1_999);
    // As during an upgrade.
    known.forget(keeper);
    previousClient?.[Symbol.dispose]();
    await known.connect(keeper);
    await waitForUnservedSince(1_999);
    clock.advance(1_001);
    expect([known.isStuck(keeper), await mountsOf(keeper, clock, unending)]).toEqual([false, ['m']]);
    expect(abandoned).toEqual([]);
    // The keeper recovers for a moment, which restarts the timeout.
    for (const state of [{ ...unservedState, mounts: 0 }, unservedState])
      connections.at(-1)?.send({ kind: 'state', ask: 0, state });
    await waitForUnservedSince(3_000);
    clock.advance(2_500);
    // Ending a keeper takes two requests.
    for (let request = 0; request < 3; request++) await mountsOf(keeper, clock, unending);
    expect([known.isStuck(keeper), abandoned]).toEqual([true, []]);
    clock.advance(500);
    await eventually(
      () => abandoned,
      ([first]) => first?.why === 'no data path serves the mounts',
    );
  });
});
