import { type ChildProcess, execFile, execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, constants, mkdirSync, openSync, readSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as delay } from 'node:timers/promises';
import { promisify } from 'node:util';
import { describe, expect, onTestFinished, test } from 'vitest';
import { unlessAborted } from '#base/aborted.ts';
import { type Clock, systemClock } from '#base/clock.ts';
import { createMemory } from '#base/linux/shared-memory.ts';
import { streamPair } from '#base/linux/socket-pair.ts';
import { readNow } from '#base/linux/watch-readable.ts';
import { lacks } from '#testbed/lacks.ts';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { defaultInitOptions } from '#testing/fuse-mount.ts';
import { createScratchFolder } from '#testing/scratch-folder.ts';
import { inHeaderSize, opcode } from '#wire/fuse/abi.ts';
import type { Slot } from '#wire/fuse/device.ts';
import { Errno } from '#wire/fuse/errno.ts';
import { lineCount, maxMounts } from './journal/layout.ts';
import { createJournal, openJournal } from './journal/memory.ts';
import { createRequests } from './journal/requests.ts';
import { createPoisonRequests } from './poison-requests.ts';
import { serveMount } from './served-mount.ts';

const run = promisify(execFile);

const clockAndQueue = (clock: Clock = createFakeClock()) => ({
  clock,
  poisonRequests: createPoisonRequests(clock, () => undefined),
});
const statfs = { opcode: 17, length: 40 } as const;
const program = join(import.meta.dirname, '../testing/crashing-mount-child.ts');

interface StartedServer {
  readonly child: ChildProcess;
  /** Number of requests that the predecessor did not finish. */
  readonly unfinishedCount: number;
  /** Resolves when the process has read a request or has exited. */
  readonly busy: Promise<unknown>;
}

async function mountAt(mountPoint: string): Promise<number> {
  mkdirSync(mountPoint);
  const fuse = openSync('/dev/fuse', constants.O_RDWR | constants.O_NONBLOCK);
  const options = 'fd=3,rootmode=40000,user_id=0,group_id=0,allow_other';
  const mount = spawn('mount', ['-i', '-t', 'fuse', '-o', options, 'stowage-test', mountPoint], {
    stdio: ['ignore', 'inherit', 'inherit', fuse],
  });
  expect(await once(mount, 'exit')).toEqual([0, null]);
  return fuse;
}

/** A mount served by a process that can be killed and succeeded by another. */
async function createRestartableMount(mountPoint: string) {
  const fuse = await mountAt(mountPoint);
  const [journal, data] = [createJournal(), createMemory('test-data', 16 * 1024 * 1024)];
  const start = async (...modes: readonly string[]): Promise<StartedServer> => {
    const flags = modes.includes('by-a-thread')
      ? ['--import', 'data:text/javascript,delete process._tickCallback']
      : [];
    const child: ChildProcess = spawn(process.execPath, ['--no-warnings', ...flags, program, ...modes], {
      stdio: ['ignore', 'pipe', 'inherit', fuse, journal, data],
    });
    const lines = createInterface(child.stdout ?? expect.fail())[Symbol.asyncIterator]();
    const { value } = await lines.next();
    return { child, unfinishedCount: Number(/left (\d+)/.exec(String(value))?.[1]), busy: lines.next() };
  };
  const close = (): void => {
    for (const fd of [fuse, journal, data]) closeSync(fd);
  };
  return { start, close };
}

const putTestRequest = (
  slot: Slot,
  unique: number,
  code: number = statfs.opcode,
  length: number = statfs.length,
): number => {
  slot.buffer.fill(0, 0, length);
  slot.view.setUint32(0, length, true);
  slot.view.setUint32(4, code, true);
  slot.view.setUint32(8, unique, true);
  slot.view.setUint32(16, 1, true);
  return length;
};

/** Options for a mount that expects no callbacks. */
const defaultCallbacks = {
  initOptions: defaultInitOptions,
  onAnsweredWrite: () => expect.fail(),
  onInit: () => undefined,
  onEnd: () => undefined,
  onFault: (_operation: string, cause: unknown) => expect.fail(String(cause)),
};

