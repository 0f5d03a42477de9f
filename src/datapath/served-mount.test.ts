import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, constants, mkdirSync, openSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { describe, expect, test } from 'vitest';
import { createMemory } from '#base/linux/memory.ts';
import { needs } from '#testbed/needs.ts';
import { createGround } from '#testing/ground.ts';
import { createJournal } from './journal/memory.ts';

const run = promisify(execFile);
const program = join(import.meta.dirname, '../testing/crashing-mount-child.ts');

describe.skipIf(needs('fuse', 'fio'))('a mount whose server is killed again and again', () => {
  test('no request is lost, and none is answered wrongly', { timeout: 120_000 }, async () => {
    using ground = createGround();
    const at = join(ground.folder, 'mnt');
    mkdirSync(at);
    const fuse = openSync('/dev/fuse', constants.O_RDWR | constants.O_NONBLOCK);
    const [journal, data] = [createJournal(), createMemory('test-data', 16 * 1024 * 1024)];
    const options = 'fd=3,rootmode=40000,user_id=0,group_id=0,allow_other';
    const mount = spawn('mount', ['-i', '-t', 'fuse', '-o', options, 'stowage-test', at], {
      stdio: ['ignore', 'inherit', 'inherit', fuse],
    });
    expect(await once(mount, 'exit')).toEqual([0, null]);
    // Kills alone do not count: there may be nothing under way yet.
    const enough = 12;
    let restored = 0;
    const start = async (): Promise<ChildProcess> => {
      const child: ChildProcess = spawn(process.execPath, ['--disable-warning=ExperimentalWarning', program], {
        stdio: ['ignore', 'pipe', 'inherit', fuse, journal, data],
      });
      const [said] = await once(child.stdout ?? expect.fail(), 'data');
      restored += Number(/left (\d+)/.exec(String(said))?.[1]);
      return child;
    };
    let server = await start();
    const kill = async (): Promise<void> => {
      server.kill('SIGKILL');
      await once(server, 'exit');
    };
    let isDone = false;
    const fio = [
      ...['--name=x', `--filename=${at}/data`, '--rw=randrw', '--bs=4k-1m', '--size=16m', '--verify=crc32c'],
      ...['--verify_fatal=1', '--ioengine=psync', '--direct=1', '--loops=2', '--allow_file_create=0'],
      ...[
        '--numjobs=3',
        '--offset_increment=5m',
        '--size=5m',
        '--group_reporting',
        '--minimal',
        '--verify_state_save=0',
      ],
    ];
    const work = (async () => {
      do await run('fio', fio);
      while (restored < enough);
    })().finally(() => {
      isDone = true;
    });
    work.catch(() => undefined);
    while (!isDone && restored < enough) {
      await kill();
      server = await start();
    }
    await work;
    expect(restored).toBeGreaterThanOrEqual(enough);
    const ended = once(server, 'exit');
    await run('umount', [at]);
    expect(await ended).toEqual([0, null]);
    for (const fd of [fuse, journal, data]) closeSync(fd);
  });
});
