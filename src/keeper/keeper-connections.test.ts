import { setImmediate as turn } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { silentLog } from '#base/log.ts';
import { createFakeClock } from '#testing/fakes/clock.ts';
import type { Connection } from './connection.ts';
import type { HeldDescriptors, HeldMount } from './held-descriptors.ts';
import { createKeeperConnections } from './keeper-connections.ts';

/** A data path whose keeper has just died and that finds no other one. */
function createDisconnected(mounts: Map<string, HeldMount>) {
  const clock = createFakeClock();
  let abandoned = 0;
  let disconnect: ((why: string) => void) | undefined;
  const keepers = createKeeperConnections({
    clock,
    log: silentLog(),
    version: 'v',
    signal: new AbortController().signal,
    path: () => '/nowhere/sock',
    held: () => ({ mounts }) as unknown as HeldDescriptors,
    handleMessages: (_line, closed) => {
      disconnect = closed;
    },
    abandoned: () => {
      abandoned++;
      keepers.close();
    },
  });
  keepers.begin({ send: () => undefined, close: () => undefined } as unknown as Connection);
  disconnect?.('killed');
  return {
    abandoned: () => abandoned,
    pass: async (ms: number) => {
      for (let left = ms; left > 0; left -= 100) {
        clock.advance(100);
        await turn();
      }
    },
  };
}

const mount: HeldMount = { id: 'sv1-a', spec: {}, fd: -1 };

test('a data path without mounts exits a minute after its keeper is gone', async () => {
  const fixture = createDisconnected(new Map());
  await fixture.pass(59_000);
  expect(fixture.abandoned()).toBe(0);
  await fixture.pass(3_000);
  expect(fixture.abandoned()).toBe(1);
});

test('a data path with mounts keeps looking for a keeper, until a minute after its last mount is gone', async () => {
  const mounts = new Map([['sv1-a', mount]]);
  const fixture = createDisconnected(mounts);
  await fixture.pass(120_000);
  expect(fixture.abandoned()).toBe(0);
  mounts.clear();
  await fixture.pass(59_000);
  expect(fixture.abandoned()).toBe(0);
  await fixture.pass(3_000);
  expect(fixture.abandoned()).toBe(1);
});