describe.skipIf(lacks('linux'))('requests that a predecessor left', () => {
  /** An unused device and two requests. */
  function createUnfinished() {
    const scratch = createScratchFolder();
    const device = join(scratch.folder, 'device');
    execFileSync('mkfifo', [device]);
    const journal = createJournal(8);
    const open = (): number => openSync(device, constants.O_RDWR | constants.O_NONBLOCK);
    const answers = open();
    onTestFinished(() => {
      for (const fd of [journal, answers]) closeSync(fd);
      scratch[Symbol.dispose]();
    });
    const before = createRequests(openJournal(journal));
    const armed = before.arm(0) ?? expect.fail();
    before.take(0, armed, putTestRequest(armed, 1));
    before.take(0, armed, putTestRequest(armed, 2, opcode.release, inHeaderSize + 24));
    putTestRequest(armed, 3, opcode.interrupt, inHeaderSize + 8);
    armed.view.setUint32(inHeaderSize, 1, true);
    before.take(0, armed, inHeaderSize + 8);
    const requests = createRequests(openJournal(journal));
    const [one, other, interrupt] = requests.restoreUnfinished();
    /** The request's unique id and the error. */
    const answer = (): readonly [number, number] => {
      const bytes = Buffer.alloc(64);
      expect(readSync(answers, bytes)).toBe(16);
      return [bytes.readUInt32LE(8), bytes.readInt32LE(4)];
    };
    return {
      fd: open(),
      requests,
      one: one ?? expect.fail(),
      other: other ?? expect.fail(),
      interrupt: interrupt ?? expect.fail(),
      answer,
    };
  }
  const neverResolves = (): Promise<never> => new Promise(() => undefined);

  test('have an age while they are started, and the next request at their place has none', async () => {
    const { fd, requests, one, other } = createUnfinished();
    const ages = new Map<number, number>();
    const seenAges: unknown[] = [];
    const statfs = (): Promise<never> => {
      seenAges.push([...ages]);
      return neverResolves();
    };
    const release = (): undefined => void seenAges.push([...ages]);
    const unfinished = [
      { ...one, ageMs: 50 },
      { ...other, ageMs: 60 },
    ];
    using _served = await serveMount({
      fd,
      mount: 0,
      requests,
      pausedMounts: new Set(),
      ...clockAndQueue(),
      requestAges: ages,
      unfinished,
      ...defaultCallbacks,
      operations: { statfs, release },
    });
    expect(seenAges).toEqual([[[one.place, 50]], [[other.place, 60]]]);
    expect(ages.size).toBe(0);
  });

  test('are started later if data paths may have died because of them, unless they were interrupted', async () => {
    const clock = createFakeClock();
    let startedCount = 0;
    const statfs = (): Promise<never> => {
      startedCount++;
      return neverResolves();
    };
    const options = { mount: 0, pausedMounts: new Set<() => void>(), ...defaultCallbacks, operations: { statfs } };
    const suspected = () => {
      const { one, ...more } = createUnfinished();
      return { ...more, one: { ...one, crashCount: 3 } };
    };
    const { fd, requests, one } = suspected();
    using _served = await serveMount({ ...options, ...clockAndQueue(clock), fd, requests, unfinished: [one] });
    expect(startedCount).toBe(0);
    clock.advance(1_000);
    expect(startedCount).toBe(1);
    // The kernel reports the interrupt now, or reported it to a predecessor.
    for (const isKnown of [false, true]) {
      const { fd, requests, one, interrupt, answer } = suspected();
      const given = isKnown ? [{ ...one, isInterrupted: true }] : [one, interrupt];
      using _again = await serveMount({ ...options, ...clockAndQueue(), fd, requests, unfinished: given });
      expect([startedCount, answer()]).toEqual([1, [1, -4]]);
    }
  });

  test('do not touch lines of other mounts after their mount is gone', async () => {
    const { fd, requests, one, other } = createUnfinished();
    const signals: AbortSignal[] = [];
    const clock = createFakeClock();
    const removedPlaces: number[] = [];
    const poisonRequests = {
      ...createPoisonRequests(clock, () => undefined),
      remove: (place: number) => void removedPlaces.push(place),
    };
    const answers = [Promise.withResolvers<never>(), Promise.withResolvers<undefined>()] as const;
    const served = await serveMount({
      fd,
      mount: 0,
      requests,
      pausedMounts: new Set(),
      clock,
      poisonRequests,
      ...defaultCallbacks,
      unfinished: [one, other],
      operations: {
        statfs: (_id, { signal }) => {
          signals.push(signal);
          return answers[0].promise;
        },
        release: (_id, _how, { signal }) => {
          signals.push(signal);
          return answers[1].promise;
        },
      },
    });
    served[Symbol.dispose]();
    expect(signals.map(({ aborted }) => aborted)).toEqual([true, true]);
    // They are not blamed if this process dies.
    expect(removedPlaces).toEqual([one.place, other.place]);
    requests.freeAll(0);
    const take = (unique: number): number => {
      const armed = requests.arm(1) ?? expect.fail();
      return (requests.take(1, armed, putTestRequest(armed, unique)) ?? expect.fail()).place;
    };
    const places = [take(2), take(4)];
    answers[0].reject(new Errno('EIO'));
    answers[1].resolve(undefined);
    served.freeWrite(places[0] ?? expect.fail());
    await delay(0);
    places.push(take(6), take(8));
    expect(new Set(places).size).toBe(4);
    expect(requests.held.lines).toBe(4);
  });

  test('count the close of a file even if the RELEASE is given up', async () => {
    const { fd, requests, other, answer } = createUnfinished();
    const countedCloses: unknown[] = [];
    using _served = await serveMount({
      fd,
      mount: 0,
      requests,
      pausedMounts: new Set(),
      ...clockAndQueue(),
      ...defaultCallbacks,
      operations: {},
      onFault: () => undefined,
      onUnreleased: (node, place) => void countedCloses.push([node, place, requests.held.lines]),
      unfinished: [{ ...other, crashCount: 10 }],
    });
    // Counted before the answer: a crash in between must not lose it.
    expect(countedCloses).toEqual([[1, other.place, 3]]);
    expect(answer()).toEqual([2, -5]);
  });
});

