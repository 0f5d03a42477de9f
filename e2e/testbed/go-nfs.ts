import { readFileSync } from 'node:fs';
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type Component, cachedBuild, missingPrograms, testbedCommand } from './component.ts';
import { freePorts, loopbackAddress, startDaemon } from './daemon.ts';
import { type NfsServer, nfsServer } from './nfs-server.ts';
import { digest } from './rootfs.ts';

const version = '0.0.4';
const source = join(import.meta.dirname, 'go-nfs');
const sources = ['main.go', 'go.mod', 'go.sum'].map((name) => readFileSync(join(source, name), 'utf8'));
const cachedServer = cachedBuild('go-nfs', `${version}-${digest(...sources)}`, 'go-nfs');

/** A library for building NFS servers. It deviates from the protocol in some points. */
export const goNfs: Component = {
  what: `github.com/willscott/go-nfs ${version} as a server`,
  probe: () => {
    const why = cachedServer.probe();
    const lacking = missingPrograms('go');
    return why === undefined || lacking === undefined ? why : `${why}, and to build it: ${lacking}`;
  },
  tool: cachedServer.tool,
  command: testbedCommand,
  packages: () => (missingPrograms('go') === undefined ? [] : ['golang-go']),
  make: async (run) => {
    await rm(cachedServer.folder(), { recursive: true, force: true });
    await mkdir(cachedServer.folder(), { recursive: true });
    await run('go', ['build', '-mod=readonly', '-buildvcs=false', '-trimpath', '-o', cachedServer.tool(), '.'], {
      cwd: source,
    });
    await writeFile(cachedServer.marker(), '');
  },
};

/** Exports the folder under every name to every client, with MOUNT and NFS on one port. */
export async function startGoNfs(options: { readonly path: string; readonly signal: AbortSignal }): Promise<NfsServer> {
  const host = loopbackAddress();
  const [port = 0] = await freePorts(host, 1);
  const folder = await mkdtemp(join(tmpdir(), 'stowage-go-nfs-'));
  const start = () =>
    startDaemon({
      command: [cachedServer.tool(), `${host}:${port}`, options.path],
      logFile: join(folder, 'log'),
      isReady: (log) => log.includes('listening on'),
      signal: options.signal,
    });
  return await nfsServer({ host, nfsPort: port, mountPort: port }, start, () => rm(folder, { recursive: true }));
}
