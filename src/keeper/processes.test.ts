import { closeSync, readdirSync, readFileSync } from 'node:fs';
import { describe, expect, test, vi } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { socketPair } from '#base/linux/socket-pair.ts';
import { lacks } from '#testbed/lacks.ts';
import { eventually } from '#testing/keeper/keeper-process.ts';
import { startChild } from './processes.ts';

// Only a seccomp profile or a shortage of descriptors would refuse it.
vi.mock(import('./system-calls.ts'), async (original) => ({
  ...(await original()),
  openPidfd: () => {
    throw new Error('pidfd_open: EMFILE');
  },
}));

// It would keep running for as long as a test may take.
const flags = ['--eval', 'setTimeout(() => undefined, 60_000)'];
const options = { clock: systemClock(), flags, log: 2 };
const countDescriptors = (): number => readdirSync('/proc/self/fd').length;
const children = (): readonly string[] =>
  readdirSync('/proc/self/task')
    .flatMap((id) => readFileSync(`/proc/self/task/${id}/children`, 'utf8').split(' '))
    .filter((pid) => pid !== '');

describe.skipIf(lacks('linux'))('a program that cannot be started', () => {
  test.each([
    ['the system refuses it', 'no \0 program', /null bytes/],
    ['it cannot be watched', 'a program', /EMFILE/],
  ])('leaves nothing behind when %s', async (_, program, why) => {
    // Loads modules that keep descriptors open.
    for (const fd of socketPair()) closeSync(fd);
    const before = [countDescriptors(), children().length];
    for (let i = 0; i < 3; i++) expect(() => startChild(program, options)).toThrow(why);
    await eventually(
      () => [countDescriptors(), children().length],
      (now) => String(now) === String(before),
    );
  });
});
