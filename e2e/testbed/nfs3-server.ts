import { readFileSync } from 'node:fs';
import { cp, mkdir, mkdtemp, mkdtempDisposable, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { builtByCargo, type Component, cachedBuild, type Run } from './component.ts';
import { freePorts, loopbackAddress, startDaemon } from './daemon.ts';
import { type NfsServer, nfsServer } from './nfs-server.ts';
import { digest } from './rootfs.ts';

const version = '0.11.1';
const source = join(import.meta.dirname, 'nfs3-server');
const sources = ['main.rs', 'Cargo.toml', 'crates.lock'].map((name) => readFileSync(join(source, name), 'utf8'));
const cachedServer = cachedBuild('nfs3-server', `${version}-${digest(...sources)}`, 'bin/nfs3-server');

/** A Rust crate with a file system in memory. The cargo of Debian 12 and 13 is too old for it. */
export const rustNfs: Component = {
  what: `the Rust crate nfs3_server ${version} as a server`,
  ...builtByCargo(cachedServer),
  make: async (run) => {
    await rm(cachedServer.folder(), { recursive: true, force: true });
    await mkdir(cachedServer.folder(), { recursive: true });
    await using work = await mkdtempDisposable(join(tmpdir(), 'stowage-cargo-'));
    const build = join(work.path, 'source');
    await cp(source, build, { recursive: true });
    await writeLockFile(build, run);
    const flags = [
      '--locked',
      '--no-track',
      '--target-dir',
      join(work.path, 'target'),
      '--root',
      cachedServer.folder(),
    ];
    await run('cargo', ['install', '--path', build, ...flags]);
    await writeFile(cachedServer.marker(), '');
  },
};

/** The committed lock file fixes versions and checksums of crates. cargo decides where to download them. */
async function writeLockFile(build: string, run: Run): Promise<void> {
  const file = join(build, 'Cargo.lock');
  await run('cargo', ['generate-lockfile', '--manifest-path', join(build, 'Cargo.toml')]);
  const [from = ''] = /^source = "registry\+.*"$/m.exec(await readFile(file, 'utf8')) ?? [];
  const crates = await readFile(join(build, 'crates.lock'), 'utf8');
  await writeFile(
    file,
    crates.replaceAll(/^source = "registry"$/gm, () => from),
  );
}

/**
 * Exports an empty folder in memory as `/`, with MOUNT and NFS on one port. The contents are lost when the process
 * ends.
 */
export async function startRustNfs(signal: AbortSignal): Promise<NfsServer> {
  const host = loopbackAddress();
  const [port = 0] = await freePorts(host, 1);
  const folder = await mkdtemp(join(tmpdir(), 'stowage-nfs3-server-'));
  const start = () =>
    startDaemon({
      command: [cachedServer.tool(), `${host}:${port}`],
      logFile: join(folder, 'log'),
      isReady: (log) => log.includes('listening on'),
      signal,
    });
  return await nfsServer({ host, nfsPort: port, mountPort: port }, start, () => rm(folder, { recursive: true }));
}
