import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { ScratchFolder } from './scratch-folder.ts';

/**
 * A loop device of another program on a file of a FUSE mount whose server is stopped: every query about that file
 * hangs.
 */
export interface StoppedLoopDevice extends AsyncDisposable {
  readonly node: string;
  /** The path of the file behind it. */
  readonly file: string;
}

export interface StoppedLoopOptions {
  /** The file's name. */
  readonly name?: string;
  /** Also mounts the ext4 file system in the file: e2fsprogs queries the backing file of every mounted loop device. */
  readonly mounted?: boolean;
}

const program = fileURLToPath(new URL('fuse-file-server.ts', import.meta.url));

/**
 * Until the returned object is disposed of, programs that query all loop devices of the machine hang. Keep that time
 * short.
 */
export async function stoppedLoopDevice(
  { folder, image }: ScratchFolder,
  { name = 'other.img', mounted = false }: StoppedLoopOptions = {},
): Promise<StoppedLoopDevice> {
  const top = join(folder, 'stopped');
  mkdirSync(join(top, 'mounted'), { recursive: true });
  const data = image('stopped/data', 8, 'ext4');
  const server = spawn(process.execPath, [program, top, data], { stdio: ['ignore', 'pipe', 'inherit'] });
  await using undo = new AsyncDisposableStack();
  undo.defer(() => endServer(server, join(top, 'mnt')));
  await Promise.race([
    once(server.stdout, 'data'),
    once(server, 'exit').then(() => Promise.reject(new Error('the FUSE server ended'))),
  ]);
  const file = join(top, 'mnt', name);
  const node = execFileSync('losetup', ['--find', '--show', file]).toString().trim();
  undo.defer(() => void execFileSync('losetup', ['--detach', node]));
  if (mounted) {
    // Read-only, so that the kernel never waits to write to the device.
    execFileSync('mount', ['-t', 'ext4', '-o', 'ro,noload', node, join(top, 'mounted')]);
    undo.defer(() => void execFileSync('umount', [join(top, 'mounted')]));
  }
  undo.adopt(continueLater(server, node), (guard) => void guard.kill());
  server.kill('SIGSTOP');
  undo.defer(() => void server.kill('SIGCONT'));
  const stack = undo.move();
  return { node, file, [Symbol.asyncDispose]: () => stack.disposeAsync() };
}

/**
 * If the tests are killed, this process continues the stopped server, which would otherwise block the machine for good.
 */
function continueLater(server: ChildProcess, node: string): ChildProcess {
  const script = 'while [ -e "/proc/$1/exe" ]; do sleep 1; done; kill -CONT "$2"; losetup --detach "$3"; kill "$2"';
  const words = ['-c', script, 'guard', String(process.pid), String(server.pid), node];
  const guard = spawn('sh', words, { stdio: 'ignore', detached: true });
  guard.unref();
  return guard;
}

async function endServer(server: ChildProcess, at: string): Promise<void> {
  const ended = server.exitCode === null ? once(server, 'exit') : undefined;
  server.kill('SIGTERM');
  await ended;
  try {
    execFileSync('umount', ['--force', '--lazy', at], { stdio: 'ignore' });
  } catch {
    // The server has already unmounted it.
  }
}
