import { readFile } from 'node:fs/promises';
import { hostname } from 'node:os';
import { relative, resolve } from 'node:path';
import type { DockerClient } from '#wire/docker/client.ts';
import type { Container } from '#wire/docker/containers.ts';
import { DockerError } from '#wire/docker/errors.ts';

/** The container that this process runs in, as the engine that made it knows it. */
export interface OwnContainer {
  readonly engine: DockerClient;
  readonly id: string;
  /** The id of its image. */
  readonly image: string;
  readonly onHostNetwork: boolean;
  /** Where a path of this container is on the machine. Undefined: in the container alone. */
  hostPath(path: string): string | undefined;
}

/** What a process can read about where it runs. */
export interface Surroundings {
  readonly mountinfo: string;
  readonly cgroup: string;
  readonly hostname: string;
}

export async function surroundings(): Promise<Surroundings> {
  const read = (file: string): Promise<string> => readFile(`/proc/self/${file}`, 'utf8').catch(() => '');
  return { mountinfo: await read('mountinfo'), cgroup: await read('cgroup'), hostname: hostname() };
}

/**
 * What may be the id of this process's own container, the likeliest first. Engines mount a few files of their own into each
 * (`/etc/hosts`), from a folder that has its name. Groups are hidden where they have a namespace; the host's name is the
 * machine's where the network is.
 */
export function possibleIds({ mountinfo, cgroup, hostname: name }: Surroundings): readonly string[] {
  const mounted = mountinfo
    .split('\n')
    .flatMap((line) => /\/(?:overlay-)?containers\/([0-9a-f]{64})\/[^ ]* \/(?:etc|run)\//.exec(line)?.[1] ?? []);
  const grouped = cgroup
    .split('\n')
    .flatMap((line) => /([0-9a-f]{64})(?:\.scope)?(?:\/container)?$/.exec(line)?.[1] ?? []);
  return [...new Set([...mounted, ...grouped, ...(/^[0-9a-f]{12}$/.test(name) ? [name] : [])])];
}

/** Undefined: none of these engines made it, or it is no container at all. Throws where one that may have does not answer. */
export async function findOwnContainer(
  around: Surroundings,
  engines: Iterable<DockerClient>,
  signal: AbortSignal,
): Promise<OwnContainer | undefined> {
  const ids = possibleIds(around);
  for (const engine of ids.length === 0 ? [] : engines) {
    for (const id of ids) {
      const found = await asked(engine, id, signal);
      // Names are looked up as well as ids.
      if (found?.state.running === true && found.id.startsWith(id)) return ownContainer(engine, found);
    }
  }
  return undefined;
}

async function asked(engine: DockerClient, id: string, signal: AbortSignal): Promise<Container | undefined> {
  try {
    return await engine.container(id, signal);
  } catch (cause) {
    if (cause instanceof DockerError && cause.status === 404) return undefined;
    throw cause;
  }
}

function ownContainer(engine: DockerClient, { id, image, networks, mounts }: Container): OwnContainer {
  const inside = (path: string, folder: string): boolean => !relative(folder, path).startsWith('..');
  return {
    engine,
    id,
    image,
    onHostNetwork: 'host' in networks,
    hostPath: (path) => {
      const covering = mounts.filter(({ source, destination }) => source.startsWith('/') && inside(path, destination));
      const innermost = covering.sort((a, b) => b.destination.length - a.destination.length)[0];
      return innermost && resolve(innermost.source, relative(innermost.destination, path));
    },
  };
}
