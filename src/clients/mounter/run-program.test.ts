import { existsSync } from 'node:fs';
import { chmod, mkdtempDisposable, readFile, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { type Clock, systemClock } from '#base/clock.ts';
import { type Scope, silentLog } from '#base/log.ts';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { CommandFailed, createRunProgram, type RunProgram } from './run-program.ts';

const scope = (signal = new AbortController().signal): Scope => ({ signal, log: silentLog() });

/** A machine whose `mount` is the given script. */
async function createMachine(
  script: string,
  clock: Clock = systemClock(),
): Promise<AsyncDisposable & { readonly run: RunProgram; readonly folder: string }> {
  const folder = await mkdtempDisposable(join(tmpdir(), 'stowage-run-'));
  const file = join(folder.path, 'mount');
  await writeFile(file, `#!/bin/sh\n${script}\n`);
  await chmod(file, 0o755);
  return {
    run: createRunProgram(clock, `${folder.path}:/usr/bin:/bin`),
    folder: folder.path,
    [Symbol.asyncDispose]: () => folder.remove(),
  };
}

/** Writes the process id atomically, so that a reader that finds the file also finds the number in it. */
const sleepScript = 'echo $$ > "$1.new"; mv "$1.new" "$1"; exec sleep 100';

async function waitUntil(condition: () => boolean): Promise<void> {
  await expect.poll(condition, { timeout: 20_000, interval: 20 }).toBe(true);
}

const isAlive = (pid: number): boolean => {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
};

describe('run', () => {
  test("returns the program's output, with unchanged arguments and the C locale", async () => {
    await using machine = await createMachine('printf "%s|" "$@" "$LC_ALL" "$HOME"');
    expect(await machine.run('mount', ['a b', '$(id)', ';', '*', ''], scope())).toBe('a b|$(id)|;|*||C||');
  });

  test('reports a failure with the last meaningful line of stderr', async () => {
    await using machine = await createMachine(
      'echo first >&2; echo "mount: /x: no." >&2; echo "       dmesg(1) may have more" >&2; exit 32',
    );
    const failed = await machine.run('mount', [], scope()).catch((cause: unknown) => cause);
    expect(failed).toBeInstanceOf(CommandFailed);
    expect(failed).toMatchObject({ exit: 32, message: 'mount: mount: /x: no.' });
  });

  test('reports a failure without output with the exit status, or the signal', async () => {
    await using machine = await createMachine('[ "$1" = die ] && kill -9 $$; exit 3');
    await expect(machine.run('mount', [], scope())).rejects.toThrow('mount: exit status 3');
    await expect(machine.run('mount', ['die'], scope())).rejects.toThrow('mount: ended by SIGKILL');
  });

  test('names the packages of a missing program', async () => {
    await using machine = await createMachine('');
    const run = createRunProgram(systemClock(), machine.folder);
    await expect(run('xfs_repair', [], scope())).rejects.toMatchObject({
      code: 'unsupported',
      reason: 'tool-missing',
      message: 'the program xfs_repair is not installed',
      action: 'Install it: apt install xfsprogs (Debian, Ubuntu) or apk add xfsprogs (Alpine).',
    });
  });

  test('reads endless output without keeping it', async () => {
    await using machine = await createMachine(
      'head -c 3000000 /dev/zero | tr "\\0" x; head -c 100000 /dev/zero | tr "\\0" y >&2; echo last >&2',
    );
    expect((await machine.run('mount', [], scope())).length).toBe(256 * 1024);
  });

  test('kills the program at the deadline, with an error that says so', async () => {
    const clock = createFakeClock();
    await using machine = await createMachine(sleepScript, clock);
    const pidFile = join(machine.folder, 'pid');
    const running = machine.run('mount', [pidFile], scope());
    await waitUntil(() => existsSync(pidFile));
    clock.advance(30_000);
    await expect(running).rejects.toMatchObject({
      code: 'deadline',
      reason: 'command-deadline',
      message: 'mount did not finish within 30 s',
    });
    expect(isAlive(Number(await readFile(pidFile, 'utf8')))).toBe(false);
  });

  test('kills the program of a cancelled call, and throws the reason of the signal', async () => {
    await using machine = await createMachine(sleepScript);
    const pidFile = join(machine.folder, 'pid');
    const cancel = new AbortController();
    const running = machine.run('mount', [pidFile], scope(cancel.signal));
    await waitUntil(() => existsSync(pidFile));
    cancel.abort(new Error('enough'));
    await expect(running).rejects.toThrow('enough');
    expect(isAlive(Number(await readFile(pidFile, 'utf8')))).toBe(false);
  });

  test('starts nothing after a cancelled call', async () => {
    await using machine = await createMachine('touch "$1"');
    const mark = join(machine.folder, 'mark');
    await expect(machine.run('mount', [mark], scope(AbortSignal.abort(new Error('enough'))))).rejects.toThrow('enough');
    expect(existsSync(mark)).toBe(false);
  });

  test('lets a program finish that must not be stopped half-way', async () => {
    await using machine = await createMachine(
      'touch "$1"; while [ ! -e "$2" ]; do sleep 0.05; done; echo word; touch "$3"',
    );
    const [startedFile, finishFile, doneFile] = ['begun', 'go', 'done'].map((name) => join(machine.folder, name)) as [
      string,
      string,
      string,
    ];
    const cancel = new AbortController();
    const running = machine.run('mount', [startedFile, finishFile, doneFile], scope(cancel.signal), {
      letFinish: true,
    });
    await waitUntil(() => existsSync(startedFile));
    cancel.abort(new Error('enough'));
    await expect(running).rejects.toThrow('enough');
    await writeFile(finishFile, '');
    await waitUntil(() => existsSync(doneFile));
  });
});
