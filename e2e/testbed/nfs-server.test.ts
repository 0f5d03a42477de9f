import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readFileSync } from 'node:fs';
import { mkdtempDisposable } from 'node:fs/promises';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { startGanesha } from './ganesha.ts';
import { startGoNfs } from './go-nfs.ts';
import { lacks } from './lacks.ts';
import type { NfsServer } from './nfs-server.ts';
import { startRustNfs } from './nfs3-server.ts';

const { signal } = new AbortController();
const kinds = {
  ganesha: (path: string) => startGanesha({ exports: [{ path, tag: 'it' }], signal }),
  'go-nfs': (path: string) => startGoNfs({ path, signal }),
  nfs3_server: () => startRustNfs(signal),
};

async function isAnswering({ host, nfsPort }: NfsServer): Promise<boolean> {
  const socket = connect({ host, port: nfsPort });
  try {
    await once(socket, 'connect');
    return true;
  } catch {
    return false;
  } finally {
    socket.destroy();
  }
}

const isRunning = (pid: number): boolean => {
  try {
    return !readFileSync(`/proc/${pid}/stat`, 'utf8').includes(') Z ');
  } catch {
    return false;
  }
};

describe.skipIf(lacks('root', 'ganesha', 'go-nfs', 'nfs3-server')).each(Object.entries(kinds))('%s', (_, start) => {
  test('runs twice in parallel, and leaves nothing behind', async () => {
    await using folder = await mkdtempDisposable(join(tmpdir(), 'stowage-nfs-'));
    let pids: readonly number[];
    {
      await using one = await start(folder.path);
      await using other = await start(folder.path);
      pids = [one.pid, other.pid];
      expect([await isAnswering(one), await isAnswering(other)]).toEqual([true, true]);
    }
    expect(pids.map(isRunning)).toEqual([false, false]);
  });

  test('can be frozen, killed and restarted at the same address', async () => {
    await using folder = await mkdtempDisposable(join(tmpdir(), 'stowage-nfs-'));
    await using server = await start(folder.path);
    const { pid, nfsPort } = server;
    await server.freeze();
    expect(readFileSync(`/proc/${pid}/stat`, 'utf8')).toContain(') T ');
    server.thaw();
    await server.kill();
    expect([isRunning(pid), await isAnswering(server)]).toEqual([false, false]);
    await server.restart();
    expect([server.pid === pid, server.nfsPort, await isAnswering(server)]).toEqual([false, nfsPort, true]);
    await server.freeze();
    await server.stop();
    expect(isRunning(server.pid)).toBe(false);
  });
});

describe.skipIf(lacks('root', 'ganesha'))('a test process that is killed', () => {
  test('ends its server, too', async () => {
    await using folder = await mkdtempDisposable(join(tmpdir(), 'stowage-nfs-'));
    const script = [
      `const { startGanesha } = await import(${JSON.stringify(join(import.meta.dirname, 'ganesha.ts'))});`,
      `const exports = [{ path: ${JSON.stringify(folder.path)}, tag: 'it' }];`,
      'const { pid } = await startGanesha({ exports, signal: new AbortController().signal });',
      'console.log(pid);',
      'setInterval(() => undefined, 1000);',
    ].join('\n');
    const child = spawn(process.execPath, ['--input-type=module', '--eval', script], {
      // The killed test leaves the folder of its server behind, inside this folder.
      env: { ...process.env, TMPDIR: folder.path },
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    const [line] = (await once(child.stdout, 'data')) as [Buffer];
    const pid = Number(line);
    expect(existsSync(`/proc/${pid}`)).toBe(true);
    child.kill('SIGKILL');
    await expect.poll(() => isRunning(pid)).toBe(false);
  });
});
