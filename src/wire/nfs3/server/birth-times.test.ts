import { execFileSync } from 'node:child_process';
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { lacks } from '#testbed/lacks.ts';
import { createNfsServer } from './server.ts';

describe.skipIf(lacks('mount'))('a server on a file system without birth times', () => {
  test('does not start if it is to confine callers, and leaves the directory as it was', async () => {
    const [directory, state] = ['ramfs', 'state'].map((name) => {
      const folder = mkdtempSync(join(tmpdir(), `stowage-${name}-`));
      onTestFinished(() => rmSync(folder, { recursive: true }));
      return folder;
    }) as [string, string];
    execFileSync('mount', ['-t', 'ramfs', 'stowage-test', directory]);
    onTestFinished(() => void execFileSync('umount', ['--lazy', directory]));
    const start = (confined: readonly string[]) =>
      createNfsServer({ clock: systemClock(), directory, state, port: 0, confined });
    await expect(start(['keeper'])).rejects.toThrow('is on a file system without birth times');
    expect(readdirSync(directory)).toEqual([]);
    await (await start([])).close();
  });
});
