import { readFile } from 'node:fs/promises';
import { hostname } from 'node:os';
import { relative, resolve } from 'node:path';
import type { DockerClient } from '#wire/docker/client.ts';
import type { Container } from '#wire/docker/containers.ts';
import { DockerError } from '#wire/docker/errors.ts';

/** The container that this process runs in, as described by the engine that created it. */
export interface OwnContainer {
  readonly engine: DockerClient;
  readonly id: string;
  /** The id of its image. */
  readonly image: string;
  readonly onHostNetwork: boolean;
  /** The host path of a path in this container. Undefined: the path exists in the container only. */
  hostPath(path: string): string | undefined;
}

/** What a process can read about the container that it runs in. */
export interface ContainerEvidence {
  readonly mountinfo: string;
  readonly cgroup: string;
  readonly hostname: string;
}

export async function readContainerEvidence(): Promise<ContainerEvidence> {
  const read = (file: string): Promise<string> => readFile(`/proc/self/${file}`, 'utf8').catch(() => '');
  return { mountinfo: await read('mountinfo'), cgroup: await read('cgroup'), hostname: hostname() };
}

/**
 * Candidates for the id of this process's own container, the likeliest first. Engines mount some files of their own (`/etc/hosts`) into
 * each container, from a folder that is named after it. In a cgroup namespace the id is not visible; in the host's network the host name is
 * the machine's.
 */
export function possibleIds({ mountinfo, cgroup, hostname: name }: ContainerEvidence): readonly string[] {
  const idsInMounts = mountinfo
    .split('\n')
    .flatMap((line) => /\/(?:overlay-)?containers\/([0-9a-f]{64})\/[^ ]* \/(?:etc|run)\//.exec(line)?.[1] ?? []);
  const idsInCgroup = cgroup
    .split('\n')
    .flatMap((line) => /([0-9a-f]{64})(?:\.scope)?(?:\/container)?$/.exec(line)?.[1] ?? []);
  return [...new Set([...idsInMounts, ...idsInCgroup, ...(/^[0-9a-f]{12}$/.test(name) ? [name] : [])])];
}

/** Undefined: none of these engines created this container, or this process runs in none. Throws if an engine that may have created it does not answer. */
export async function findOwnContainer(
  evidence: ContainerEvidence,
  engines: Iterable<DockerClient>,
  signal: AbortSignal,
): Promise<OwnContainer | undefined> {
  const ids = possibleIds(evidence);
  for (const engine of ids.length === 0 ? [] : engines) {
    for (const id of ids) {
      const found = await findContainer(engine, id, signal);
      // The engine also looks up names, so check the id.
      if (found?.state.running === true && found.id.startsWith(id)) return ownContainer(engine, found);
    }
  }
  return undefined;
}

async function findContainer(engine: DockerClient, id: string, signal: AbortSignal): Promise<Container | undefined> {
  try {
    return await engine.container(id, signal);
  } catch (cause) {
    if (cause instanceof DockerError && cause.status === 404) return undefined;
    throw cause;
  }
}

function ownContainer(engine: DockerClient, { id, image, networks, mounts }: Container): OwnContainer {
  const isInside = (path: string, folder: string): boolean => !relative(folder, path).startsWith('..');
  return {
    engine,
    id,
    image,
    onHostNetwork: 'host' in networks,
    hostPath: (path) => {
      const coveringMounts = mounts.filter(
        ({ source, destination }) => source.startsWith('/') && isInside(path, destination),
      );
      const innermost = coveringMounts.sort((a, b) => b.destination.length - a.destination.length)[0];
      return innermost && resolve(innermost.source, relative(innermost.destination, path));
    },
  };
}
