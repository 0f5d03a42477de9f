import { statfs } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import type { Clock } from '#base/clock.ts';
import type { Log } from '#base/log.ts';
import { makeFolders } from '#base/make-folders.ts';
import { endsWithin } from '#base/wait.ts';
import type { UpOptions } from '#cli/io.ts';
import type { Core } from '#core/core.ts';
import { drivers } from '#core/csi-drivers.ts';
import { StowageError } from '#core/errors.ts';
import type { FilesystemSpace } from '#front/csi/driver-context.ts';
import { type CsiOptions, createCsiServer, createRegistrationServer } from '#front/csi/server.ts';
import type { GrpcServer } from '#wire/csi/server.ts';
import { listenSocket } from './listen.ts';

/** The sockets on which Stowage serves CSI, one for each driver. */
export interface Csi {
  readonly sockets: readonly string[];
  close(graceMs: number): Promise<void>;
}

export interface CsiSettings {
  /** The folder for the sockets `file.sock` and `local.sock`. */
  readonly folder: string;
  /** The kubelet's plugin registration folder. Undefined: the drivers are not registered here. */
  readonly registry: string | undefined;
  /** The maximum number of mounted volumes for each driver. */
  readonly maxVolumes?: number | undefined;
  /** Finds the user namespace of a pod. */
  readonly podUsers?: CsiOptions['podUsers'];
}

/** As given on the command line. */
export function csiSettings(
  options: Pick<UpOptions, 'csi' | 'csiRegistry' | 'kubelet' | 'maxVolumes'>,
): CsiSettings | undefined {
  const { kubelet } = options;
  const kubeletPath = (...path: readonly string[]) => (kubelet === undefined ? undefined : join(kubelet, ...path));
  const csi = options.csi ?? kubeletPath('plugins', 'stowage.dev');
  const csiRegistry = options.csiRegistry ?? kubeletPath('plugins_registry');
  if (csi !== undefined)
    return {
      folder: resolve(csi),
      registry: csiRegistry === undefined ? undefined : resolve(csiRegistry),
      ...(options.maxVolumes === undefined ? {} : { maxVolumes: options.maxVolumes }),
    };
  if (csiRegistry === undefined) return undefined;
  throw new StowageError('--csi-registry needs --csi: without it there are no drivers to register', {
    code: 'invalid',
    reason: 'csi-registry-alone',
    action: 'Also pass --csi DIR.',
  });
}

export interface CsiServerOptions {
  readonly core: Core;
  readonly clock: Clock;
  readonly log: Log;
  readonly version: string;
  readonly observed?: CsiOptions['observed'];
}

export async function startCsi(settings: CsiSettings | undefined, parts: CsiServerOptions): Promise<Csi> {
  const servers: GrpcServer[] = [];
  const sockets: string[] = [];
  const close = async (graceMs: number): Promise<void> => {
    await Promise.all(servers.map((server) => server.close(graceMs)));
  };
  if (settings === undefined) return { sockets, close };
  const serve = async (server: GrpcServer, path: string): Promise<void> => {
    servers.push(server);
    await listenSocket(server.server, path);
  };
  const spaceOf = createSpaceLookup(parts.clock);
  try {
    // Only root: a client of the driver can mount.
    await makeFolders(settings.folder, 0o700);
    for (const driver of drivers) {
      const socket = join(settings.folder, `${driver.socket}.sock`);
      await serve(
        createCsiServer({ ...parts, driver, spaceOf, maxVolumes: settings.maxVolumes, podUsers: settings.podUsers }),
        socket,
      );
      sockets.push(socket);
    }
    // Last: a kubelet calls a driver as soon as it is registered.
    for (const driver of settings.registry === undefined ? [] : drivers) {
      const endpoint = join(settings.folder, `${driver.socket}.sock`);
      await serve(
        createRegistrationServer({ ...parts, driver, endpoint }),
        join(settings.registry ?? '', `${driver.name}-reg.sock`),
      );
    }
  } catch (thrown) {
    await close(0);
    throw thrown;
  }
  return { sockets, close };
}

const statfsTimeoutMs = 1_000;
const maxConcurrentStatfs = 4;

/**
 * statfs(2) on a mount whose server is gone blocks, and occupies a thread. So this asks at most a few paths at a time, each once, and gives
 * up after a second.
 */
export function createSpaceLookup(
  clock: Clock,
  readSpace: typeof statfs = statfs,
): (path: string) => Promise<FilesystemSpace | undefined> {
  const inFlight = new Set<string>();
  return async (path) => {
    if (inFlight.has(path) || inFlight.size >= maxConcurrentStatfs) return undefined;
    inFlight.add(path);
    let found: FilesystemSpace | undefined;
    const asking = readSpace(path, { bigint: true })
      .then(({ bsize, blocks, bavail, files, ffree }) => {
        found = { totalBytes: blocks * bsize, freeBytes: bavail * bsize, files, freeFiles: ffree };
      })
      .finally(() => inFlight.delete(path));
    await endsWithin(asking, statfsTimeoutMs, clock);
    return found;
  };
}
