import { execFileSync } from 'node:child_process';
import { constants, mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { open } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { beforeEach, expect, onTestFinished, test, vi } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { scope } from '#testing/contracts/store.ts';
import { findHolders, searchHolders } from './holders.ts';
import { createOrphanWait, runByVariable, runForVariable } from './orphaned-programs.ts';

// These tests use a fake /proc, where a FIFO without a writer stands for a file of a process that is stuck on a dead server:
// reading it never ends.

let proc: string;
beforeEach(() => {
  proc = mkdtempSync(join(tmpdir(), 'stowage-proc-'));
  onTestFinished(async () => {
    await release();
    rmSync(proc, { recursive: true, force: true });
  });
});

const stuckFifos: string[] = [];

/** Undefined: reading that file never ends. */
function addProcess(pid: number, files: Readonly<Record<string, string | undefined>>): void {
  const folder = join(proc, `${pid}`);
  mkdirSync(join(folder, 'fd'), { recursive: true });
  for (const [name, text] of Object.entries(files)) {
    if (text !== undefined) writeFileSync(join(folder, name), text);
    else {
      execFileSync('mkfifo', [join(folder, name)]);
      stuckFifos.push(join(folder, name));
    }
  }
}

/** Ends the pending reads, as the end of the process would. */
async function release(): Promise<void> {
  for (const fifo of stuckFifos.splice(0)) {
    // Without a reader the FIFO cannot be opened.
    const writer = await open(fifo, constants.O_WRONLY | constants.O_NONBLOCK).catch(() => undefined);
    await writer?.close();
  }
}

const shortTimeout = { timeout: 8_000 };

const orphanFiles = (owner: string): Record<string, string> => ({
  environ: `PATH=/bin\0${runByVariable}=7\0${runForVariable}=${owner}\0`,
  status: 'Name:\tmount\nPPid:\t1\n',
});

test(
  'a stuck process delays the first call once and briefly; that call still waits for orphaned programs',
  shortTimeout,
  async () => {
    addProcess(10, { environ: undefined, status: '' });
    addProcess(11, orphanFiles('us'));
    const pauses: number[] = [];
    const waits: number[] = [];
    const realClock = systemClock();
    const clock = {
      ...realClock,
      after: (ms: number, then: () => void) =>
        realClock.after(ms, () => {
          waits.push(ms);
          then();
        }),
      sleep: async (ms: number): Promise<void> => {
        pauses.push(ms);
        if (pauses.length === 3) rmSync(join(proc, '11'), { recursive: true });
      },
    };
    await createOrphanWait(clock, 'us', proc)(scope);
    expect(pauses).toHaveLength(3);
    // Only the first of four calls waited for the stuck process.
    expect(waits).toHaveLength(1);
  },
);

test('asks a process again after it has answered', shortTimeout, async () => {
  addProcess(20, { environ: undefined, status: orphanFiles('us')['status'] });
  const waitForOrphans = (sleep: () => Promise<void>) =>
    createOrphanWait({ ...systemClock(), sleep }, 'us', proc)(scope);
  let pauses = 0;
  const countingSleep = async (): Promise<void> => {
    if (++pauses === 1) rmSync(join(proc, '20'), { recursive: true });
  };
  await waitForOrphans(countingSleep);
  expect(pauses).toBe(0);
  await release();
  rmSync(join(proc, '20', 'environ'));
  writeFileSync(join(proc, '20', 'environ'), orphanFiles('us')['environ'] ?? '');
  await vi.waitFor(async () => {
    await waitForOrphans(countingSleep);
    expect(pauses).toBe(1);
  });
});

test('a search for holders skips a stuck process', shortTimeout, async () => {
  addProcess(30, { maps: undefined });
  addProcess(31, { comm: 'vim\n', maps: '7f00-7f01 r--p 00000000 08:01 12 /data/file\n' });
  symlinkSync('/elsewhere', join(proc, '31', 'cwd'));
  expect(await findHolders('/data', systemClock(), scope, { proc })).toEqual([{ pid: 31, command: 'vim' }]);
});

test('a search is incomplete if a stuck process did not answer', shortTimeout, async () => {
  addProcess(31, { comm: 'vim\n', maps: '' });
  symlinkSync('/elsewhere', join(proc, '31', 'cwd'));
  const search = () => searchHolders('/data', systemClock(), scope, { proc });
  expect(await search()).toEqual({ holders: [], isComplete: true });
  addProcess(30, { maps: undefined });
  expect(await search()).toEqual({ holders: [], isComplete: false });
});

test('a search is incomplete if it did not see all mappings of a process', async () => {
  addProcess(31, { comm: 'vim\n', maps: '\n'.repeat(4 * 1024 * 1024 + 1) });
  symlinkSync('/elsewhere', join(proc, '31', 'cwd'));
  expect(await searchHolders('/data', systemClock(), scope, { proc })).toEqual({ holders: [], isComplete: false });
});
