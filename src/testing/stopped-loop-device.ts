import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { ScratchFolder } from './scratch-folder.ts';

/** A loop device of another program on a file of a FUSE mount whose server is stopped: every query about that file hangs. */
export interface StoppedLoopDevice extends AsyncDisposable {
  readonly node: string;
  /** The path of the file behind it. */
  readonly file: string;
}

export interface StoppedLoopOptions {
  /** The file's name. */
  readonly name?: string;
  /** Also mounts the ext4 file system in it: e2fsprogs asks every mounted loop device about its file. */
  readonly mounted?: boolean;
}

const program = fileURLToPath(new URL('fuse-file-server.ts', import.meta.url));

/** Programs that query all loop devices of the machine hang until this is disposed of: keep it short. */
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
    // Read-only, so nothing in the kernel waits to write to it.
    execFileSync('mount', ['-t', 'ext4', '-o', 'ro,noload', node, join(top, 'mounted')]);
    undo.defer(() => void execFileSync('umount', [join(top, 'mounted')]));
  }
  undo.adopt(continueLater(server, node), (guard) => void guard.kill());
  server.kill('SIGSTOP');
  undo.defer(() => void server.kill('SIGCONT'));
  const stack = undo.move();
  return { node, file, [Symbol.asyncDispose]: () => stack.disposeAsync() };
}

/** If the tests are killed, a stopped server must not block this machine for good. */
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
    // The server unmounted it.
  }
}
