import { setImmediate as turn } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { silentLog } from '#base/log.ts';
import { createFakeClock } from '#testing/fakes/clock.ts';
import type { Estate, HeldMount } from './estate.ts';
import type { Line } from './line.ts';
import { createReconnecting } from './reconnecting.ts';

/** A data path whose keeper has just died, and that finds no other. */
function alone(mounts: Map<string, HeldMount>) {
  const clock = createFakeClock();
  let deserted = 0;
  let lose: ((why: string) => void) | undefined;
  const keepers = createReconnecting({
    ...{ clock, log: silentLog(), version: 'v', signal: new AbortController().signal },
    path: () => '/nowhere/sock',
    estate: () => ({ mounts }) as unknown as Estate,
    attend: (_line, closed) => {
      lose = closed;
    },
    deserted: () => {
      deserted++;
      keepers.close();
    },
  });
  keepers.begin({ send: () => undefined, close: () => undefined } as unknown as Line);
  lose?.('killed');
  return {
    deserted: () => deserted,
    pass: async (ms: number) => {
      for (let left = ms; left > 0; left -= 100) {
        clock.advance(100);
        await turn();
      }
    },
  };
}

const mount: HeldMount = { id: 'sv1-a', spec: {}, fd: -1 };

test('it ends when it has had nothing to serve for a minute', async () => {
  const it = alone(new Map());
  await it.pass(59_000);
  expect(it.deserted()).toBe(0);
  await it.pass(3_000);
  expect(it.deserted()).toBe(1);
});

test('as long as it serves it goes on, and a minute more', async () => {
  const mounts = new Map([['sv1-a', mount]]);
  const it = alone(mounts);
  await it.pass(120_000);
  expect(it.deserted()).toBe(0);
  mounts.clear();
  await it.pass(59_000);
  expect(it.deserted()).toBe(0);
  await it.pass(3_000);
  expect(it.deserted()).toBe(1);
});
