import { mkdtempDisposable, readFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, onTestFinished, test, vi } from 'vitest';
import { type Clock, systemClock } from '#base/clock.ts';
import { collectingLog } from '#testing/core-calls.ts';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { type NfsChild, startNfsChild } from './nfs-child.ts';

interface Started {
  readonly child: NfsChild;
  readonly log: ReturnType<typeof collectingLog>;
  readonly ready: () => number;
}

/** A program that stands in for the server. */
function start(script: string, clock: Clock = systemClock()): Started {
  const log = collectingLog();
  let ready = 0;
  const onReady = (): void => {
    ready++;
  };
  const child = startNfsChild({ command: [process.execPath, '--eval', script], clock, log, onReady });
  onTestFinished(() => child[Symbol.asyncDispose]());
  return { child, log, ready: () => ready };
}

const patience = { timeout: 20_000, interval: 20 };
const steady = "process.send({ ready: true }); process.on('disconnect', () => process.exit());";
const isAlive = (pid: number | undefined): boolean => {
  try {
    return process.kill(pid ?? 0, 0);
  } catch {
    return false;
  }
};
const restarts = ({ log }: Started): string[] => log.lines.filter((line) => line.includes('restarting the NFS server'));

test('is running as soon as it reports so, and ends when it is stopped', async () => {
  const { child, ready } = start(steady);
  expect(child.problem).toMatchObject({ code: 'unavailable', reason: 'nfs-server-starting' });
  await vi.waitFor(() => expect(ready()).toBe(1), patience);
  expect(child.problem).toBeUndefined();
  const { pid } = child;
  expect(isAlive(pid)).toBe(true);
  await child[Symbol.asyncDispose]();
  expect(isAlive(pid)).toBe(false);
});

test('restarts a server that was killed', async () => {
  const started = start(steady);
  await vi.waitFor(() => expect(started.ready()).toBe(1), patience);
  const { pid = 0 } = started.child;
  process.kill(pid, 'SIGKILL');
  await vi.waitFor(() => expect(started.ready()).toBe(2), patience);
  expect(started.child.pid).not.toBe(pid);
  expect(started.child.problem).toBeUndefined();
  expect(restarts(started)).toHaveLength(1);
  expect(restarts(started)[0]).toContain('it exited with SIGKILL');
});

test('retries a server that cannot start with a growing back-off, for ever', async () => {
  const clock = createFakeClock();
  const started = start('process.exit(3)', clock);
  const waits: number[] = [];
  for (let n = 1; n <= 10; n++) {
    await vi.waitFor(() => expect(restarts(started)).toHaveLength(n), patience);
    waits.push(Number(/"afterMs":(\d+)/.exec(restarts(started).at(-1) ?? '')?.[1]));
    clock.advance(waits.at(-1) ?? 0);
  }
  expect(waits).toEqual([250, 500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000, 30_000]);
}, 60_000);

test('resets the back-off after a long run', async () => {
  const clock = createFakeClock();
  await using folder = await mkdtempDisposable(join(tmpdir(), 'stowage-nfs-child-'));
  const file = join(folder.path, 'starts');
  // Fails twice, then runs until it is killed.
  const script = `const fs = require('node:fs'); fs.appendFileSync(${JSON.stringify(file)}, 'x');
    if (fs.readFileSync(${JSON.stringify(file)}, 'utf8').length < 3) process.exit(1);
    ${steady}`;
  const started = start(script, clock);
  for (const [n, ms] of [250, 500].entries()) {
    await vi.waitFor(() => expect(restarts(started)).toHaveLength(n + 1), patience);
    clock.advance(ms);
  }
  await vi.waitFor(() => expect(started.ready()).toBe(1), patience);
  expect(await readFile(file, 'utf8')).toBe('xxx');
  clock.advance(60_000);
  process.kill(started.child.pid ?? 0, 'SIGKILL');
  await vi.waitFor(() => expect(restarts(started)).toHaveLength(3), patience);
  expect(restarts(started).at(-1)).toContain('"afterMs":250');
});

test.each([
  [
    'the error that the server printed',
    `console.error(JSON.stringify({ detail: 'it is cold', reason: 'x', action: 'Heat it.' }))`,
    'it is cold',
    'Heat it.',
  ],
  [
    'advice about the port in the words of stowage up',
    `console.error(JSON.stringify({ detail: 'taken', reason: 'nfs-port-in-use', action: '--port' }))`,
    'taken',
    'Stop the program that uses it, or choose another port: stowage up --nfs PORT',
  ],
  ['the error in a stack trace', 'process.nothing.at.all', 'TypeError: Cannot read', ''],
  ['the exit status', 'process.exit(7)', 'it exited with status 7', ''],
])('problem contains %s', async (_what, script, why, action) => {
  const started = start(script, createFakeClock());
  await vi.waitFor(() => expect(restarts(started)).toHaveLength(1), patience);
  expect(started.child.problem).toMatchObject({ code: 'unavailable', reason: 'nfs-server-down' });
  expect(started.child.problem?.message).toContain(`the embedded NFS server is not running: ${why}`);
  expect(started.child.problem?.action).toContain(action || 'Stowage restarts it automatically');
});

test('reports a program that does not exist', async () => {
  const log = collectingLog();
  const command = ['/nonexistent/stowage'] as const;
  await using child = startNfsChild({ command, clock: createFakeClock(), log, onReady: () => undefined });
  await vi.waitFor(() => expect(log.lines).toHaveLength(1), patience);
  expect(child.problem?.message).toContain('spawn /nonexistent/stowage ENOENT');
});

test("forwards the server's log", async () => {
  const started = start(`console.error(JSON.stringify({ level: 'warn', time: 1, msg: 'odd', what: 5 })); ${steady}`);
  await vi.waitFor(() => expect(started.log.lines).toContain('warn odd {"what":5,"by":"the NFS server"}'), patience);
});
