import type { EngineKind } from '#core/containers.ts';
import { StowageError } from '#core/errors.ts';
import type { DockerClient } from '#wire/docker/client.ts';
import { engineFailure } from '../engines/errors.ts';
import { findOwnContainer, type OwnContainer, possibleIds, type Surroundings, surroundings } from './own-container.ts';

/** Processes beside this one, or containers of its image. */
export const keeperPlaces = ['process', 'container'] as const;
export type KeeperPlace = (typeof keeperPlaces)[number];

export interface PlacingOptions {
  readonly engines: ReadonlyMap<EngineKind, DockerClient>;
  /** Of this Stowage. */
  readonly instance: string;
  /** Undefined: containers, where this process runs in one that one of the engines made. */
  readonly wanted: KeeperPlace | undefined;
}

/** Where keepers are to run. A container ends with all its processes, so keepers that shall outlive it need their own. */
export interface Placing {
  /** Undefined: as processes beside this one. Throws where it cannot be said, or not be had. */
  own(signal: AbortSignal): Promise<OwnContainer | undefined>;
}

export function createPlacing(
  { engines, wanted }: PlacingOptions,
  folder: string,
  tell: (message: string, facts: Readonly<Record<string, string>>) => void,
  look: () => Promise<Surroundings> = surroundings,
): Placing {
  let known: { readonly own: OwnContainer | undefined } | undefined;

  async function decided(signal: AbortSignal): Promise<OwnContainer | undefined> {
    const around = await look();
    const isInside = possibleIds(around).length > 0;
    const own = await found(around, signal);
    const why = own === undefined ? 'no container engine that is known here made this container' : unusable(own);
    if (why === undefined) return own;
    if (wanted === 'container') throw impossible(why);
    if (isInside) tell('data paths end with this container', { why });
    return undefined;
  }

  async function found(around: Surroundings, signal: AbortSignal): Promise<OwnContainer | undefined> {
    try {
      return await findOwnContainer(around, engines.values(), signal);
    } catch (cause) {
      throw engineFailure(cause, [...engines.keys()].join(', '));
    }
  }

  const unusable = (own: OwnContainer): string | undefined => {
    if (own.hostPath(folder) === undefined) return `${folder} is not on a folder of the machine`;
    return own.onHostNetwork ? undefined : 'this container has another network than the machine';
  };

  return {
    own: async (signal) => {
      if (wanted === 'process') return undefined;
      known ??= { own: await decided(signal) };
      return known.own;
    },
  };
}

function impossible(why: string): StowageError {
  return new StowageError(`data paths cannot run in containers of their own: ${why}`, {
    code: 'unsupported',
    reason: 'keeper-container-impossible',
    action: 'Start Stowage as deploy/compose.yaml does, or without STOWAGE_KEEPERS=container.',
  });
}
