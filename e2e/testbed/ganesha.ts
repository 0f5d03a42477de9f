import { globSync, readFileSync } from 'node:fs';
import { mkdir, mkdtemp, realpath, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { type Component, cachedBuild, missingPrograms, onPath } from './component.ts';
import { freePorts, loopbackAddress, startDaemon } from './daemon.ts';
import { type NfsServer, nfsServer } from './nfs-server.ts';
import { digest } from './rootfs.ts';

const source = join(import.meta.dirname, 'ganesha', 'preload.c');
const preload = cachedBuild('ganesha-preload', digest(readFileSync(source, 'utf8')), 'preload.so');
const backEnd = '/usr/lib{,/*}/ganesha/libfsalvfs.so';

/** The user-space NFS server of several storage products. Its back end for local folders needs root. */
export const ganesha: Component = {
  what: 'nfs-ganesha with its back end for local folders',
  probe: () =>
    missingPrograms('ganesha.nfsd', 'setpriv') ??
    (globSync(backEnd).length === 0 ? `not found: ${backEnd}` : preload.probe()),
  command: 'npm run testbed, as root',
  packages: () => [
    ...(missingPrograms('ganesha.nfsd') === undefined && globSync(backEnd).length > 0
      ? []
      : ['nfs-ganesha', 'nfs-ganesha-vfs']),
    ...(missingPrograms('gcc') === undefined ? [] : ['gcc', 'libc6-dev']),
  ],
  make: async (run) => {
    await rm(preload.folder(), { recursive: true, force: true });
    await mkdir(preload.folder(), { recursive: true });
    await run('gcc', ['-shared', '-fPIC', '-O2', '-Wall', '-Werror', '-o', preload.tool(), source, '-ldl']);
    await writeFile(preload.marker(), '');
  },
};

export interface GaneshaExport {
  /** An existing folder. Mounts below it are not exported. */
  readonly path: string;
  /** An alias of the path for mounting. */
  readonly tag: string;
  readonly squash?: 'none' | 'root' | 'all';
  readonly readOnly?: boolean;
  /** Rejects calls from ports above 1023. */
  readonly privilegedPort?: boolean;
  /** The only host that may mount the export. Read at each start. */
  readonly onlyFor?: string | undefined;
}

export interface GaneshaOptions {
  readonly exports: readonly [GaneshaExport, ...GaneshaExport[]];
  /** A file with a number of seconds. The server's clock is ahead by this when it sets a time to "now". */
  readonly clockFile?: string;
  readonly signal: AbortSignal;
}

/** Starts nfs-ganesha on a loopback address of its own, without rpcbind. Needs root. */
export async function startGanesha({ exports, clockFile, signal }: GaneshaOptions): Promise<NfsServer> {
  const host = loopbackAddress();
  const [nfsPort = 0, mountPort = 0] = await freePorts(host, 2);
  const folder = await mkdtemp(join(tmpdir(), 'stowage-ganesha-'));
  const mounts = join(folder, 'mounts');
  const start = async () => {
    await writeFile(mounts, await mountsOf(exports.map(({ path }) => path)));
    const clock = clockFile === undefined ? {} : { STOWAGE_CLOCK: clockFile };
    const env = { ...quietEnvironment(folder), LD_PRELOAD: preload.tool(), STOWAGE_MOUNTS: mounts, ...clock };
    return await ganeshaDaemon({ folder, exports, listen: { host, nfsPort, mountPort }, env, signal });
  };
  return await nfsServer({ host, nfsPort, mountPort }, start, () => rm(folder, { recursive: true, force: true }));
}

export interface GaneshaParts extends GaneshaOptions {
  /** The folder for settings, log and state. */
  readonly folder: string;
  readonly listen: Pick<NfsServer, 'host' | 'nfsPort' | 'mountPort'>;
  readonly env: Readonly<Record<string, string>>;
  /** A command prefix for the server. */
  readonly commandPrefix?: readonly string[];
}

export async function ganeshaDaemon({ folder, exports, listen, env, commandPrefix = [], signal }: GaneshaParts) {
  const config = join(folder, 'ganesha.conf');
  await writeFile(config, await configOf(exports, listen));
  const program = onPath('ganesha.nfsd') ?? 'ganesha.nfsd';
  const args = ['-F', '-L', 'STDOUT', '-f', config, '-p', join(folder, 'pid')];
  const [first, ...rest] = [...commandPrefix, program, ...args] as const;
  return await startDaemon({
    command: [first as string, ...rest],
    env,
    logFile: join(folder, 'log'),
    isReady: (log) => log.includes('NFS SERVER INITIALIZED'),
    signal,
  });
}

/** Keeps the server away from the machine's D-Bus and block device cache. */
export const quietEnvironment = (folder: string): Record<string, string> => ({
  DBUS_SYSTEM_BUS_ADDRESS: `unix:path=${join(folder, 'no-bus')}`,
  BLKID_FILE: join(folder, 'blkid'),
});

const accessOf = ({ readOnly }: GaneshaExport): string => (readOnly === true ? 'RO' : 'RW');
const squashes = { none: 'No_Root_Squash', root: 'Root_Squash', all: 'All_Squash' } as const;

async function configOf(exports: readonly GaneshaExport[], listen: GaneshaParts['listen']): Promise<string> {
  const exportBlock = async (what: GaneshaExport, i: number): Promise<string> =>
    block('EXPORT', {
      Export_Id: i + 1,
      Path: `"${await realpath(what.path)}"`,
      Pseudo: `/${what.tag}`,
      Tag: what.tag,
      // Unique, because two exports with the same id share their handles.
      Filesystem_Id: `${i + 1}.${i + 1}`,
      Squash: squashes[what.squash ?? 'none'],
      Access_Type: what.onlyFor === undefined ? accessOf(what) : 'None',
      ...(what.onlyFor === undefined
        ? {}
        : { CLIENT: `{ Clients = ${what.onlyFor}; Access_Type = ${accessOf(what)}; }` }),
      PrivilegedPort: what.privilegedPort === true,
      FSAL: '{ Name = VFS; }',
    });
  return [
    block('NFS_CORE_PARAM', {
      Protocols: 3,
      NFS_Port: listen.nfsPort,
      MNT_Port: listen.mountPort,
      Bind_addr: listen.host,
      Enable_NLM: false,
      Enable_RQUOTA: false,
      mount_path_pseudo: false,
    }),
    block('NFS_KRB5', { Active_krb5: false }),
    block('EXPORT_DEFAULTS', { SecType: 'sys', Protocols: 3, Transports: 'TCP' }),
    block('LOG', { Default_Log_Level: 'EVENT' }),
    ...(await Promise.all(exports.map(exportBlock))),
  ].join('');
}

function block(name: string, values: Readonly<Record<string, string | number | boolean>>): string {
  const lines = Object.entries(values).map(([key, value]) =>
    typeof value === 'string' && value.startsWith('{') ? `  ${key} ${value}\n` : `  ${key} = ${value};\n`,
  );
  return `${name} {\n${lines.join('')}}\n`;
}

/** The mount table lines of the file systems that contain the paths. */
async function mountsOf(paths: readonly string[]): Promise<string> {
  const lines = readFileSync('/proc/self/mounts', 'utf8').split('\n').filter(Boolean);
  const points = lines.map((line) => decodeOctal(line.split(' ')[1] ?? ''));
  const found = await Promise.all(paths.map(async (path) => nearestMountPoint(await realpath(path), points)));
  // The last line of a mount point is the topmost mount.
  return [...new Set(found)].map((point) => `${lines[points.lastIndexOf(point)]}\n`).join('');
}

function nearestMountPoint(path: string, points: readonly string[]): string {
  for (let folder = path; ; folder = dirname(folder)) if (points.includes(folder) || folder === '/') return folder;
}

/** The mount table encodes spaces and similar characters in octal. */
const decodeOctal = (text: string): string =>
  text.replace(/\\([0-7]{3})/g, (_, code: string) => String.fromCharCode(Number.parseInt(code, 8)));
