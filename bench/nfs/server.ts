import { mkdtempDisposable, readFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { repository } from '#testbed/component.ts';
import { freePorts, loopbackAddress, startDaemon } from '#testbed/daemon.ts';
import type { Target } from './driver.ts';

export interface OurServer extends AsyncDisposable, Target {
  /** Resident memory in MB. */
  memory(): Promise<number>;
}

/** Runs `stowage nfs serve` for processes of this user. */
export async function startOurServer(directory: string, isDurable: boolean, signal: AbortSignal): Promise<OurServer> {
  await using stack = new AsyncDisposableStack();
  const { path: folder } = stack.use(await mkdtempDisposable(join(tmpdir(), 'stowage-bench-server-')));
  const host = loopbackAddress();
  const [port = 0] = await freePorts(host, 1);
  const where = ['--host', host, '--port', `${port}`, '--path', directory, '--state', join(folder, 'state')];
  const daemon = await startDaemon({
    command: [
      join(repository, 'bin', 'stowage'),
      'nfs',
      'serve',
      directory,
      ...where,
      '--squash',
      'none',
      ...(isDurable ? [] : ['--async']),
    ],
    logFile: join(folder, 'log'),
    isReady: (log) => log.includes('stowage nfs ready'),
    signal,
  });
  stack.defer(() => daemon.stop());
  const all = stack.move();
  return {
    host,
    nfsPort: port,
    mountPort: port,
    path: directory,
    memory: async () => {
      const status = await readFile(`/proc/${daemon.pid}/status`, 'utf8');
      return (Number(/^VmRSS:\s+(\d+) kB$/m.exec(status)?.[1]) * 1024) / 1e6;
    },
    [Symbol.asyncDispose]: () => all.disposeAsync(),
  };
}
