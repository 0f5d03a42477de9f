import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, constants, mkdirSync, openSync, readFileSync, rmdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { MountSpec } from '#datapath/mount-spec.ts';
import type { KeeperClient } from '#keeper/keeper-client.ts';
import { dataPathFlags } from '#keeper/node-flags.ts';
import type { KeeperState } from '#keeper/protocol.ts';
import { repository } from '#testbed/component.ts';
import type { NfsServer } from '#testbed/nfs-server.ts';
import { createKeeperFixture, eventually, type KeeperFixture } from '#testing/keeper/keeper-process.ts';
import { openExport } from '#testing/nfs-export.ts';
import { command } from './command.ts';
import type { Mounted, Mounter } from './mounting.ts';

/** A keeper, its data paths, and their mounts. */
export interface OurDataPath extends Mounter, AsyncDisposable {
  readonly client: KeeperClient;
  /** The program of the data paths. */
  readonly program: string;
  /** Resolves when one data path serves and a standby is ready. */
  complete(): Promise<KeeperState>;
}

export interface OurDataPathOptions {
  readonly server: NfsServer;
  /** The parent folder of mount points. */
  readonly folder: string;
  readonly signal: AbortSignal;
  /** The checkout whose data path is measured, if it is not this one. The keeper is always from this checkout. */
  readonly tree?: string;
}

/** The following values are the program's own (src/clients/data-path, and the defaults of an NFS store). */
/** For the clean-up, which must run even after an abort. */
const never = new AbortController().signal;
const mib = 1024 * 1024;
const cacheMs = 1000;
const readAheadKib = 4096;
const connections = 1;

/** Bundles the sources of the checkout into one file without types, as in a release. */
async function bundle(tree: string, folder: string, signal: AbortSignal): Promise<string> {
  await command([process.execPath, join(tree, 'scripts', 'build.ts'), folder], signal);
  return join(folder, 'data-path.mjs');
}

export async function startOurDataPath({
  server,
  folder,
  signal,
  tree = repository,
}: OurDataPathOptions): Promise<OurDataPath> {
  await using stack = new AsyncDisposableStack();
  const built = join(folder, 'built');
  mkdirSync(built, { recursive: true });
  const program = await bundle(tree, built, signal);
  const keepers: KeeperFixture = stack.use(createKeeperFixture());
  await keepers.startKeeper({ program, flags: dataPathFlags });
  const client = keepers.client();
  let count = 0;

  async function specOf(path: string, isCaching: boolean): Promise<MountSpec> {
    using opened = await openExport(server, path);
    return {
      version: 1,
      addresses: [server.host],
      port: server.nfsPort,
      connections,
      root: Buffer.from(opened.root).toString('base64'),
      privilegedPorts: false,
      tls: undefined,
      squash: 'none',
      uid: 65_534,
      gid: 65_534,
      softMs: undefined,
      readOnly: false,
      maxRead: mib,
      maxWrite: mib,
      cacheMs: isCaching ? cacheMs : 0,
      locks: 'node',
    };
  }

  async function mount(path: string, isCaching: boolean): Promise<Mounted> {
    const spec = await specOf(path, isCaching);
    const id = `sv1-bench-${++count}`;
    const at = join(folder, id);
    mkdirSync(at);
    const fd = openSync('/dev/fuse', constants.O_RDWR | constants.O_NONBLOCK);
    try {
      const options = 'fd=3,rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions';
      const child = spawn('mount', ['-i', '-t', 'fuse', '-o', options, 'stowage-bench', at], {
        stdio: ['ignore', 'inherit', 'inherit', fd],
      });
      const [status] = await once(child, 'exit');
      if (status !== 0) throw new Error(`mount ended with ${status}`);
      await client.adopt(id, spec, fd, signal);
    } finally {
      closeSync(fd);
    }
    // The first request completes the FUSE INIT handshake, which would reset the read-ahead.
    await command(['stat', at], signal);
    setReadAhead(at);
    return {
      at,
      [Symbol.asyncDispose]: async () => {
        await unmount(at, signal);
        await client.drop(id, never);
      },
    };
  }

  const all = stack.move();
  return {
    client,
    program,
    mount: (path, { isCaching }) => mount(path, isCaching),
    complete: () =>
      eventually(
        () => client.status(signal),
        ({ active, standby }) => active?.ready === true && standby !== null,
      ),
    [Symbol.asyncDispose]: () => all.disposeAsync(),
  };
}

/** Aborts a mount that is in use or does not answer. Calls of waiting processes fail. */
export async function unmount(at: string, signal: AbortSignal): Promise<void> {
  const patient = { timeoutMs: 10_000 };
  const force = () => command(['umount', '--force', '--lazy', at], never, patient);
  await (signal.aborted ? force() : command(['umount', at], signal, patient).catch(force));
  rmdirSync(at);
}

/** Finds the device in the mount table, because this process must never wait for the mount. */
function setReadAhead(at: string): void {
  const line = readFileSync('/proc/self/mountinfo', 'utf8')
    .split('\n')
    .map((each) => each.split(' '))
    .find((fields) => fields[4] === at);
  if (line === undefined) throw new Error(`${at} is not mounted`);
  writeFileSync(`/sys/class/bdi/${line[2]}/read_ahead_kb`, String(readAheadKib));
}
