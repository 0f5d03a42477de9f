import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, readdirSync, writeSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';
import { setTimeout as delay, setImmediate as immediate } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { describe, expect, test } from 'vitest';
import { socketPair } from './descriptors.ts';
import { readNow, readPromptly, watchReadable } from './watching.ts';

interface Pair extends Disposable {
  readonly watched: number;
  send(text: string): void;
}

function pair(): Pair {
  const [watched, other] = socketPair();
  return {
    watched,
    send: (text) => void writeSync(other, text),
    [Symbol.dispose]: () => {
      closeSync(watched);
      closeSync(other);
    },
  };
}

const textFrom = (fd: number): string => {
  const into = Buffer.alloc(100);
  return into.toString('latin1', 0, readNow(fd, into));
};

describe('watching descriptors', () => {
  test('what comes is told at once, again and again, until it is no longer watched', async () => {
    using ends = pair();
    const got: string[] = [];
    let come = Promise.withResolvers<void>();
    const watch = watchReadable(ends.watched, () => {
      got.push(textFrom(ends.watched));
      come.resolve();
    });
    for (const word of ['one', 'two', 'three']) {
      come = Promise.withResolvers<void>();
      ends.send(word);
      await come.promise;
    }
    watch[Symbol.dispose]();
    watch[Symbol.dispose]();
    ends.send('four');
    await delay(20);
    expect(got).toEqual(['one', 'two', 'three']);
  });

  test('promises and ticks of one come before the next of the same descriptor', async () => {
    using ends = pair();
    const order: string[] = [];
    const both = Promise.withResolvers<void>();
    using _ = watchReadable(ends.watched, () => {
      const text = textFrom(ends.watched);
      order.push(text);
      process.nextTick(() => order.push(`${text}, a tick`));
      void Promise.resolve().then(() => order.push(`${text}, a promise`));
      if (text === 'two') setImmediate(both.resolve);
    });
    ends.send('one');
    ends.send('two');
    await both.promise;
    expect(order.indexOf('one, a tick')).toBeLessThan(order.indexOf('two'));
    expect(order.indexOf('one, a promise')).toBeLessThan(order.indexOf('two'));
    expect(order).toHaveLength(6);
  });

  test("Node's own timers, files and immediates have their turn while there is always something to read", async () => {
    using ends = pair();
    ends.send('nobody reads this');
    let told = 0;
    using _ = watchReadable(ends.watched, () => {
      told++;
    });
    await delay(20);
    await immediate();
    expect((await readFile(fileURLToPath(import.meta.url), 'utf8')).length).toBeGreaterThan(0);
    const before = told;
    await delay(20);
    expect(told).toBeGreaterThan(before);
  });

  test('timers are kept while nothing comes, and nothing is done meanwhile', async () => {
    using ends = pair();
    using _ = watchReadable(ends.watched, () => undefined);
    await delay(50);
    const before = process.cpuUsage();
    const begun = performance.now();
    await delay(500);
    const { user, system } = process.cpuUsage(before);
    expect(performance.now() - begun).toBeGreaterThanOrEqual(499);
    expect((user + system) / 1000).toBeLessThan(250);
  });

  test('one may be let go, or another begun, by whoever is told', async () => {
    using first = pair();
    using second = pair();
    const got: string[] = [];
    const done = Promise.withResolvers<void>();
    const watch = watchReadable(first.watched, () => {
      got.push(textFrom(first.watched));
      watch[Symbol.dispose]();
      const next = watchReadable(second.watched, () => {
        got.push(textFrom(second.watched));
        next[Symbol.dispose]();
        done.resolve();
      });
    });
    second.send('second');
    first.send('first');
    await done.promise;
    expect(got).toEqual(['first', 'second']);
  });

  test('an error is told as a number', () => {
    expect(readNow(1_000_000, Buffer.alloc(1))).toBe(-9);
  });

  test('a program that watches nothing any more ends by itself', async () => {
    const module = fileURLToPath(new URL('watching.ts', import.meta.url));
    const script = `
      import { socketPair } from ${JSON.stringify(module.replace('watching', 'descriptors'))};
      import { watchReadable } from ${JSON.stringify(module)};
      const [a] = socketPair();
      const watch = watchReadable(a, () => undefined);
      setTimeout(() => watch[Symbol.dispose](), 50);`;
    const flags = ['--disable-warning=ExperimentalWarning', '--input-type=module-typescript', '--eval', script];
    const child = spawn(process.execPath, flags, { stdio: 'inherit', timeout: 20_000 });
    expect(await once(child, 'exit')).toEqual([0, null]);
  });
});

describe('reading from a connection', () => {
  const openNow = (): number => readdirSync('/proc/self/fd').length;

  async function connected(serve: (socket: Socket) => void): Promise<AsyncDisposable & { readonly socket: Socket }> {
    const server: Server = createServer((socket) => serve(socket.on('error', () => undefined))).listen(0, '127.0.0.1');
    await once(server, 'listening');
    const socket = connect((server.address() as AddressInfo).port, '127.0.0.1').pause();
    await once(socket, 'connect');
    return {
      socket,
      [Symbol.asyncDispose]: async () => {
        socket.destroy();
        server.close();
        await once(server, 'close');
      },
    };
  }

  test('all bytes come, then the end; and the descriptor of it is gone', async () => {
    const text = 'stowage '.repeat(100_000);
    let before = 0;
    // The first time, what all share is made.
    for (let round = 0; round < 3; round++) {
      if (round === 1) before = openNow();
      await using to = await connected((socket) => socket.end(text));
      const parts: string[] = [];
      const memory = Buffer.alloc(10_000);
      readPromptly(to.socket, {
        buffer: () => memory,
        received: (bytes) => void parts.push(memory.toString('latin1', 0, bytes)),
      });
      await once(to.socket, 'close');
      expect(parts.join('')).toBe(text);
    }
    await expect.poll(openNow).toBeLessThanOrEqual(before);
  });

  test('one that the other side breaks ends', async () => {
    await using to = await connected((socket) => socket.once('data', () => socket.resetAndDestroy()));
    readPromptly(to.socket, { buffer: () => Buffer.alloc(10), received: () => undefined });
    to.socket.on('error', () => undefined).write('now');
    await once(to.socket, 'close');
    expect(to.socket.destroyed).toBe(true);
  });

  test('one that is ended here is not read any more', async () => {
    await using to = await connected((socket) => void setInterval(() => socket.write('more'), 1).unref());
    let isEnded = false;
    const come = Promise.withResolvers<void>();
    readPromptly(to.socket, {
      buffer: () => Buffer.alloc(10),
      received: () => {
        expect(isEnded).toBe(false);
        come.resolve();
      },
    });
    await come.promise;
    to.socket.destroy();
    isEnded = true;
    await delay(20);
  });
});
