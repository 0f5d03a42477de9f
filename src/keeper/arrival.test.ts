import { describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { createMemory } from '#base/linux/memory.ts';
import { socketPair } from '#base/linux/socket-pair.ts';
import { needs } from '#testbed/needs.ts';
import { eventually } from '#testing/keeper/keeper-process.ts';
import { type Arrival, receiveDataPath } from './arrival.ts';
import { createEstate, sendEstate } from './estate.ts';
import { createLine } from './line.ts';
import type { Message } from './protocol.ts';

const clock = systemClock();

describe.skipIf(needs('linux'))('a data path that comes from another keeper', () => {
  /** It has two mounts, and has given them. */
  async function arrived() {
    const [here, there] = socketPair();
    const [line, its] = [createLine(here, clock), createLine(there, clock)];
    const arrivals: Arrival[] = [];
    const told: Message[] = [];
    const child = { line, end: async () => undefined, isDying: () => false, forget: () => undefined };
    receiveDataPath({ child, about: { pid: 1, version: 'test' }, clock, offered: (one) => arrivals.push(one) });
    its.handle({
      accepts: ['remove', 'welcome'],
      message: (message) => void told.push(message),
      closed: (why) => void told.push({ kind: 'report', text: why }),
    });
    using estate = createEstate(createMemory('test', 4096));
    for (const id of ['a', 'b']) estate.addMount({ id, spec: {}, fd: createMemory('test', 4096) });
    sendEstate(its, estate, 'everything');
    const [arrival] = await eventually(
      () => arrivals,
      (all) => all.length === 1,
    );
    if (arrival === undefined) throw new Error('it has not come');
    onTestFinished(() => {
      for (const each of [line, its]) each.close();
      arrival.estate[Symbol.dispose]();
    });
    return { arrival, its, told };
  }

  test.each([{ unserved: false }, { unserved: true }])(
    'and says that a mount is over before anybody is in charge: $unserved',
    async ({ unserved }) => {
      const { arrival, its, told } = await arrived();
      its.send({ kind: 'ended', mount: 'a', unserved });
      await eventually(
        () => told,
        (all) => all.length > 0,
      );
      expect(told).toEqual([{ v: 1, kind: 'remove', mount: 'a' }]);
      expect([...arrival.estate.mounts.keys()]).toEqual(['b']);
      expect(arrival.isLost).toBe(false);
      // The keeper before has had it removed as well, or has not.
      its.send({ kind: 'ended', mount: 'a', unserved });
      arrival.welcome();
      its.send({ kind: 'ended', mount: 'b', unserved });
      await eventually(
        () => told,
        (all) => all.length === 3,
      );
      expect(told.slice(1)).toMatchObject([{ kind: 'welcome' }, { kind: 'remove', mount: 'b' }]);
    },
  );
});
