import { type ChildProcess, execFile, execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, constants, mkdirSync, openSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as delay } from 'node:timers/promises';
import { promisify } from 'node:util';
import { describe, expect, onTestFinished, test } from 'vitest';
import { createMemory } from '#base/linux/memory.ts';
import { needs } from '#testbed/needs.ts';
import { usualWishes } from '#testing/fuse-mount.ts';
import { createGround } from '#testing/ground.ts';
import type { Slot } from '#wire/fuse/device.ts';
import { lines } from './journal/layout.ts';
import { createJournal, openJournal } from './journal/memory.ts';
import { createRequests } from './journal/requests.ts';
import { serveMount } from './served-mount.ts';

const run = promisify(execFile);
const statfs = { opcode: 17, length: 40 } as const;
const program = join(import.meta.dirname, '../testing/crashing-mount-child.ts');

interface Started {
  readonly child: ChildProcess;
  /** By the one before. */
  readonly left: number;
  /** It has read something; or has ended. */
  readonly busy: Promise<unknown>;
}

/** Mounted, and served by a process that can be killed and followed by another. */
async function mounted(at: string) {
  mkdirSync(at);
  const fuse = openSync('/dev/fuse', constants.O_RDWR | constants.O_NONBLOCK);
  const [journal, data] = [createJournal(), createMemory('test-data', 16 * 1024 * 1024)];
  const options = 'fd=3,rootmode=40000,user_id=0,group_id=0,allow_other';
  const mount = spawn('mount', ['-i', '-t', 'fuse', '-o', options, 'stowage-test', at], {
    stdio: ['ignore', 'inherit', 'inherit', fuse],
  });
  expect(await once(mount, 'exit')).toEqual([0, null]);
  const start = async (...how: readonly string[]): Promise<Started> => {
    const flags = how.includes('by-a-thread') ? ['--import', 'data:text/javascript,delete process._tickCallback'] : [];
    const child: ChildProcess = spawn(process.execPath, ['--no-warnings', ...flags, program, ...how], {
      stdio: ['ignore', 'pipe', 'inherit', fuse, journal, data],
    });
    const said = createInterface(child.stdout ?? expect.fail())[Symbol.asyncIterator]();
    const { value } = await said.next();
    return { child, left: Number(/left (\d+)/.exec(String(value))?.[1]), busy: said.next() };
  };
  const close = (): void => {
    for (const fd of [fuse, journal, data]) closeSync(fd);
  };
  return { start, close };
}

test.skipIf(needs('linux'))(
  'a request for which the one before had no room is answered when there is some',
  async () => {
    using ground = createGround();
    // Nothing ever comes from it, as from the device of a mount that nobody uses.
    const device = join(ground.folder, 'device');
    execFileSync('mkfifo', [device]);
    const journal = createJournal(8);
    onTestFinished(() => closeSync(journal));
    const put = (slot: Slot, unique: number): number => {
      slot.buffer.fill(0, 0, statfs.length);
      slot.view.setUint32(0, statfs.length, true);
      slot.view.setUint32(4, statfs.opcode, true);
      slot.view.setUint32(8, unique, true);
      slot.view.setUint32(16, 1, true);
      return statfs.length;
    };
    const before = createRequests(openJournal(journal));
    const [own, others] = [before.arm(0) ?? expect.fail(), before.arm(1) ?? expect.fail()];
    for (let i = 1; i <= lines; i++) before.take(1, others, put(others, i));
    put(own, lines + 1);

    const requests = createRequests(openJournal(journal));
    requests.left();
    const paused = new Set<() => void>();
    let asked = 0;
    using _served = await serveMount({
      ...{ fd: openSync(device, constants.O_RDWR | constants.O_NONBLOCK), mount: 0, requests, paused, left: [] },
      operations: {
        statfs: () => {
          asked++;
          return new Promise<never>(() => undefined);
        },
      },
      ...{ wishes: usualWishes, onBehind: () => expect.fail(), onAgreed: () => undefined, onEnd: () => undefined },
      onFault: (_operation, cause) => expect.fail(String(cause)),
    });
    expect([asked, paused.size]).toEqual([0, 1]);
    requests.free(5);
    for (const wake of [...paused]) wake();
    expect([asked, paused.size]).toEqual([1, 0]);
  },
);

