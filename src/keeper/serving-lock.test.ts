import { execFile } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { lacks } from '#testbed/lacks.ts';
import { holdServingLock, isServed } from './serving-lock.ts';

const run = promisify(execFile);
const clock = systemClock();

describe.skipIf(lacks('linux'))('the serving lock', () => {
  let folder: string;
  let path: string;

  beforeEach(() => {
    folder = mkdtempSync(join(tmpdir(), 'stowage-presence-'));
    path = join(folder, 'sock');
    onTestFinished(() => rmSync(folder, { recursive: true }));
  });

  test('is visible while it is held, and checking creates no file', () => {
    expect(isServed(path)).toBe(false);
    const lock = holdServingLock(path, clock);
    expect(isServed(path)).toBe(true);
    lock[Symbol.dispose]();
    expect(isServed(path)).toBe(false);
  });

  test('does not follow a link, and a folder does not count', () => {
    using _ = holdServingLock(join(folder, 'other'), clock);
    symlinkSync(join(folder, 'other.serving'), `${path}.serving`);
    expect(isServed(path)).toBe(false);
    mkdirSync(join(folder, 'third.serving'));
    expect(isServed(join(folder, 'third'))).toBe(false);
  });

  test('does not block on a FIFO without a writer', { timeout: 30_000 }, async () => {
    await run('mkfifo', [`${path}.serving`]);
    const program = join(folder, 'look.mjs');
    const modulePath = JSON.stringify(join(import.meta.dirname, 'serving-lock.ts'));
    writeFileSync(
      program,
      `import { isServed } from ${modulePath};\nconsole.log(isServed(${JSON.stringify(path)}));\n`,
    );
    // In a separate process: one blocked on the FIFO does nothing else.
    const flags = ['--disable-warning=ExperimentalWarning'];
    expect((await run(process.execPath, [...flags, program], { timeout: 15_000, killSignal: 'SIGKILL' })).stdout).toBe(
      'false\n',
    );
  });
});
