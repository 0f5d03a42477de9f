import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, readdirSync, writeSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';
import { text } from 'node:stream/consumers';
import { setTimeout as delay, setImmediate as immediate } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { Worker } from 'node:worker_threads';
import { beforeAll, describe, expect, onTestFinished, test, vi } from 'vitest';
import { socketPair } from './socket-pair.ts';
import { readNow } from './watch-readable.ts';

interface Pair extends Disposable {
  readonly watched: number;
  send(text: string): void;
}

function createPair(): Pair {
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
  const buffer = Buffer.alloc(100);
  return buffer.toString('latin1', 0, readNow(fd, buffer));
};

type Module = typeof import('./watch-readable.ts');

/** Forces the fallback to a thread. */
const withoutTickCallback = { _tickCallback: undefined };

/** A module instance of its own, since the way to wait is chosen on first use. */
async function loadModule(mode: WaitingMode): Promise<Module> {
  vi.resetModules();
  const module = await import('./watch-readable.ts');
  using ends = createPair();
  const { _tickCallback } = process as unknown as Record<string, unknown>;
  const warn = vi.spyOn(process, 'emitWarning').mockImplementation(() => undefined);
  if (mode === 'by a thread') Object.assign(process, withoutTickCallback);
  module.watchReadable(ends.watched, () => undefined)[Symbol.dispose]();
  Object.assign(process, { _tickCallback });
  expect(warn).toHaveBeenCalledTimes(mode === 'by a thread' ? 1 : 0);
  warn.mockRestore();
  return module;
}

type WaitingMode = (typeof waitingModes)[number];
const waitingModes = ['beside Node', 'by a thread'] as const;

const moduleSpecifier = (name: string): string => JSON.stringify(fileURLToPath(new URL(name, import.meta.url)));

/** Runs a script with `watchReadable`, `readNow` and `socketPair` in scope; returns its output. */
async function runScript(mode: WaitingMode, script: string): Promise<readonly string[]> {
  const preloadFlags = mode === 'by a thread' ? ['--import', 'data:text/javascript,delete process._tickCallback'] : [];
  const source = `
    import { writeSync } from 'node:fs';
    import { socketPair } from ${moduleSpecifier('socket-pair.ts')};
    import { readNow, watchReadable } from ${moduleSpecifier('watch-readable.ts')};
    ${script}`;
  const flags = [
    '--disable-warning=ExperimentalWarning',
    ...preloadFlags,
    '--input-type=module-typescript',
    '--eval',
    source,
  ];
  const child = spawn(process.execPath, flags, { stdio: ['ignore', 'pipe', 'pipe'], timeout: 20_000 });
  const [out, err, ended] = await Promise.all([text(child.stdout), text(child.stderr), once(child, 'close')]);
  expect([...ended, err.includes('by a thread')]).toEqual([0, null, mode === 'by a thread']);
  return out.trim().split('\n');
}

