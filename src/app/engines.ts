import { existsSync, statSync } from 'node:fs';
import { connect } from 'node:net';
import type { EngineKind } from '#core/containers.ts';
import type { Records } from '#core/ports.ts';

/** Where to look for each kind of engine: a socket, `none`, or undefined where nobody said anything. */
export type EngineWishes = Readonly<Partial<Record<EngineKind, string | undefined>>>;

export interface EngineSocket {
  readonly kind: EngineKind;
  readonly socket: string;
}

const usual: Readonly<Record<EngineKind, readonly string[]>> = {
  docker: ['/run/docker.sock', '/var/run/docker.sock'],
  podman: ['/run/podman/podman.sock'],
};

/** The machine's `/run`, as Stowage's own container has it. */
const machines = '/host';

/**
 * A socket that is bound into a container by itself is dead for good once its engine, started anew under containers that go on,
 * has made another one; that of the machine's folder is not. They must be the same: somebody may have bound another engine's.
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

/** Of one that was found where Stowage ran in a container, and runs in none now. */
function fromHere(path: string | undefined): string | undefined {
  return path?.startsWith(`${machines}/`) && !existsSync(machines) ? path.slice(machines.length) : path;
}

const settingKey = 'engines.found';

/**
 * Those that somebody named, there yet or not; of the others, where it is allowed to look, those that are there, or were at an
 * earlier start: an engine that is started after us must find us, and its containers are there whether it runs or not.
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
    // Somebody says that there is none: nothing that it ever named counts any more.
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
