import { describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { createMemory } from '#base/linux/shared-memory.ts';
import { socketPair } from '#base/linux/socket-pair.ts';
import { lacks } from '#testbed/lacks.ts';
import { eventually } from '#testing/keeper/keeper-process.ts';
import { createConnection } from './connection.ts';
import { createHeldDescriptors, sendHeldDescriptors } from './held-descriptors.ts';
import type { Message } from './protocol.ts';
import { receiveTransfer, type TransferredDataPath } from './transferred-data-path.ts';

const clock = systemClock();

describe.skipIf(lacks('linux'))('a data path transferred from another keeper', () => {
  /** It has two mounts and has transferred them. */
  async function transferTwoMounts() {
    const [ownEnd, peerEnd] = socketPair();
    const [connection, peer] = [createConnection(ownEnd, clock), createConnection(peerEnd, clock)];
    const arrivals: TransferredDataPath[] = [];
    const receivedMessages: Message[] = [];
    const child = { connection, end: async () => undefined, isDying: () => false, forget: () => undefined };
    receiveTransfer({ child, info: { pid: 1, version: 'test' }, clock, offered: (one) => arrivals.push(one) });
    peer.handle({
      accepts: ['remove', 'welcome'],
      message: (message) => void receivedMessages.push(message),
      closed: (why) => void receivedMessages.push({ kind: 'report', text: why }),
    });
    using held = createHeldDescriptors(createMemory('test', 4096));
    for (const id of ['a', 'b']) held.addMount({ id, spec: {}, fd: createMemory('test', 4096) });
    sendHeldDescriptors(peer, held, 'everything');
    const [transferred] = await eventually(
      () => arrivals,
      (all) => all.length === 1,
    );
    if (transferred === undefined) throw new Error('it has not come');
    onTestFinished(() => {
      for (const each of [connection, peer]) each.close();
      transferred.held[Symbol.dispose]();
    });
    return { transferred, its: peer, told: receivedMessages };
  }

  test.each([{ unserved: false }, { unserved: true }])(
    'reports an ended mount before any keeper is in charge: $unserved',
    async ({ unserved }) => {
      const { transferred, its, told } = await transferTwoMounts();
      its.send({ kind: 'ended', mount: 'a', unserved });
      await eventually(
        () => told,
        (all) => all.length > 0,
      );
      expect(told).toEqual([{ v: 1, kind: 'remove', mount: 'a' }]);
      expect([...transferred.held.mounts.keys()]).toEqual(['b']);
      expect(transferred.isLost).toBe(false);
      // The previous keeper may have told it to remove the mount, too.
      its.send({ kind: 'ended', mount: 'a', unserved });
      transferred.accept();
      its.send({ kind: 'ended', mount: 'b', unserved });
      await eventually(
        () => told,
        (all) => all.length === 3,
      );
      expect(told.slice(1)).toMatchObject([{ kind: 'welcome' }, { kind: 'remove', mount: 'b' }]);
    },
  );
});
