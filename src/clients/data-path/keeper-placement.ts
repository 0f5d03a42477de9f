import type { Clock } from '#base/clock.ts';
import type { EngineKind } from '#core/containers.ts';
import { StowageError } from '#core/errors.ts';
import type { DockerClient } from '#wire/docker/client.ts';
import { DockerError } from '#wire/docker/errors.ts';
import { engineFailure } from '../engines/engine-errors.ts';
import {
  type ContainerEvidence,
  findOwnContainer,
  type OwnContainer,
  possibleIds,
  readContainerEvidence,
} from './own-container.ts';

/** Keepers run as processes beside this one, as containers of its image, or as pods that Kubernetes starts. */
export const keeperPlaces = ['process', 'container', 'pod'] as const;
export type KeeperPlace = (typeof keeperPlaces)[number];

export interface KeeperPlacementOptions {
  readonly engines: ReadonlyMap<EngineKind, DockerClient>;
  /** This Stowage's instance. */
  readonly instance: string;
  /** Undefined: containers if this process runs in a container of one of the engines, else processes. */
  readonly requestedPlace: KeeperPlace | undefined;
  /** The user of keepers in pods. Default: see `keeper-pod.ts`. */
  readonly podUser?: number | undefined;
}

/** Decides where keepers run. A container ends with all its processes, so keepers that must outlive it need containers of their own. */
export interface KeeperPlacement {
  /**
   * `here`: keepers run as processes beside this one. `later`: they do so for now, because the engine does not answer. An engine that is
   * starting first starts its containers, and answers no requests meanwhile. Throws if the requested place is not available.
   */
  choosePlace(signal: AbortSignal): Promise<OwnContainer | 'here' | 'later'>;
}

/** A working engine answers in milliseconds. An engine that is starting waits for this container, so waiting for it would deadlock. */
const engineTimeoutMs = 1_000;

export function createKeeperPlacement(
  { engines, requestedPlace }: KeeperPlacementOptions,
  { folder, clock, logOnce }: KeeperPlacementParts,
  readEvidence: () => Promise<ContainerEvidence> = readContainerEvidence,
): KeeperPlacement {
  let cachedPlace: OwnContainer | 'here' | undefined;

  async function decide(signal: AbortSignal): Promise<OwnContainer | 'here'> {
    const evidence = await readEvidence();
    const own = await findOwnContainer(evidence, engines.values(), signal);
    const why = own === undefined ? 'no container engine known to Stowage created this container' : whyUnusable(own);
    if (own !== undefined && why === undefined) return own;
    if (requestedPlace === 'container') throw impossible(why ?? '');
    if (possibleIds(evidence).length > 0) logOnce('data paths end when this container ends', { why: why ?? '' });
    return 'here';
  }

  const whyUnusable = (own: OwnContainer): string | undefined => {
    if (own.hostPath(folder) === undefined) return `${folder} is not in a folder mounted from the host`;
    return own.onHostNetwork ? undefined : 'this container has another network than the host';
  };

  return {
    choosePlace: async (signal) => {
      if (requestedPlace === 'process' || requestedPlace === 'pod') return 'here';
      using limit = clock.deadline(engineTimeoutMs, signal);
      try {
        cachedPlace ??= await decide(limit.signal);
        if (cachedPlace !== 'here') await cachedPlace.engine.ping(limit.signal);
        return cachedPlace;
      } catch (cause) {
        signal.throwIfAborted();
        if (!(cause instanceof DockerError)) throw cause;
        if (requestedPlace === 'container') throw engineFailure(cause, [...engines.keys()].join(', '));
        logOnce('data paths start in this container until its engine answers', { why: cause.message });
        return 'later';
      }
    },
  };
}

export interface KeeperPlacementParts {
  /** The keepers' folder. */
  readonly folder: string;
  readonly clock: Clock;
  readonly logOnce: (message: string, facts: Readonly<Record<string, string>>) => void;
}

function impossible(why: string): StowageError {
  return new StowageError(`data paths cannot run in containers of their own: ${why}`, {
    code: 'unsupported',
    reason: 'keeper-container-impossible',
    action: 'Start Stowage as deploy/compose.yaml does, or without STOWAGE_KEEPERS=container.',
  });
}
