import { existsSync, statSync } from 'node:fs';
import { connect } from 'node:net';
import type { EngineKind } from '#core/containers.ts';
import type { Records } from '#core/ports.ts';

/** The socket of each kind of engine: a path, `none`, or undefined if not configured. */
export type EngineSocketSettings = Readonly<Partial<Record<EngineKind, string | undefined>>>;

export interface EngineSocket {
  readonly kind: EngineKind;
  readonly socket: string;
}

const defaultSockets: Readonly<Record<EngineKind, readonly string[]>> = {
  docker: ['/run/docker.sock', '/var/run/docker.sock'],
  podman: ['/run/podman/podman.sock'],
};

/** The host's `/run` in Stowage's own container. */
const hostRun = '/host';

/**
 * A socket that is bind-mounted into a container by itself goes stale when its engine restarts (live-restore) and creates a new one. A
 * socket in the host's folder does not, so prefer that. Both must be the same socket: an administrator may have mounted another engine's.
 */
export function detectSocket(kind: EngineKind, root = ''): string | undefined {
  const bound = defaultSockets[kind].map((path) => root + path).find((path) => existsSync(path));
  const socketInHostFolder = root + hostRun + defaultSockets[kind][0];
  if (!existsSync(socketInHostFolder)) return bound;
  return bound === undefined || isSame(bound, socketInHostFolder) ? socketInHostFolder : bound;
}

function isSame(one: string, other: string): boolean {
  const [a, b] = [statSync(one), statSync(other)];
  return a.dev === b.dev && a.ino === b.ino;
}

/** Translates a path that was found when Stowage ran in a container, if it now runs outside. */
function pathOutsideContainer(path: string | undefined): string | undefined {
  return path?.startsWith(`${hostRun}/`) && !existsSync(hostRun) ? path.slice(hostRun.length) : path;
}

const settingKey = 'engines.found';

/**
 * Returns the configured sockets, whether they exist or not. With `look` also those of other engines that exist, or existed at an
 * earlier start: an engine that starts after Stowage must find it, and its containers exist whether it runs or not.
 */
export function engineSockets(
  settingsByPriority: readonly EngineSocketSettings[],
  detect: boolean,
  { settings, references }: Pick<Records, 'settings' | 'references'>,
): readonly EngineSocket[] {
  const known: EngineSocketSettings = JSON.parse(settings.get(settingKey) ?? '{}');
  const all = (['docker', 'podman'] as const).flatMap((kind) => {
    const wanted = settingsByPriority.map((wish) => wish[kind]).find((wish) => wish !== undefined);
    const socket = wanted ?? (detect ? (detectSocket(kind) ?? pathOutsideContainer(known[kind])) : undefined);
    // Configured as `none`: references by its containers no longer count.
    if (wanted === 'none') references.replace(kind, []);
    return socket === undefined || socket === 'none' ? [] : [{ kind, socket }];
  });
  const found = JSON.stringify(Object.fromEntries(all.map(({ kind, socket }) => [kind, socket])));
  if (detect && found !== JSON.stringify(known)) settings.set(settingKey, found);
  return all;
}

const connectTimeoutMs = 1_000;

export async function isListening(socket: string): Promise<boolean> {
  const { promise, resolve } = Promise.withResolvers<boolean>();
  const connection = connect(socket);
  connection.setTimeout(connectTimeoutMs, () => resolve(false));
  connection.once('connect', () => resolve(true));
  connection.once('error', () => resolve(false));
  const result = await promise;
  connection.destroy();
  return result;
}
