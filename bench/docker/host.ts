import { once } from 'node:events';
import { chmod } from 'node:fs/promises';
import { type IncomingMessage, request } from 'node:http';
import { join } from 'node:path';
import { loadBusybox } from '#testbed/busybox.ts';
import { repository } from '#testbed/component.ts';
import { startDockerd } from '#testbed/dockerd.ts';
import { startGanesha } from '#testbed/ganesha.ts';
import { createScratchFolder } from '#testing/scratch-folder.ts';
import { command } from '../datapath/command.ts';
import { type MeasuredFileSystem, makeFolder } from '../nfs/measured-folder.ts';
import { type Server, startServer } from '../server.ts';
import { type RecordedCall, startRecorder } from './recorder.ts';

export const sides = ['local', 'nfs', 'plain'] as const;
/** Where a container's volume is: on one of Stowage's stores, or with Docker's own local driver. */
export type Side = (typeof sides)[number];

const drivers: Readonly<Record<Side, readonly string[]>> = {
  local: ['--driver', 'stowage-local'],
  nfs: ['--driver', 'stowage', '--opt', 'store=silver'],
  plain: [],
};
const plugins = ['stowage', 'stowage-local'];

/** An engine, an NFS server, and a Stowage that serves both. */
export interface DockerHost extends AsyncDisposable {
  /** Creates a volume for `run`. */
  makeVolume(side: Side, name: string): Promise<void>;
  /** `docker run --rm -v volume:/data image true`, in milliseconds. */
  run(volume: string): Promise<number>;
  /** Kills and restarts Stowage. Returns the milliseconds until it answers at its plugin socket. */
  restart(): Promise<number>;
  /** Freezes the NFS server while the work runs: it accepts connections, but answers nothing. */
  frozen<T>(work: () => Promise<T>): Promise<T>;
  /**
   * Starts recording the engine's calls to Stowage. The returned function returns the calls since it was last called.
   */
  record(): Promise<() => readonly RecordedCall[]>;
}

/** `exports` is the folder with the server's files. Everything is in temporary folders that are removed at the end. */
export async function startHost(exports: MeasuredFileSystem, signal: AbortSignal): Promise<DockerHost> {
  await using stack = new AsyncDisposableStack();
  const scratch = stack.use(createScratchFolder('st-bench-'));
  // Other users may enter the folder, because the data path runs as nobody.
  await chmod(scratch.folder, 0o755);
  const exported = stack.use(await makeFolder(exports, []));
  const nfs = stack.use(await startGanesha({ exports: [{ path: exported.path, tag: 'bench' }], signal }));
  const engine = stack.use(await startDockerd(signal, { shared: [scratch.folder] }));
  let stowage: Server | undefined;
  stack.defer(async () => await stowage?.[Symbol.asyncDispose]());
  // Stopped before Stowage, so that no container still uses a volume.
  stack.defer(() => engine.stop());
  const image = await loadBusybox(engine, signal);
  const start = (folder: string): Promise<Server> =>
    startServer(scratch.folder, signal, ['--plugins', folder, '--docker-socket', engine.socket]);
  stowage = await start(engine.plugins);
  const { host, nfsPort, mountPort } = nfs;
  const uri = `nfs://${host}${exported.path}?port=${nfsPort}&mountport=${mountPort}`;
  const program = join(repository, 'bin', 'stowage');
  await command([program, '--socket', stowage.socket, 'store', 'add', 'silver', uri], signal);
  const all = stack.move();
  return {
    makeVolume: async (side, name) => void (await engine.docker('volume', 'create', ...drivers[side], name)),
    run: async (volume) => {
      const since = performance.now();
      await engine.docker('run', '--rm', '--volume', `${volume}:/data`, image, 'true');
      return performance.now() - since;
    },
    restart: async () => {
      await stowage?.kill();
      const since = performance.now();
      stowage = await start(engine.plugins);
      await activated(join(engine.plugins, 'stowage.sock'));
      return performance.now() - since;
    },
    frozen: async (work) => {
      await nfs.freeze();
      try {
        return await work();
      } finally {
        nfs.thaw();
      }
    },
    record: async () => {
      await stowage?.[Symbol.asyncDispose]();
      const behind = join(scratch.folder, 'plugins');
      stowage = await start(behind);
      const recorders = await Promise.all(
        plugins.map((name) => startRecorder(join(engine.plugins, `${name}.sock`), join(behind, `${name}.sock`))),
      );
      for (const recorder of recorders) all.use(recorder);
      return () => recorders.flatMap((recorder) => recorder.take());
    },
    [Symbol.asyncDispose]: () => all.disposeAsync(),
  };
}

/** Calls Plugin.Activate as an engine does. */
async function activated(socketPath: string): Promise<void> {
  const sent = request({ socketPath, method: 'POST', path: '/Plugin.Activate' });
  sent.end();
  const [answer] = (await once(sent, 'response')) as [IncomingMessage];
  answer.resume();
  if (answer.statusCode !== 200) throw new Error(`the plugin answered with status ${answer.statusCode}`);
}