describe.skipIf(needs('fuse', 'fio'))('a mount whose server is killed again and again', () => {
  test('a request over which ten have ended is given up, and the mount goes on', async () => {
    using ground = createGround();
    const at = join(ground.folder, 'mnt');
    const { start, close } = await mounted(at);
    let reading: Promise<unknown> | undefined;
    for (let deaths = 0; deaths < 10; deaths++) {
      const { child, left } = await start('dies-reading');
      const died = once(child, 'exit');
      expect(left).toBe(deaths === 0 ? 0 : 1);
      reading ??= run('dd', [`if=${join(at, 'data')}`, 'bs=4096', 'count=1', 'iflag=direct'], { timeout: 60_000 });
      reading.catch(() => undefined);
      expect(await died).toEqual([null, 'SIGKILL']);
    }
    const { child, left } = await start('dies-reading');
    expect(left).toBe(1);
    await expect(reading).rejects.toThrow('Input/output error');
    expect((await run('stat', ['--format=%n', at])).stdout.trim()).toBe(at);
    const ended = once(child, 'exit');
    await run('umount', [at]);
    expect(await ended).toEqual([0, null]);
    close();
  });

  test('a WRITE that was kept and not answered is answered by the next one', async () => {
    using ground = createGround();
    const at = join(ground.folder, 'mnt');
    const { start, close } = await mounted(at);
    const { child: first } = await start('dies-behind');
    const died = once(first, 'exit');
    const text = 'x'.repeat(100_000);
    const write = 'printf %s "$2" | dd of="$1/data" bs=1M iflag=fullblock conv=notrunc status=none';
    const writing = run('sh', ['-c', write, 'sh', at, text], { timeout: 20_000 });
    writing.catch(() => undefined);
    expect(await died).toEqual([null, 'SIGKILL']);
    const { child, left } = await start();
    expect(left).toBeGreaterThan(0);
    await writing;
    const { stdout } = await run('head', ['-c', `${text.length}`, join(at, 'data')], { maxBuffer: 2 ** 20 });
    expect(stdout).toBe(text);
    const ended = once(child, 'exit');
    await run('umount', [at]);
    await ended;
    close();
  });

  const ways = [
    ['', []],
    [', where a thread waits for them', ['by-a-thread']],
  ] as const;
  test.each(ways)('no request is lost, and none is answered wrongly%s', { timeout: 120_000 }, async (_, how) => {
    using ground = createGround();
    const at = join(ground.folder, 'mnt');
    const { start, close } = await mounted(at);
    // Kills alone do not count: there may be nothing under way yet.
    const enough = 12;
    let restored = 0;
    const serve = async (): Promise<Started> => {
      const started = await start(...how);
      restored += started.left;
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
      ...['--name=x', `--filename=${at}/data`, '--rw=randrw', '--bs=4k-1m', '--size=16m', '--verify=crc32c'],
      ...['--verify_fatal=1', '--ioengine=psync', '--direct=1', '--loops=2', '--allow_file_create=0'],
      ...[
        '--numjobs=8',
        '--offset_increment=2m',
        '--size=2m',
        '--group_reporting',
        '--minimal',
        '--verify_state_save=0',
      ],
    ];
    const work = (async () => {
      do await run('fio', fio);
      while (restored < enough);
    })().finally(() => {
      isDone = true;
    });
    work.catch(() => undefined);
    while (!isDone && restored < enough) {
      await Promise.race([server.busy, work]);
      // Anywhere in what it does.
      await delay(Math.random() * 20);
      await kill();
      server = await serve();
    }
    await work;
    expect(restored).toBeGreaterThanOrEqual(enough);
    const ended = once(server.child, 'exit');
    await run('umount', [at]);
    expect(await ended).toEqual([0, null]);
    close();
  });
});
