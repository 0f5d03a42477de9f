import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, fstatSync, openSync, readdirSync, readSync, writeSync } from 'node:fs';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { sendMessage } from '#base/linux/descriptor-sockets.ts';
import { createMemory } from '#base/linux/shared-memory.ts';
import { socketPair } from '#base/linux/socket-pair.ts';
import { lacks } from '#testbed/lacks.ts';
import { eventually } from '#testing/keeper/keeper-process.ts';
import { type Connection, createConnection } from './connection.ts';
import {
  createCollector,
  createHeldDescriptors,
  type HeldDescriptors,
  sendHeldDescriptors,
} from './held-descriptors.ts';
import { encode, type Message } from './protocol.ts';

const clock = systemClock();
const handlerFault = 'a message could not be processed';
const countDescriptors = (): number => readdirSync('/proc/self/fd').length;
let before = 0;

describe.skipIf(lacks('linux'))('connections and held descriptors', () => {
  beforeEach(() => {
    // Loads modules that keep descriptors open.
    const [one, other] = socketPair();
    for (const fd of [one, other]) closeSync(fd);
    before = countDescriptors();
  });
  afterEach(async () => {
    await eventually(countDescriptors, (now) => now === before);
  });

  interface ReceivedMessages {
    readonly messages: Message[];
    readonly descriptors: number[];
    why?: string;
  }

  function listen(connection: Connection, accepts: readonly Message['kind'][]): ReceivedMessages {
    const received: ReceivedMessages = { messages: [], descriptors: [] };
    connection.handle({
      accepts,
      message: (message, descriptors) => {
        received.messages.push(message);
        received.descriptors.push(...descriptors.splice(0));
      },
      closed: (why) => {
        received.why = why;
      },
    });
    return received;
  }

  /** Memory marked by its content. */
  function createMarked(mark: number): number {
    const fd = createMemory('test', 4096);
    writeSync(fd, Buffer.from([mark % 256, mark >> 8]), 0, 2, 0);
    return fd;
  }
  function markOf(fd: number): number {
    const bytes = Buffer.alloc(2);
    readSync(fd, bytes, 0, 2, 0);
    return bytes.readUInt16LE();
  }

  test('messages and descriptors arrive in order, including those that the socket had no room for', async () => {
    const [ownEnd, peerEnd] = socketPair();
    const [sender, receiver] = [createConnection(ownEnd, clock), createConnection(peerEnd, clock)];
    const text = 'x'.repeat(10_000);
    for (let i = 0; i < 200; i++) {
      const fd = createMarked(i);
      sender.send({ kind: 'adopt', ask: i, mount: 'm', spec: text }, [fd]);
      // Queued messages must not need the original: its number is soon reused.
      closeSync(fd);
    }
    const heard = listen(receiver, ['adopt']);
    await eventually(
      () => heard.messages.length,
      (count) => count === 200,
    );
    expect(heard.messages.map((message) => 'ask' in message && message.ask)).toEqual(
      Array.from({ length: 200 }, (_, i) => i),
    );
    expect(heard.descriptors.map(markOf)).toEqual(Array.from({ length: 200 }, (_, i) => i));
    for (const fd of heard.descriptors) closeSync(fd);
    sender.close();
    await eventually(
      () => heard.why,
      (why) => why === 'the peer is gone',
    );
  });

  test('the last messages of a dead process are received, even if it had unread messages', async () => {
    const [ownEnd, peerEnd] = socketPair();
    const connection = createConnection(ownEnd, clock);
    const fd = createMarked(7);
    sendMessage(peerEnd, {
      bytes: encode({ kind: 'holding', sockets: [{ socket: 's', about: '' }] }),
      descriptors: [fd],
    });
    connection.send({ kind: 'stop' });
    closeSync(peerEnd);
    closeSync(fd);
    const heard = listen(connection, ['holding']);
    await eventually(
      () => heard.why,
      (why) => why !== undefined,
    );
    expect(heard.messages).toHaveLength(1);
    expect(heard.descriptors.map(markOf)).toEqual([7]);
    closeSync(heard.descriptors[0] ?? -1);
  });

  test.each([
    ['no JSON', Buffer.from('{'), 'a message is not a JSON object'],
    ['another version', Buffer.from('{"v":2,"kind":"stop"}'), 'a message is not of version 1'],
    ['not for this side', encode({ kind: 'yours' }), 'a message (yours) came with 1 descriptors'],
    ['more than is read', Buffer.alloc(100_000, ' '), 'a message is too long'],
  ])('garbage closes the connection and its descriptors: %s', async (_, bytes, why) => {
    const [ownEnd, peerEnd] = socketPair();
    const heard = listen(createConnection(ownEnd, clock), ['stop']);
    const peer = listen(createConnection(peerEnd, clock), []);
    const fd = createMarked(1);
    sendMessage(peerEnd, { bytes, descriptors: [fd] });
    closeSync(fd);
    await eventually(
      () => heard.why,
      (now) => now === why,
    );
    expect(heard.messages).toEqual([]);
    // The peer gets the reason.
    await eventually(
      () => peer.why,
      (now) => now === why,
    );
  });

  test('a kind that this side does not accept closes the connection', async () => {
    const [ownEnd, peerEnd] = socketPair();
    const heard = listen(createConnection(ownEnd, clock), ['stop']);
    const peer = createConnection(peerEnd, clock);
    peer.send({ kind: 'yours' });
    await eventually(
      () => heard.why,
      (why) => why === 'a message (yours) is unexpected here',
    );
    peer.close();
  });

  test.each([new Error('a fault of ours'), undefined])(
    'descriptors that a handler does not take are closed, also if it throws: %s',
    async (fault) => {
      const [ownEnd, peerEnd] = socketPair();
      const taken: number[] = [];
      const closed = Promise.withResolvers<string>();
      createConnection(ownEnd, clock).handle({
        accepts: ['add'],
        message: (_, descriptors) => {
          taken.push(descriptors.shift() ?? -1);
          if (fault !== undefined) throw fault;
        },
        closed: closed.resolve,
      });
      const mounts = ['one', 'two', 'three'].map((mount) => ({ mount, spec: 1 }));
      const sent = mounts.map((_, i) => createMarked(i + 1));
      sendMessage(peerEnd, { bytes: encode({ kind: 'add', mounts }), descriptors: sent });
      for (const fd of [...sent, peerEnd]) closeSync(fd);
      expect(await closed.promise).toBe(fault === undefined ? 'the peer is gone' : handlerFault);
      expect(taken.map(markOf)).toEqual([1]);
      for (const fd of taken) closeSync(fd);
    },
  );

  test('messages after a local close are ignored, and their descriptors are closed', async () => {
    const [ownEnd, peerEnd] = socketPair();
    const connection = createConnection(ownEnd, clock);
    const fd = createMarked(1);
    sendMessage(peerEnd, { bytes: encode({ kind: 'adopt', ask: 1, mount: 'm', spec: 1 }), descriptors: [fd] });
    const heard = listen(connection, ['adopt']);
    connection.close();
    await eventually(
      () => heard.why,
      (why) => why === 'closed here',
    );
    expect(heard.messages).toEqual([]);
    for (const each of [fd, peerEnd]) closeSync(each);
  });

  test('a process can exit while it waits for a message', async () => {
    const script = `
    import { systemClock } from ${JSON.stringify(import.meta.resolve('#base/clock.ts'))};
    import { socketPair } from ${JSON.stringify(import.meta.resolve('#base/linux/socket-pair.ts'))};
    import { createConnection } from ${JSON.stringify(import.meta.resolve('./connection.ts'))};
    createConnection(socketPair()[0], systemClock()).handle({ accepts: [], message: () => {}, closed: () => {} });
    setTimeout(() => process.exit(7), 100);`;
    const child = spawn(process.execPath, ['--input-type=module', '-e', script], { stdio: 'inherit', timeout: 20_000 });
    expect(await once(child, 'exit')).toEqual([7, null]);
  });

  test('a set of more descriptors than one message holds arrives complete', async () => {
    const [ownEnd, peerEnd] = socketPair();
    const [sender, receiver] = [createConnection(ownEnd, clock), createConnection(peerEnd, clock)];
    const held = createHeldDescriptors(createMarked(9999));
    for (let i = 0; i < 700; i++)
      held.addMount({ id: `m${i}`, spec: { i, password: 'x'.repeat(500) }, fd: createMarked(i) });
    for (let i = 0; i < 300; i++) held.addSocket({ id: `s${i}`, about: 'x', fd: createMarked(1000 + i) });
    using collector = createCollector();
    const { promise, resolve } = Promise.withResolvers<HeldDescriptors>();
    receiver.handle({
      accepts: ['everything', 'add', 'holding'],
      message: (message, descriptors) => {
        const whole = collector.take(message, descriptors);
        if (whole !== undefined) resolve(whole);
      },
      closed: () => undefined,
    });
    sendHeldDescriptors(sender, held, 'everything');
    using received = await promise;
    expect(markOf(received.journal)).toBe(9999);
    expect([...received.mounts.values()].map(({ id, spec, fd }) => [id, spec, markOf(fd)])).toEqual(
      [...held.mounts.values()].map(({ id, spec, fd }) => [id, spec, markOf(fd)]),
    );
    expect([...received.sockets.values()].map(({ id, fd }) => [id, markOf(fd)])).toEqual(
      [...held.sockets.values()].map(({ id, fd }) => [id, markOf(fd)]),
    );
    held[Symbol.dispose]();
    sender.close();
  });

  test('each descriptor is closed when it is dropped or replaced, and the rest at disposal', () => {
    const isOpen = (fd: number): boolean => {
      try {
        return fstatSync(fd).ino > 0;
      } catch {
        return false;
      }
    };
    const [journal = 0, one = 0, other = 0, socket = 0] = [1, 2, 3, 4].map(() => openSync('/dev/null', 'r'));
    const held = createHeldDescriptors(journal);
    held.addMount({ id: 'm', spec: 1, fd: one });
    held.addMount({ id: 'm', spec: 1, fd: other });
    held.addSocket({ id: 's', about: '', fd: socket });
    expect([journal, one, other, socket].map(isOpen)).toEqual([true, false, true, true]);
    expect([held.dropMount('m'), held.dropMount('m')]).toEqual([true, false]);
    expect([journal, one, other, socket].map(isOpen)).toEqual([true, false, false, true]);
    held[Symbol.dispose]();
    held[Symbol.dispose]();
    expect([journal, one, other, socket].map(isOpen)).toEqual([false, false, false, false]);
  });
});