describe.skipIf(lacks('fuse'))('a mount whose server is silent', () => {
  async function mountSilentServer() {
    const scratch = createScratchFolder();
    const at = join(scratch.folder, 'mnt');
    const fd = await mountAt(at);
    const journal = createJournal(8);
    const requests = createRequests(openJournal(journal));
    const lookedUpNames: string[] = [];
    const paused = new Set<() => void>();
    const serverAnswers = Promise.withResolvers<void>();
    const served = await serveMount({
      fd,
      mount: 0,
      requests,
      pausedMounts: paused,
      unfinished: [],
      ...clockAndQueue(systemClock()),
      ...defaultCallbacks,
      operations: {
        lookup: async (_parent, name, { signal }) => {
          lookedUpNames.push(name.toString());
          await unlessAborted(serverAnswers.promise, signal).catch(() => {
            throw new Errno('EINTR');
          });
          throw new Errno('ENOENT');
        },
      },
    });
    onTestFinished(async () => {
      serverAnswers.resolve();
      await run('umount', ['--lazy', at]);
      served[Symbol.dispose]();
      closeSync(journal);
      scratch[Symbol.dispose]();
    });
    const startStat = (name: string): ChildProcess => spawn('stat', [join(at, name)], { stdio: 'ignore' });
    return { requests, paused, served, asked: lookedUpNames, thaw: serverAnswers.resolve, ask: startStat };
  }

  test('can be stopped when everything is answered', async () => {
    const { served, asked, thaw, ask } = await mountSilentServer();
    const statExit = once(ask('x'), 'exit');
    await expect.poll(() => asked).toEqual(['x']);
    let isStopped = false;
    const stopping = served.stop().then(() => {
      isStopped = true;
    });
    await new Promise(setImmediate);
    expect(isStopped).toBe(false);
    thaw();
    await stopping;
    expect(await statExit).toEqual([1, null]);
  });

  test('notices that a process is killed even if all lines of the mount are in use', async () => {
    const { requests, paused, asked, ask } = await mountSilentServer();
    const other = requests.arm(0) ?? expect.fail();
    for (let i = 1; i < lineCount / 2; i++)
      expect(requests.take(0, other, putTestRequest(other, 1_000_000 + i))).toBeDefined();
    const last = ask('last');
    await expect.poll(() => asked).toEqual(['last']);
    expect(requests.take(0, other, putTestRequest(other, 1))).toBeUndefined();
    const [more, ended] = [ask('more'), once(last, 'exit')];
    await expect.poll(() => paused.size, { interval: 5 }).toBe(1);
    last.kill('SIGKILL');
    expect(await ended).toEqual([null, 'SIGKILL']);
    more.kill('SIGKILL');
    await once(more, 'exit');
  });
});

