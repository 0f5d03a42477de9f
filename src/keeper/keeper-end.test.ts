import { expect, test } from 'vitest';
import { createMemory } from '#base/linux/shared-memory.ts';
import { silentLog } from '#base/log.ts';
import { lacks } from '#testbed/lacks.ts';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { createFakeChildren, settled } from '#testing/keeper/fake-children.ts';
import { createKeeper } from './keeper.ts';

test.skipIf(lacks('linux'))('a keeper stops accepting connections before it reports its end', async () => {
  const [dataPaths, agents] = [createFakeChildren(), createFakeChildren()];
  const { connection } = agents.start('agent');
  const [dataPath, agent] = [() => dataPaths.all[0] ?? expect.fail(), agents.all[0] ?? expect.fail()];
  const isEndAcknowledged = (): boolean => agent.sent.some(({ kind }) => kind === 'done');
  const closed: { readonly wasTold: boolean }[] = [];
  const keeper = createKeeper({
    clock: createFakeClock(),
    log: silentLog(),
    path: '/keeper',
    program: 'program',
    start: dataPaths.start,
    createJournal: () => createMemory('test', 4096),
    processOf: () => expect.fail(),
    isServed: () => false,
    replacesForeignDataPath: false,
    predecessor: undefined,
    publishSocket: () => undefined,
    signal: new AbortController().signal,
    stopListening: () => void closed.push({ wasTold: isEndAcknowledged() }),
  });
  keeper.accept(connection);
  agent.says({ kind: 'hello', role: 'agent', pid: 1, version: 'test' });
  agent.says({ kind: 'end', ask: 1 });
  await settled();
  // The keeper waits for the end of its data path first.
  expect([dataPath().isEnding, isEndAcknowledged(), closed]).toEqual([true, false, []]);
  await dataPath().dies();
  expect(await keeper.outcome).toBe('ended');
  expect([isEndAcknowledged(), closed]).toEqual([true, [{ wasTold: false }]]);
});
