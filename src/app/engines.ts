import { existsSync } from 'node:fs';
import { connect } from 'node:net';
import type { EngineKind } from '#core/containers.ts';
import type { Records } from '#core/ports.ts';

/** Where to look for each kind of engine: a socket, `none`, or undefined where nobody said anything. */
export type EngineWishes = Readonly<Partial<Record<EngineKind, string | undefined>>>;

export interface EngineSocket {
  readonly kind: EngineKind;
  readonly socket: string;
}

/**
 * The first is the machine's folder as Stowage's own container has it: a socket that is bound by itself is dead for good once its
 * engine, started anew under containers that go on, has made another one.
 */
const usual: Readonly<Record<EngineKind, readonly string[]>> = {
  docker: ['/host/run/docker.sock', '/run/docker.sock', '/var/run/docker.sock'],
  podman: ['/host/run/podman/podman.sock', '/run/podman/podman.sock'],
};

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
    const socket = wanted ?? (look ? (usual[kind].find((path) => existsSync(path)) ?? known[kind]) : undefined);
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
