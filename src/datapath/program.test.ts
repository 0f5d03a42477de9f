import { execFileSync } from 'node:child_process';
import { closeSync, constants, openSync } from 'node:fs';
import { join } from 'node:path';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { queryObjects } from 'node:v8';
import { describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { silentLog } from '#base/log.ts';
import { needs } from '#testbed/needs.ts';
import { createGround } from '#testing/ground.ts';
import { createJournal } from './journal/memory.ts';
import type { MountSpec } from './mount-spec.ts';
import { startProgram } from './program.ts';

const spec: MountSpec = {
  ...{ version: 1, addresses: ['127.0.0.1'], port: 1, connections: 1, privilegedPorts: false, tls: undefined },
  ...{ root: Buffer.alloc(28).toString('base64'), squash: 'none', uid: 0, gid: 0, softMs: undefined, readOnly: false },
  ...{ maxRead: 65_536, maxWrite: 65_536, cacheMs: 1_000, locks: 'node' },
};

describe.skipIf(needs('linux'))('the program that serves all mounts', () => {
  test('keeps nothing of mounts that are gone', async () => {
    using ground = createGround();
    // Nothing ever comes from it, as from the device of a mount that nobody uses.
    const device = join(ground.folder, 'device');
    execFileSync('mkfifo', [device]);
    const journal = createJournal(8);
    const stop = new AbortController();
    onTestFinished(() => {
      stop.abort();
      closeSync(journal);
    });
    const program = await startProgram(
      { journal, mounts: [], sockets: [] },
      {
        ...{ clock: systemClock(), log: silentLog(), signal: stop.signal, ended: () => undefined },
        holder: { hold: () => '', letGo: () => undefined },
      },
    );
    const comeAndGo = async (times: number): Promise<number> => {
      for (let i = 0; i < times; i++) {
        await program.add({ id: 'one', spec, fd: openSync(device, constants.O_RDWR | constants.O_NONBLOCK) });
        program.remove('one');
        await nextTurn();
      }
      return queryObjects(Map, { format: 'count' });
    };
    const before = await comeAndGo(5);
    // A file system has more than ten.
    expect((await comeAndGo(20)) - before).toBeLessThan(20);
  });
});
