import { execFile } from 'node:child_process';
import { randomBytes, randomInt } from 'node:crypto';
import { mkdir, mkdtemp, rm, rmdir, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { promisify } from 'node:util';
import { onPath } from '#testbed/component.ts';
import { type Daemon, startDaemon } from '#testbed/daemon.ts';
import type { NfsServerOptions } from '#wire/nfs3/server/server.ts';

const run = promisify(execFile);
const ip = async (...args: readonly string[]): Promise<string> =>
  (await run(onPath('ip') ?? 'ip', args, { timeout: 10_000 })).stdout;

/**
 * A separate network: the client's end in a network namespace, and a machine with Stowage's NFS server at the other
 * end.
 */
export interface FarNetwork extends AsyncDisposable {
  /** The name of the client's namespace for `ip netns`. */
  readonly name: string;
  readonly host: string;
  readonly port: number;
  /** An address in that network that receives packets and never answers. */
  readonly silent: string;
  /** The folder that the server exports as `/export`. */
  readonly exported: string;
  /** The processes in the client's namespace. */
  pids(): Promise<readonly number[]>;
  /** Waits until that many processes are in the client's namespace. */
  hasPids(count: number): Promise<readonly number[]>;
  /** Restarts the server, with other options if given. */
  restart(options?: ServerOptions): Promise<void>;
  /** Removes the client's end with all its connections. */
  removeEnd(): Promise<void>;
  /** Creates a new client's end with the same name. */
  makeEnd(): Promise<void>;
}

type ServerOptions = Pick<NfsServerOptions, 'privilegedPorts' | 'squash'> & {
  readonly tls?: { readonly key: string; readonly cert: string };
};

const processLimitMs = 20_000;

export async function makeFarNetwork(): Promise<FarNetwork> {
  const id = randomBytes(4).toString('hex');
  const [name, far] = [`stowage-test-${id}`, `stowage-far-${id}`];
  const base = `198.18.${randomInt(256)}.`;
  const first = randomInt(63) * 4;
  const [here, host] = [`${base}${first + 1}`, `${base}${first + 2}`];
  const folder = await mkdtemp(join(tmpdir(), 'stowage-far-'));
  const exported = join(folder, 'export');
  await mkdir(exported);
  let server: Daemon | undefined;

  async function makeEnd(): Promise<void> {
    await ip('netns', 'add', name);
    await ip('-n', name, 'link', 'add', 'eth0', 'type', 'veth', 'peer', 'name', 'eth0', 'netns', far);
    await ip('-n', name, 'address', 'add', `${here}/30`, 'dev', 'eth0');
    await ip('-n', far, 'address', 'add', `${host}/30`, 'dev', 'eth0');
    for (const end of [name, far]) for (const link of ['lo', 'eth0']) await ip('-n', end, 'link', 'set', link, 'up');
    await ip('-n', name, 'route', 'add', silent, 'dev', 'eth0');
    await ip('-n', name, 'neighbour', 'add', silent, 'lladdr', '02:00:00:00:00:01', 'dev', 'eth0');
  }

  const pids = async (): Promise<readonly number[]> =>
    (await ip('netns', 'pids', name)).split('\n').filter(Boolean).map(Number);

  async function restart(options: ServerOptions = {}): Promise<void> {
    await server?.kill();
    const about = { directory: exported, state: join(folder, 'state'), host: '0.0.0.0', port, squash: 'none' };
    server = await startDaemon({
      command: [onPath('ip') ?? 'ip', 'netns', 'exec', far, process.execPath, ...serving({ ...about, ...options })],
      logFile: join(folder, 'log'),
      isReady: (log) => log.includes('it listens'),
      signal: new AbortController().signal,
    });
  }

  const removeEnd = async (): Promise<void> => {
    await ip('netns', 'delete', name);
    // The network interface disappears with the last process of the namespace, so a leftover process would keep it.
    await ip('-n', far, 'link', 'delete', 'eth0').catch(() => undefined);
  };
  const dispose = async (): Promise<void> => {
    await server?.kill();
    for (const end of [name, far]) await ip('netns', 'delete', end).catch(() => undefined);
    await rm(folder, { recursive: true, force: true });
  };

  try {
    await ip('netns', 'add', far);
    await makeEnd();
    await restart();
  } catch (cause) {
    await dispose();
    throw cause;
  }
  return {
    name,
    host,
    port,
    silent,
    exported,
    pids,
    restart,
    removeEnd,
    makeEnd,
    hasPids: async (count) => {
      for (const until = performance.now() + processLimitMs; ; await delay(20)) {
        const found = await pids();
        if (found.length === count) return found;
        if (performance.now() > until) throw new Error(`${found.length} processes in ${name}, not ${count}`);
      }
    },
    [Symbol.asyncDispose]: dispose,
  };
}

/** Not the standard NFS port, so a client must use the configured port. */
const port = 20_490;
const silent = '198.19.255.1';

function serving(options: Record<string, unknown>): readonly string[] {
  const program = `
    import { readFileSync } from 'node:fs';
    import { systemClock } from '#base/clock.ts';
    import { createNfsServer } from '#wire/nfs3/server/server.ts';
    const { tls, ...options } = ${JSON.stringify(options)};
    const secure = tls && { required: true, options: { key: readFileSync(tls.key), cert: readFileSync(tls.cert) } };
    await createNfsServer({ clock: systemClock(), onError: () => undefined, ...options, tls: secure });
    console.log('it listens');`;
  return ['--input-type=module', '--disable-warning=ExperimentalWarning', '--eval', program];
}

/** Replaces files of /etc in that namespace. */
export async function ownFiles(name: string, files: Readonly<Record<string, string>>): Promise<AsyncDisposable> {
  const folder = join('/etc/netns', name);
  await mkdir(folder, { recursive: true });
  for (const [file, text] of Object.entries(files)) await writeFile(join(folder, file), text);
  return {
    [Symbol.asyncDispose]: async () => {
      await rm(folder, { recursive: true, force: true });
      // Removes the parent folder only if it is empty.
      await rmdir('/etc/netns').catch(() => undefined);
    },
  };
}
