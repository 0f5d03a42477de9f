import { execFileSync } from 'node:child_process';
import { closeSync, constants, existsSync, openSync } from 'node:fs';
import { join } from 'node:path';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { queryObjects } from 'node:v8';
import { describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { silentLog } from '#base/log.ts';
import { lacks } from '#testbed/lacks.ts';
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

interface ProgramReports {
  readonly unserved: string[];
  readonly ended: string[];
}

/** A program without mounts, and its reports. `open` returns a device that never delivers a request. */
async function createTestProgram() {
  const scratch = createScratchFolder();
  const device = join(scratch.folder, 'device');
  execFileSync('mkfifo', [device]);
  const journal = createJournal(8);
  const stop = new AbortController();
  onTestFinished(() => {
    stop.abort();
    closeSync(journal);
    scratch[Symbol.dispose]();
  });
  const reports: ProgramReports = { unserved: [], ended: [] };
  const start = (mounts: readonly ReceivedMount[] = []) =>
    startProgram(
      { journal, mounts, sockets: [] },
      {
        clock: systemClock(),
        log: silentLog(),
        signal: stop.signal,
        report: () => undefined,
        reportEnded: (id) => void reports.ended.push(id),
        reportUnserved: (id) => void reports.unserved.push(id),
        holder: { hold: () => '', release: () => undefined },
      },
    );
  const open = (): number => openSync(device, constants.O_RDWR | constants.O_NONBLOCK);
  const mountIds = (): readonly string[] =>
    createMountRows(openJournal(journal))
      .all()
      .map(({ id }) => id);
  return { start, told: reports, open, rows: mountIds, journal };
}

const isOpen = (fd: number): boolean => existsSync(`/proc/self/fd/${fd}`);

describe.skipIf(lacks('linux'))("the data path's program", () => {
  test('keeps nothing of removed mounts', async () => {
    const { start, open } = await createTestProgram();
    const program = await start();
    const addAndRemove = async (times: number): Promise<number> => {
      for (let i = 0; i < times; i++) {
        await program.add({ id: 'one', spec, fd: open() });
        program.remove('one');
        await nextTurn();
      }
      return queryObjects(Map, { format: 'count' });
    };
    const before = await addAndRemove(5);
    // A file system references more than ten.
    await addAndRemove(20);
    // On a busy machine, a part is cleaned up later.
    await expect.poll(async () => (await addAndRemove(0)) - before).toBeLessThan(20);
  });

  test('keeps nothing of a mount that is removed before it is served', async () => {
    const { start, open, rows } = await createTestProgram();
    const program = await start();
    const fd = open();
    const adding = program.add({ id: 'one', spec, fd });
    program.remove('one');
    // A later mount with the same id.
    const secondFd = open();
    const addingAgain = program.add({ id: 'one', spec, fd: secondFd });
    await Promise.all([adding, addingAgain]);
    expect(rows()).toEqual(['one']);
    await expect.poll(() => isOpen(fd)).toBe(false);
    expect(isOpen(secondFd)).toBe(true);
    program.remove('one');
    expect(rows()).toEqual([]);
    await expect.poll(() => isOpen(secondFd)).toBe(false);
  });

  test('reports a mount that it cannot serve, serves the others, and drops it when asked to', async () => {
    const { start, told, open, rows } = await createTestProgram();
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
    const { start, open, journal } = await createTestProgram();
    const predecessor = await start();
    await predecessor.add({ id: 'one', spec, fd: open() });
    const requests = createRequests(openJournal(journal));
    requests.restoreUnfinished();
    const slot = requests.arm(0) ?? expect.fail();
    slot.buffer.fill(0, 0, inHeaderSize + 16);
    slot.view.setUint32(0, inHeaderSize + 16, true);
    slot.view.setUint32(4, opcode.getattr, true);
    slot.view.setUint32(8, 2, true);
    slot.view.setUint32(16, 1, true);
    requests.take(0, slot, inHeaderSize + 16);
    const program = await start([{ id: 'one', spec, fd: open() }]);
    await program.stop();
    const unfinishedRequests = (): unknown => createRequests(openJournal(journal)).restoreUnfinished();
    expect(unfinishedRequests()).toMatchObject([{ crashCount: 1 }]);
    // This process was not told to stop.
    expect(unfinishedRequests()).toMatchObject([{ crashCount: 2 }]);
    program.remove('one');
  });

  test('releases a mount whose journal entries are unreadable', async () => {
    const { start, told, open, journal } = await createTestProgram();
    const predecessor = await start();
    await predecessor.add({ id: 'one', spec, fd: open() });
    const requests = createRequests(openJournal(journal));
    requests.restoreUnfinished();
    const slot = requests.arm(0) ?? expect.fail();
    slot.buffer.fill(0, 0, inHeaderSize + 40);
    slot.view.setUint32(0, inHeaderSize + 40, true);
    slot.view.setUint32(4, opcode.write, true);
    // Its header claims more data than it has.
    slot.view.setUint32(inHeaderSize + 16, 100, true);
    const { place } = requests.take(0, slot, inHeaderSize + 40) ?? expect.fail();
    requests.markBehind(place);
    const fd = open();
    const program = await start([{ id: 'one', spec, fd }]);
    expect(told.unserved).toEqual(['one']);
    expect(isOpen(fd)).toBe(false);
    program.remove('one');
    const secondFd = open();
    await program.add({ id: 'one', spec, fd: secondFd });
    await nextTurn();
    expect([isOpen(secondFd), told]).toEqual([true, { unserved: ['one'], ended: [] }]);
    program.remove('one');
    await nextTurn();
    expect([isOpen(secondFd), told.ended]).toEqual([false, []]);
  });
});
