import { closeSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, onTestFinished, test, vi } from 'vitest';
import { connectTo, listenAt } from '#base/linux/descriptor-sockets.ts';
import { lacks } from '#testbed/lacks.ts';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { settled } from '#testing/keeper/fake-children.ts';
import { createPeerTerminator } from './peer-terminator.ts';

// Like a kernel before 6.5, which offers only a pid that is not visible in this container.
vi.mock(import('./system-calls.ts'), async (original) => ({ ...(await original()), openPeerPidfd: () => undefined }));

describe.skipIf(lacks('linux'))('a keeper known only by its socket', () => {
  /** The other keeper and its terminator. */
  function createListener() {
    const folder = mkdtempSync(join(tmpdir(), 'stowage-before-'));
    onTestFinished(() => rmSync(folder, { recursive: true }));
    const path = join(folder, 'sock');
    const listening = listenAt(path);
    const fd = connectTo(path);
    onTestFinished(() => closeSync(fd));
    const clock = createFakeClock();
    return { clock, listening, end: createPeerTerminator(fd, path, clock) };
  }

  test('is gone when no process listens there', async () => {
    const { clock, listening, end } = createListener();
    const results: boolean[] = [];
    const result = end().then((hasGone) => results.push(hasGone));
    for (let ms = 0; ms < 1_000; ms += 50) {
      clock.advance(50);
      await settled();
    }
    expect(results).toEqual([]);
    closeSync(listening);
    clock.advance(50);
    await result;
    expect(results).toEqual([true]);
  });

  test('that keeps listening is waited for with a limit', async () => {
    const { clock, listening, end } = createListener();
    onTestFinished(() => closeSync(listening));
    const ending = end();
    for (let ms = 0; ms <= 5_100; ms += 50) {
      clock.advance(50);
      await settled();
    }
    expect(await ending).toBe(false);
  });
});
