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

type Module = typeof import('./watch-readable.ts');

/** Forces the fallback to a thread. */
const spoiled = { _tickCallback: undefined };

/** A module instance of its own, since the way to wait is chosen on first use. */
async function loaded(how: How): Promise<Module> {
  vi.resetModules();
  const module = await import('./watch-readable.ts');
  using ends = pair();
  const { _tickCallback } = process as unknown as Record<string, unknown>;
  const warn = vi.spyOn(process, 'emitWarning').mockImplementation(() => undefined);
  if (how === 'by a thread') Object.assign(process, spoiled);
  module.watchReadable(ends.watched, () => undefined)[Symbol.dispose]();
  Object.assign(process, { _tickCallback });
  expect(warn).toHaveBeenCalledTimes(how === 'by a thread' ? 1 : 0);
  warn.mockRestore();
  return module;
}

type How = (typeof ways)[number];
const ways = ['beside Node', 'by a thread'] as const;

const path = (name: string): string => JSON.stringify(fileURLToPath(new URL(name, import.meta.url)));

/** Runs a script with `watchReadable`, `readNow` and `socketPair` in scope; returns its output. */
async function program(how: How, script: string): Promise<readonly string[]> {
  const before = how === 'by a thread' ? ['--import', 'data:text/javascript,delete process._tickCallback'] : [];
  const whole = `
    import { writeSync } from 'node:fs';
    import { socketPair } from ${path('socket-pair.ts')};
    import { readNow, watchReadable } from ${path('watch-readable.ts')};
    ${script}`;
  const flags = ['--disable-warning=ExperimentalWarning', ...before, '--input-type=module-typescript', '--eval', whole];
  const child = spawn(process.execPath, flags, { stdio: ['ignore', 'pipe', 'pipe'], timeout: 20_000 });
  const [out, err, ended] = await Promise.all([text(child.stdout), text(child.stderr), once(child, 'close')]);
  expect([...ended, err.includes('by a thread')]).toEqual([0, null, how === 'by a thread']);
  return out.trim().split('\n');
}

describe.each(ways)('watching descriptors, %s', (how) => {
  let watchReadable: Module['watchReadable'];
  beforeAll(async () => {
    ({ watchReadable } = await loaded(how));
  });

  test('calls back at once each time data arrive, until the watch ends', async () => {
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

  test('runs promises and ticks of one callback before the next one for the same descriptor', async () => {
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

  test("lets Node's own timers, files and immediates run while there is always something to read", async () => {
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
    await expect.poll(() => told).toBeGreaterThan(before);
  });

  test('keeps timers on time while nothing arrives, and uses no CPU time', async () => {
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

  test('a callback can end a watch, or start another', async () => {
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

  test('readNow returns the negated errno', () => {
    expect(readNow(1_000_000, Buffer.alloc(1))).toBe(-9);
  });

  test('a program without watches exits by itself', async () => {
    const script = `
      const watch = watchReadable(socketPair()[0], () => undefined);
      setTimeout(() => watch[Symbol.dispose](), 50);
      console.log('begun');`;
    expect(await program(how, script)).toEqual(['begun']);
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
    expect(await program(how, script)).toEqual(['thrown bad', 'good']);
  });

  test('a watch on a reused descriptor number gets no events of the old descriptor', async () => {
    const done = Promise.withResolvers<void>();
    let [told, isReplaced] = [0, false];
    using first = pair();
    const [old, oldOther] = socketPair();
    // Both are ready at once. The callback of the first closes the second and opens another one with the same number.
    using _first = watchReadable(first.watched, () => {
      textFrom(first.watched);
      if (isReplaced) return;
      isReplaced = true;
      watch[Symbol.dispose]();
      closeSync(old);
      const [next, other] = socketPair();
      const numbers = [next, other];
      expect(numbers).toContain(old);
      const again = watchReadable(old, () => told++);
      setTimeout(() => {
        again[Symbol.dispose]();
        for (const fd of [...numbers, oldOther]) closeSync(fd);
        done.resolve();
      }, 20);
    });
    const watch = watchReadable(old, () => undefined);
    first.send('now');
    writeSync(oldOther, 'for the old one');
    await done.promise;
    expect(told).toBe(0);
  });

  test('many descriptors that are always ready take turns, with each other and with Node', async () => {
    using all = new DisposableStack();
    const many = Array.from({ length: 50 }, () => all.use(pair()));
    const told = new Set<number>();
    for (const { watched, send } of many) {
      send('nobody reads this');
      all.use(watchReadable(watched, () => told.add(watched)));
    }
    await expect.poll(() => told.size).toBe(many.length);
    await delay(10);
    await immediate();
  });
});

test('falls back to a thread if it does not run on the main thread', { timeout: 20_000 }, async () => {
  const script = `
    const { parentPort } = require('node:worker_threads');
    process.on('warning', ({ message }) => parentPort.postMessage(message));
    (async () => {
      const { readNow, watchReadable } = await import(${path('watch-readable.ts')});
      const { socketPair } = await import(${path('socket-pair.ts')});
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
  const said: string[] = [];
  worker.on('message', (message: string) => said.push(message));
  await once(worker, 'exit');
  expect(said).toEqual([expect.stringContaining('not the main thread'), 'hello']);
});

describe.each(ways)('reading from a connection, %s', (how) => {
  let readPromptly: Module['readPromptly'];
  beforeAll(async () => {
    ({ readPromptly } = await loaded(how));
  });

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

  test('receives all bytes, then the end, and closes the duplicated descriptor', async () => {
    const text = 'stowage '.repeat(100_000);
    let before = 0;
    // The first time creates what all watches share.
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

  test('destroys the socket with an error if the other side resets the connection', async () => {
    await using to = await connected((socket) => socket.once('data', () => socket.resetAndDestroy()));
    readPromptly(to.socket, { buffer: () => Buffer.alloc(10), received: () => undefined });
    to.socket.write('now');
    await expect(once(to.socket, 'close')).rejects.toMatchObject({ code: 'ECONNRESET' });
    expect(to.socket.destroyed).toBe(true);
  });

  test('stops reading a socket that was destroyed here', async () => {
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
