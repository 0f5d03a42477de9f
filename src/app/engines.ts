import { existsSync, statSync } from 'node:fs';
import { connect } from 'node:net';
import type { EngineKind } from '#core/containers.ts';
import type { Records } from '#core/ports.ts';

/** The socket of each kind of engine: a path, `none`, or undefined if not configured. */
export type EngineWishes = Readonly<Partial<Record<EngineKind, string | undefined>>>;

export interface EngineSocket {
  readonly kind: EngineKind;
  readonly socket: string;
}

const usual: Readonly<Record<EngineKind, readonly string[]>> = {
  docker: ['/run/docker.sock', '/var/run/docker.sock'],
  podman: ['/run/podman/podman.sock'],
};

/** The host's `/run` in Stowage's own container. */
const machines = '/host';

/**
 * A socket that is bind-mounted into a container by itself goes stale when its engine restarts (live-restore) and creates a new one. A
 * socket in the host's folder does not, so prefer that. Both must be the same socket: somebody may have mounted another engine's.
 */
export function socketOf(kind: EngineKind, root = ''): string | undefined {
  const bound = usual[kind].map((path) => root + path).find((path) => existsSync(path));
  const there = root + machines + usual[kind][0];
  if (!existsSync(there)) return bound;
  return bound === undefined || isSame(bound, there) ? there : bound;
}

function isSame(one: string, other: string): boolean {
  const [a, b] = [statSync(one), statSync(other)];
  return a.dev === b.dev && a.ino === b.ino;
}

/** Translates a path that was found when Stowage ran in a container, if it now runs outside. */
function fromHere(path: string | undefined): string | undefined {
  return path?.startsWith(`${machines}/`) && !existsSync(machines) ? path.slice(machines.length) : path;
}

const settingKey = 'engines.found';

/**
 * Returns the configured sockets, whether they exist or not. With `look` also those of other engines that exist, or existed at an
 * earlier start: an engine that starts after Stowage must find it, and its containers exist whether it runs or not.
 */
export function engineSockets(
  wishes: readonly EngineWishes[],
  look: boolean,
  { settings, references }: Pick<Records, 'settings' | 'references'>,
): readonly EngineSocket[] {
  const known: EngineWishes = JSON.parse(settings.get(settingKey) ?? '{}');
  const all = (['docker', 'podman'] as const).flatMap((kind) => {
    const wanted = wishes.map((wish) => wish[kind]).find((wish) => wish !== undefined);
    const socket = wanted ?? (look ? (socketOf(kind) ?? fromHere(known[kind])) : undefined);
    // Configured as `none`: references by its containers no longer count.
    if (wanted === 'none') references.replace(kind, []);
    return socket === undefined || socket === 'none' ? [] : [{ kind, socket }];
  });
  const found = JSON.stringify(Object.fromEntries(all.map(({ kind, socket }) => [kind, socket])));
  if (look && found !== JSON.stringify(known)) settings.set(settingKey, found);
  return all;
}

const patienceMs = 1_000;

export async function isListening(socket: string): Promise<boolean> {
  const { promise, resolve } = Promise.withResolvers<boolean>();
  const connection = connect(socket);
  connection.setTimeout(patienceMs, () => resolve(false));
  connection.once('connect', () => resolve(true));
  connection.once('error', () => resolve(false));
  const result = await promise;
  connection.destroy();
  return result;
}