describe.each(waitingModes)('watching descriptors, %s', (mode) => {
  let watchReadable: Module['watchReadable'];
  beforeAll(async () => {
    ({ watchReadable } = await loadModule(mode));
  });

  test('calls back at once each time data arrive, until the watch ends', async () => {
    using ends = createPair();
    const received: string[] = [];
    let arrived = Promise.withResolvers<void>();
    const watch = watchReadable(ends.watched, () => {
      received.push(textFrom(ends.watched));
      arrived.resolve();
    });
    for (const word of ['one', 'two', 'three']) {
      arrived = Promise.withResolvers<void>();
      ends.send(word);
      await arrived.promise;
    }
    watch[Symbol.dispose]();
    watch[Symbol.dispose]();
    ends.send('four');
    await delay(20);
    expect(received).toEqual(['one', 'two', 'three']);
  });

  test('runs promises and ticks of one callback before the next one for the same descriptor', async () => {
    using ends = createPair();
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

  test("lets Node's own timers, files and immediates run while there is always something to read", async () => {
    using ends = createPair();
    ends.send('nobody reads this');
    let callbacks = 0;
    using _ = watchReadable(ends.watched, () => {
      callbacks++;
    });
    await delay(20);
    await immediate();
    expect((await readFile(fileURLToPath(import.meta.url), 'utf8')).length).toBeGreaterThan(0);
    const before = callbacks;
    await expect.poll(() => callbacks).toBeGreaterThan(before);
  });

  test('keeps timers on time while nothing arrives, and uses no CPU time', async () => {
    using ends = createPair();
    using _ = watchReadable(ends.watched, () => undefined);
    await delay(50);
    const before = process.cpuUsage();
    const startedAt = performance.now();
    await delay(500);
    const { user, system } = process.cpuUsage(before);
    expect(performance.now() - startedAt).toBeGreaterThanOrEqual(499);
    expect((user + system) / 1000).toBeLessThan(250);
  });

  test('a callback can end a watch, or start another', async () => {
    using first = createPair();
    using second = createPair();
    const received: string[] = [];
    const done = Promise.withResolvers<void>();
    const watch = watchReadable(first.watched, () => {
      received.push(textFrom(first.watched));
      watch[Symbol.dispose]();
      const next = watchReadable(second.watched, () => {
        received.push(textFrom(second.watched));
        next[Symbol.dispose]();
        done.resolve();
      });
    });
    second.send('second');
    first.send('first');
    await done.promise;
    expect(received).toEqual(['first', 'second']);
  });

  test('readNow returns the negated errno', () => {
    expect(readNow(1_000_000, Buffer.alloc(1))).toBe(-9);
  });

  test('a program without watches exits by itself', async () => {
    const script = `
      const watch = watchReadable(socketPair()[0], () => undefined);
      setTimeout(() => watch[Symbol.dispose](), 50);
      console.log('begun');`;
    expect(await runScript(mode, script)).toEqual(['begun']);
  });

  test('a callback that throws does not prevent other callbacks', async () => {
    const script = `
      const [here, there] = socketPair();
      process.on('uncaughtException', ({ message }) => console.log('thrown', message));
      const into = Buffer.alloc(10);
      const watch = watchReadable(here, () => {
        const text = into.toString('latin1', 0, readNow(here, into));
        if (text === 'bad') throw new Error(text);
        console.log(text);
        watch[Symbol.dispose]();
      });
      writeSync(there, 'bad');
      writeSync(there, 'good');`;
    expect(await runScript(mode, script)).toEqual(['thrown bad', 'good']);
  });

  test('a watch on a reused descriptor number gets no events of the old descriptor', async () => {
    const done = Promise.withResolvers<void>();
    let [callbacks, isReplaced] = [0, false];
    using first = createPair();
    const [old, oldOther] = socketPair();
    // Both descriptors are ready at once. The callback of the first closes the second and opens a new one with the same number.
    using _first = watchReadable(first.watched, () => {
      textFrom(first.watched);
      if (isReplaced) return;
      isReplaced = true;
      watch[Symbol.dispose]();
      closeSync(old);
      const [next, other] = socketPair();
      const numbers = [next, other];
      expect(numbers).toContain(old);
      const reusedWatch = watchReadable(old, () => callbacks++);
      setTimeout(() => {
        reusedWatch[Symbol.dispose]();
        for (const fd of [...numbers, oldOther]) closeSync(fd);
        done.resolve();
      }, 20);
    });
    const watch = watchReadable(old, () => undefined);
    first.send('now');
    writeSync(oldOther, 'for the old one');
    await done.promise;
    expect(callbacks).toBe(0);
  });

  test('many descriptors that are always ready take turns, with each other and with Node', async () => {
    using resources = new DisposableStack();
    const pairs = Array.from({ length: 50 }, () => resources.use(createPair()));
    const calledDescriptors = new Set<number>();
    for (const { watched, send } of pairs) {
      send('nobody reads this');
      resources.use(watchReadable(watched, () => calledDescriptors.add(watched)));
    }
    await expect.poll(() => calledDescriptors.size).toBe(pairs.length);
    await delay(10);
    await immediate();
  });
});

test('falls back to a thread if it does not run on the main thread', { timeout: 20_000 }, async () => {
  const script = `
    const { parentPort } = require('node:worker_threads');
    process.on('warning', ({ message }) => parentPort.postMessage(message));
    (async () => {
      const { readNow, watchReadable } = await import(${moduleSpecifier('watch-readable.ts')});
      const { socketPair } = await import(${moduleSpecifier('socket-pair.ts')});
      const [here, there] = socketPair();
      const into = Buffer.alloc(10);
      const watch = watchReadable(here, () => {
        parentPort.postMessage(into.toString('latin1', 0, readNow(here, into)));
        watch[Symbol.dispose]();
      });
      require('node:fs').writeSync(there, 'hello');
    })();`;
  const worker = new Worker(script, { eval: true, stderr: true });
  onTestFinished(async () => void (await worker.terminate()));
  const messages: string[] = [];
  worker.on('message', (message: string) => messages.push(message));
  await once(worker, 'exit');
  expect(messages).toEqual([expect.stringContaining('not the main thread'), 'hello']);
});

describe.each(waitingModes)('reading from a connection, %s', (mode) => {
  let readPromptly: Module['readPromptly'];
  beforeAll(async () => {
    ({ readPromptly } = await loadModule(mode));
  });

  const openDescriptors = (): number => readdirSync('/proc/self/fd').length;

  async function connectTo(serve: (socket: Socket) => void): Promise<AsyncDisposable & { readonly socket: Socket }> {
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

  test('receives all bytes, then the end, and closes the duplicated descriptor', async () => {
    const text = 'stowage '.repeat(100_000);
    let before = 0;
    // The first round creates the descriptors that all watches share.
    for (let round = 0; round < 3; round++) {
      if (round === 1) before = openDescriptors();
      await using connection = await connectTo((socket) => socket.end(text));
      const parts: string[] = [];
      const memory = Buffer.alloc(10_000);
      readPromptly(connection.socket, {
        buffer: () => memory,
        received: (bytes) => void parts.push(memory.toString('latin1', 0, bytes)),
      });
      await once(connection.socket, 'close');
      expect(parts.join('')).toBe(text);
    }
    await expect.poll(openDescriptors).toBeLessThanOrEqual(before);
  });

  test('destroys the socket with an error if the other side resets the connection', async () => {
    await using connection = await connectTo((socket) => socket.once('data', () => socket.resetAndDestroy()));
    readPromptly(connection.socket, { buffer: () => Buffer.alloc(10), received: () => undefined });
    connection.socket.write('now');
    await expect(once(connection.socket, 'close')).rejects.toMatchObject({ code: 'ECONNRESET' });
    expect(connection.socket.destroyed).toBe(true);
  });

  test('stops reading a socket that was destroyed here', async () => {
    await using connection = await connectTo((socket) => void setInterval(() => socket.write('more'), 1).unref());
    let isEnded = false;
    const arrived = Promise.withResolvers<void>();
    readPromptly(connection.socket, {
      buffer: () => Buffer.alloc(10),
      received: () => {
        expect(isEnded).toBe(false);
        arrived.resolve();
      },
    });
    await arrived.promise;
    connection.socket.destroy();
    isEnded = true;
    await delay(20);
  });
});