test.skipIf(lacks('linux'))(
  'the maximum number of mounts can be read from while each waits for a long request',
  async () => {
    using resources = new DisposableStack();
    const journal = createJournal();
    resources.defer(() => closeSync(journal));
    // Untouched pages need no memory here.
    const requests = createRequests({ ...openJournal(journal), populate: () => undefined });
    const paused = new Set<() => void>();
    const waiting: number[] = [];
    const serve = async (mount: number): Promise<number> => {
      const [kernel, fd] = streamPair();
      resources.defer(() => closeSync(kernel));
      resources.use(
        await serveMount({
          fd,
          mount,
          requests,
          pausedMounts: paused,
          unfinished: [],
          ...clockAndQueue(),
          ...defaultCallbacks,
          operations: {
            write: () => {
              waiting.push(mount);
              return new Promise<never>(() => undefined);
            },
            statfs: () => Promise.reject(new Errno('EDQUOT')),
          },
        }),
      );
      return kernel;
    };
    const kernels = await Promise.all(Array.from({ length: maxMounts }, (_, mount) => serve(mount)));
    const longest = Buffer.alloc(80_000);
    const slot: Slot = { index: 0, buffer: longest, view: new DataView(longest.buffer) };
    const write = { end: inHeaderSize + 40, data: 76_000 };
    putTestRequest(slot, 2, opcode.write, write.end + write.data);
    slot.view.setUint32(inHeaderSize + 16, write.data, true);
    for (const kernel of kernels)
      expect(writeSync(kernel, longest, 0, write.end + write.data)).toBe(write.end + write.data);
    await expect.poll(() => waiting.length, { timeout: 10_000 }).toBe(maxMounts);
    putTestRequest(slot, 4);
    for (const kernel of kernels) writeSync(kernel, longest, 0, statfs.length);
    const answer = Buffer.alloc(64);
    for (const kernel of kernels) {
      await expect.poll(() => readNow(kernel, answer), { timeout: 10_000, interval: 5 }).toBe(16);
      expect([answer.readUInt32LE(8), answer.readInt32LE(4)]).toEqual([4, -122]);
    }
    expect(paused.size).toBe(0);
  },
);

test.skipIf(lacks('linux'))(
  'a request for which the predecessor had no room is answered when there is some',
  async () => {
    using scratch = createScratchFolder();
    // It never delivers a request, like the device of an unused mount.
    const device = join(scratch.folder, 'device');
    execFileSync('mkfifo', [device]);
    const journal = createJournal(8);
    onTestFinished(() => closeSync(journal));
    const before = createRequests(openJournal(journal));
    const slot = before.arm(0) ?? expect.fail();
    for (let i = 1; i <= lineCount / 2; i++) before.take(0, slot, putTestRequest(slot, i));
    putTestRequest(slot, lineCount + 1);

    const requests = createRequests(openJournal(journal));
    requests.restoreUnfinished();
    const paused = new Set<() => void>();
    let statfsCalls = 0;
    using _served = await serveMount({
      fd: openSync(device, constants.O_RDWR | constants.O_NONBLOCK),
      mount: 0,
      requests,
      pausedMounts: paused,
      unfinished: [],
      ...clockAndQueue(),
      operations: {
        statfs: () => {
          statfsCalls++;
          return new Promise<never>(() => undefined);
        },
      },
      ...defaultCallbacks,
    });
    expect([statfsCalls, paused.size]).toEqual([0, 1]);
    requests.free(5);
    for (const wake of Array.from(paused)) wake();
    expect([statfsCalls, paused.size]).toEqual([1, 0]);
  },
);

