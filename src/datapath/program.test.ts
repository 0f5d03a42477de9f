import { execFileSync } from 'node:child_process';
import { closeSync, constants, existsSync, openSync } from 'node:fs';
import { join } from 'node:path';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { queryObjects } from 'node:v8';
import { describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { silentLog } from '#base/log.ts';
import { needs } from '#testbed/needs.ts';
import { createScratchFolder } from '#testing/scratch-folder.ts';
import { inHeaderSize, opcode } from '#wire/fuse/abi.ts';
import { createJournal, openJournal } from './journal/memory.ts';
import { createMountRows } from './journal/mounts.ts';
import { createRequests } from './journal/requests.ts';
import type { MountSpec } from './mount-spec.ts';
import { type ReceivedMount, startProgram } from './program.ts';

const spec: MountSpec = {
  version: 1,
  addresses: ['127.0.0.1'],
  port: 1,
  connections: 1,
  privilegedPorts: false,
  tls: undefined,
  root: Buffer.alloc(28).toString('base64'),
  squash: 'none',
  uid: 0,
  gid: 0,
  softMs: undefined,
  readOnly: false,
  maxRead: 65_536,
  maxWrite: 65_536,
  cacheMs: 1_000,
  locks: 'node',
};

interface Told {
  readonly unserved: string[];
  readonly ended: string[];
}

/** A program without mounts, and its reports. `open` returns a device that never delivers a request. */
async function started() {
  const ground = createScratchFolder();
  const device = join(ground.folder, 'device');
  execFileSync('mkfifo', [device]);
  const journal = createJournal(8);
  const stop = new AbortController();
  onTestFinished(() => {
    stop.abort();
    closeSync(journal);
    ground[Symbol.dispose]();
  });
  const told: Told = { unserved: [], ended: [] };
  const start = (mounts: readonly ReceivedMount[] = []) =>
    startProgram(
      { journal, mounts, sockets: [] },
      {
        clock: systemClock(),
        log: silentLog(),
        signal: stop.signal,
        report: () => undefined,
        ended: (id) => void told.ended.push(id),
        unserved: (id) => void told.unserved.push(id),
        holder: { hold: () => '', letGo: () => undefined },
      },
    );
  const open = (): number => openSync(device, constants.O_RDWR | constants.O_NONBLOCK);
  const rows = (): readonly string[] =>
    createMountRows(openJournal(journal))
      .all()
      .map(({ id }) => id);
  return { start, told, open, rows, journal };
}

const isOpen = (fd: number): boolean => existsSync(`/proc/self/fd/${fd}`);

describe.skipIf(needs('linux'))("the data path's program", () => {
  test('keeps nothing of removed mounts', async () => {
    const { start, open } = await started();
    const program = await start();
    const comeAndGo = async (times: number): Promise<number> => {
      for (let i = 0; i < times; i++) {
        await program.add({ id: 'one', spec, fd: open() });
        program.remove('one');
        await nextTurn();
      }
      return queryObjects(Map, { format: 'count' });
    };
    const before = await comeAndGo(5);
    // A file system references more than ten.
    await comeAndGo(20);
    // On a busy machine, a part is cleaned up later.
    await expect.poll(async () => (await comeAndGo(0)) - before).toBeLessThan(20);
  });

  test('keeps nothing of a mount that is removed before it is served', async () => {
    const { start, open, rows } = await started();
    const program = await start();
    const fd = open();
    const adding = program.add({ id: 'one', spec, fd });
    program.remove('one');
    // A later mount with the same id.
    const again = open();
    const addingAgain = program.add({ id: 'one', spec, fd: again });
    await Promise.all([adding, addingAgain]);
    expect(rows()).toEqual(['one']);
    await expect.poll(() => isOpen(fd)).toBe(false);
    expect(isOpen(again)).toBe(true);
    program.remove('one');
    expect(rows()).toEqual([]);
    await expect.poll(() => isOpen(again)).toBe(false);
  });

  test('reports a mount that it cannot serve, serves the others, and drops it when asked to', async () => {
    const { start, told, open, rows } = await started();
    const first = await start();
    for (const id of ['good', 'bad']) await first.add({ id, spec, fd: open() });
    const [good, bad] = [open(), open()];
    const program = await start([
      { id: 'bad', spec: { ...spec, version: 2 }, fd: bad },
      { id: 'good', spec, fd: good },
    ]);
    expect(told.unserved).toEqual(['bad']);
    expect([isOpen(good), isOpen(bad)]).toEqual([true, false]);
    // Another program, to which the keeper may return, finds it unchanged.
    expect(rows().toSorted()).toEqual(['bad', 'good']);
    program.remove('bad');
    expect(rows()).toEqual(['good']);
    await expect(program.add({ id: 'bad', spec: {}, fd: open() })).rejects.toThrow('version');
    expect(told.unserved).toEqual(['bad', 'bad']);
  });

  test('can be stopped while a server is silent, without blaming waiting requests', async () => {
    const { start, open, journal } = await started();
    const before = await start();
    await before.add({ id: 'one', spec, fd: open() });
    const requests = createRequests(openJournal(journal));
    requests.unfinished();
    const slot = requests.arm(0) ?? expect.fail();
    slot.buffer.fill(0, 0, inHeaderSize + 16);
    slot.view.setUint32(0, inHeaderSize + 16, true);
    slot.view.setUint32(4, opcode.getattr, true);
    slot.view.setUint32(8, 2, true);
    slot.view.setUint32(16, 1, true);
    requests.take(0, slot, inHeaderSize + 16);
    const program = await start([{ id: 'one', spec, fd: open() }]);
    await program.stop();
    const left = (): unknown => createRequests(openJournal(journal)).unfinished();
    expect(left()).toMatchObject([{ crashCount: 1 }]);
    // This process was not told to stop.
    expect(left()).toMatchObject([{ crashCount: 2 }]);
    program.remove('one');
  });

  test('releases a mount whose journal entries are unreadable', async () => {
    const { start, told, open, journal } = await started();
    const before = await start();
    await before.add({ id: 'one', spec, fd: open() });
    const requests = createRequests(openJournal(journal));
    requests.unfinished();
    const slot = requests.arm(0) ?? expect.fail();
    slot.buffer.fill(0, 0, inHeaderSize + 40);
    slot.view.setUint32(0, inHeaderSize + 40, true);
    slot.view.setUint32(4, opcode.write, true);
    // Its header claims more data than it has.
    slot.view.setUint32(inHeaderSize + 16, 100, true);
    const { place } = requests.take(0, slot, inHeaderSize + 40) ?? expect.fail();
    requests.behind(place);
    const fd = open();
    const program = await start([{ id: 'one', spec, fd }]);
    expect(told.unserved).toEqual(['one']);
    expect(isOpen(fd)).toBe(false);
    program.remove('one');
    const again = open();
    await program.add({ id: 'one', spec, fd: again });
    await nextTurn();
    expect([isOpen(again), told]).toEqual([true, { unserved: ['one'], ended: [] }]);
    program.remove('one');
    await nextTurn();
    expect([isOpen(again), told.ended]).toEqual([false, []]);
  });
});
