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

/** The sockets by which CSI's callers reach Stowage, one for each driver. */
export interface Csi {
  readonly sockets: readonly string[];
  close(graceMs: number): Promise<void>;
}

export interface CsiWish {
  /** The folder for them: `file.sock` and `local.sock`. */
  readonly folder: string;
  /** A kubelet's folder of plugins, to be registered there. Undefined: somebody else does that, or nobody. */
  readonly registry: string | undefined;
  /** How many volumes each of them may have mounted. */
  readonly maxVolumes?: number | undefined;
  /** Who knows pods. */
  readonly podUsers?: CsiOptions['podUsers'];
}

/** As the command line says it. */
export function csiWish(
  options: Pick<UpOptions, 'csi' | 'csiRegistry' | 'kubelet' | 'maxVolumes'>,
): CsiWish | undefined {
  const { kubelet } = options;
  const within = (...path: readonly string[]) => (kubelet === undefined ? undefined : join(kubelet, ...path));
  const csi = options.csi ?? within('plugins', 'stowage.dev');
  const csiRegistry = options.csiRegistry ?? within('plugins_registry');
  if (csi !== undefined)
    return {
      folder: resolve(csi),
      registry: csiRegistry === undefined ? undefined : resolve(csiRegistry),
      ...(options.maxVolumes === undefined ? {} : { maxVolumes: options.maxVolumes }),
    };
  if (csiRegistry === undefined) return undefined;
  throw new StowageError('there are no drivers to register', {
    code: 'invalid',
    reason: 'csi-registry-alone',
    action: 'Say where they shall be served too: --csi DIR',
  });
}

export interface CsiParts {
  readonly core: Core;
  readonly clock: Clock;
  readonly log: Log;
  readonly version: string;
  readonly observed?: CsiOptions['observed'];
}

export async function startCsi(wish: CsiWish | undefined, parts: CsiParts): Promise<Csi> {
  const servers: GrpcServer[] = [];
  const sockets: string[] = [];
  const close = async (graceMs: number): Promise<void> => {
    await Promise.all(servers.map((server) => server.close(graceMs)));
  };
  if (wish === undefined) return { sockets, close };
  const serve = async (server: GrpcServer, path: string): Promise<void> => {
    servers.push(server);
    await listenSocket(server.server, path);
  };
  const spaceOf = createSpaceOf(parts.clock);
  try {
    // Whoever can call the driver can mount: only root.
    await makeFolders(wish.folder, 0o700);
    for (const driver of drivers) {
      const socket = join(wish.folder, `${driver.socket}.sock`);
      await serve(
        createCsiServer({ ...parts, driver, spaceOf, maxVolumes: wish.maxVolumes, podUsers: wish.podUsers }),
        socket,
      );
      sockets.push(socket);
    }
    // Last: a kubelet calls a driver as soon as it knows of it.
    for (const driver of wish.registry === undefined ? [] : drivers) {
      const endpoint = join(wish.folder, `${driver.socket}.sock`);
      await serve(
        createRegistrationServer({ ...parts, driver, endpoint }),
        join(wish.registry ?? '', `${driver.name}-reg.sock`),
      );
    }
  } catch (thrown) {
    await close(0);
    throw thrown;
  }
  return { sockets, close };
}

const waitMs = 1_000;
const atOnce = 4;

/**
 * A mount whose server is gone keeps who asks, and a thread with it: no more than a few are asked at once, each once, and
 * nobody waits long.
 */
export function createSpaceOf(
  clock: Clock,
  ask: typeof statfs = statfs,
): (path: string) => Promise<FilesystemSpace | undefined> {
  const asked = new Set<string>();
  return async (path) => {
    if (asked.has(path) || asked.size >= atOnce) return undefined;
    asked.add(path);
    let found: FilesystemSpace | undefined;
    const asking = ask(path, { bigint: true })
      .then(({ bsize, blocks, bavail, files, ffree }) => {
        found = { totalBytes: blocks * bsize, freeBytes: bavail * bsize, files, freeFiles: ffree };
      })
      .finally(() => asked.delete(path));
    await endsWithin(asking, waitMs, clock);
    return found;
  };
}
