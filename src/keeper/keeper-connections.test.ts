import { setImmediate as turn } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { silentLog } from '#base/log.ts';
import { createFakeClock } from '#testing/fakes/clock.ts';
import type { Connection } from './connection.ts';
import type { HeldDescriptors, HeldMount } from './held-descriptors.ts';
import { createKeeperConnections } from './keeper-connections.ts';

/** A data path whose keeper has just died and that finds no other one. */
function alone(mounts: Map<string, HeldMount>) {
  const clock = createFakeClock();
  let abandoned = 0;
  let lose: ((why: string) => void) | undefined;
  const keepers = createKeeperConnections({
    clock,
    log: silentLog(),
    version: 'v',
    signal: new AbortController().signal,
    path: () => '/nowhere/sock',
    held: () => ({ mounts }) as unknown as HeldDescriptors,
    handleMessages: (_line, closed) => {
      lose = closed;
    },
    abandoned: () => {
      abandoned++;
      keepers.close();
    },
  });
  keepers.begin({ send: () => undefined, close: () => undefined } as unknown as Connection);
  lose?.('killed');
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
  const it = alone(new Map());
  await it.pass(59_000);
  expect(it.abandoned()).toBe(0);
  await it.pass(3_000);
  expect(it.abandoned()).toBe(1);
});

test('a data path with mounts keeps looking for a keeper, and a minute longer', async () => {
  const mounts = new Map([['sv1-a', mount]]);
  const it = alone(mounts);
  await it.pass(120_000);
  expect(it.abandoned()).toBe(0);
  mounts.clear();
  await it.pass(59_000);
  expect(it.abandoned()).toBe(0);
  await it.pass(3_000);
  expect(it.abandoned()).toBe(1);
});
