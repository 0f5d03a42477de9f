import { mkdtempSync, openSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { silentLog } from '#base/log.ts';
import { createDescriptorCopies } from '#keeper/descriptor-copies.ts';
import { connectKeeper } from '#keeper/keeper-client.ts';
import { listenForPeers } from '#keeper/listening-socket.ts';
import type { KeeperState, Kind } from '#keeper/protocol.ts';
import { lacks } from '#testbed/lacks.ts';
import { shareDescriptors } from './descriptor-sharing.ts';

const clock = systemClock();
const { signal } = new AbortController();

/** The state of a keeper from before descriptor copies existed. */
const olderState = {
  doing: 'idle',
  active: null,
  standby: null,
  mounts: 0,
  sockets: 0,
  takeovers: 0,
  deaths: 0,
  report: '',
} as unknown as KeeperState;

test.skipIf(lacks('linux'))('a keeper of an older version is used without descriptor copies', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'stowage-older-'));
  const path = join(folder, 'own', 'sock');
  const receivedKinds: Kind[] = [];
  const server = listenForPeers({
    path,
    clock,
    log: silentLog(),
    connected: (connection) =>
      connection.handle({
        accepts: ['hello', 'status', 'list'],
        message: (message) => {
          receivedKinds.push(message.kind);
          if (message.kind === 'status') connection.send({ kind: 'state', ask: message.ask, state: olderState });
          if (message.kind === 'list') connection.send({ kind: 'listed', ask: message.ask, mounts: [], more: false });
        },
        closed: () => undefined,
      }),
  });
  const copies = createDescriptorCopies();
  const clientOptions = { path, user: process.getuid?.() ?? 0, clock, version: 'test', copies };
  const client = connectKeeper({ ...clientOptions, changed: () => undefined, closed: () => undefined });
  onTestFinished(() => {
    client[Symbol.dispose]();
    server[Symbol.dispose]();
    rmSync(folder, { recursive: true });
  });
  const fds = [openSync('/dev/null', 'r'), openSync('/dev/null', 'r')];
  copies.take({ kind: 'everything', mounts: 1, sockets: 0 }, [fds[0] ?? -1]);
  copies.take({ kind: 'add', mounts: [{ mount: 'm', spec: {} }] }, [fds[1] ?? -1]);
  expect(copies.mounts).toEqual(['m']);
  await shareDescriptors(client, copies, { keeper: 'host', log: silentLog() }, signal);
  expect(copies.mounts).toEqual([]);
  // The connection is still open: the keeper got no request that it does not know.
  expect(await client.list(signal)).toEqual([]);
  expect(receivedKinds).toEqual(['hello', 'status', 'list']);
});