describe.skipIf(lacks('fuse', 'fio'))('a mount whose data path is killed again and again', () => {
  test('gives up a request during which ten data paths have died, and continues', { timeout: 60_000 }, async () => {
    using scratch = createScratchFolder();
    const at = join(scratch.folder, 'mnt');
    const { start, close } = await createRestartableMount(at);
    let reading: Promise<unknown> | undefined;
    for (let deaths = 0; deaths < 10; deaths++) {
      const { child, unfinishedCount: left } = await start('dies-reading');
      const died = once(child, 'exit');
      expect(left).toBe(deaths === 0 ? 0 : 1);
      reading ??= run('dd', [`if=${join(at, 'data')}`, 'bs=4096', 'count=1', 'iflag=direct'], { timeout: 60_000 });
      reading.catch(() => undefined);
      expect(await died).toEqual([null, 'SIGKILL']);
    }
    const { child, unfinishedCount: left } = await start('dies-reading');
    expect(left).toBe(1);
    await expect(reading).rejects.toThrow('Input/output error');
    expect((await run('stat', ['--format=%n', at])).stdout.trim()).toBe(at);
    const ended = once(child, 'exit');
    await run('umount', [at]);
    expect(await ended).toEqual([0, null]);
    close();
  });

  test('answers a WRITE that its predecessor kept and did not answer', async () => {
    using scratch = createScratchFolder();
    const at = join(scratch.folder, 'mnt');
    const { start, close } = await createRestartableMount(at);
    const { child: first } = await start('dies-behind');
    const died = once(first, 'exit');
    const text = 'x'.repeat(100_000);
    const write = 'printf %s "$2" | dd of="$1/data" bs=1M iflag=fullblock conv=notrunc status=none';
    const writing = run('sh', ['-c', write, 'sh', at, text], { timeout: 20_000 });
    writing.catch(() => undefined);
    expect(await died).toEqual([null, 'SIGKILL']);
    const { child, unfinishedCount: left } = await start();
    expect(left).toBeGreaterThan(0);
    await writing;
    const { stdout } = await run('head', ['-c', `${text.length}`, join(at, 'data')], { maxBuffer: 2 ** 20 });
    expect(stdout).toBe(text);
    const ended = once(child, 'exit');
    await run('umount', [at]);
    await ended;
    close();
  });

  const threadModes = [
    ['', []],
    [', with a waiting thread', ['by-a-thread']],
  ] as const;
  test.each(threadModes)('loses no request and answers none wrongly%s', { timeout: 120_000 }, async (_, how) => {
    using scratch = createScratchFolder();
    const at = join(scratch.folder, 'mnt');
    const { start, close } = await createRestartableMount(at);
    // Kills alone do not count: no request may be in flight.
    const minRestored = 12;
    let restored = 0;
    const serve = async (): Promise<StartedServer> => {
      const started = await start(...how);
      restored += started.unfinishedCount;
      return started;
    };
    let server = await serve();
    const kill = async (): Promise<void> => {
      const ended = once(server.child, 'exit');
      server.child.kill('SIGKILL');
      await ended;
    };
    let isDone = false;
    const fio = [
      '--name=x',
      `--filename=${at}/data`,
      '--rw=randrw',
      '--bs=4k-1m',
      '--size=16m',
      '--verify=crc32c',
      '--verify_fatal=1',
      '--ioengine=psync',
      '--direct=1',
      '--loops=2',
      '--allow_file_create=0',
      '--numjobs=8',
      '--offset_increment=2m',
      '--size=2m',
      '--group_reporting',
      '--minimal',
      '--verify_state_save=0',
    ];
    const work = (async () => {
      do await run('fio', fio);
      while (restored < minRestored);
    })().finally(() => {
      isDone = true;
    });
    work.catch(() => undefined);
    while (!isDone && restored < minRestored) {
      await Promise.race([server.busy, work]);
      // At any point of its work.
      await delay(Math.random() * 20);
      await kill();
      server = await serve();
    }
    await work;
    expect(restored).toBeGreaterThanOrEqual(minRestored);
    const ended = once(server.child, 'exit');
    await run('umount', [at]);
    expect(await ended).toEqual([0, null]);
    close();
  });
});
