import type { Clock } from '#base/clock.ts';
import { systemClock } from '#base/clock.ts';
import type { Scope } from '#base/log.ts';
import { stowageError } from '#core/errors.ts';
import type { StoreConfig, StorePolicy } from '#core/model.ts';
import type { Store, StoreContext, StoreKind } from '#core/ports.ts';
import { createAdopt } from './adopt.ts';
import { checkStore } from './check.ts';
import { createCreate } from './create.ts';
import { createInFlightByDevice, type InFlightOn } from './in-flight.ts';
import { createDirectoryLayout } from './layout-directory.ts';
import { createImageLayout } from './layout-image.ts';
import { optionHelp, parseOptions } from './options.ts';
import { createOrphans } from './orphans.ts';
import { createParts } from './parts.ts';
import { openPlace, openReadOnlyPlace } from './place.ts';
import { createReadOnlyVerbs } from './read-only.ts';
import { createReading } from './reading.ts';
import { createSweep } from './sweep.ts';
import { createTrash } from './trash.ts';
import { createVolumes } from './volumes.ts';

/** Volumes in a directory of this machine: `local:///srv/data?layout=directory|image`. */
export function createLocalStoreKind(clock: Clock = systemClock()): StoreKind {
  const inFlightOn = createInFlightByDevice();
  return {
    scheme: 'local',
    options: optionHelp,
    open: async (config, policy, context, scope) => {
      try {
        scope.signal.throwIfAborted();
        return await open(config, policy, context, { clock, inFlightOn }, scope);
      } catch (cause) {
        throw stowageError(cause);
      }
    },
  };
}

async function open(
  config: StoreConfig,
  policy: StorePolicy,
  context: StoreContext,
  { clock, inFlightOn }: { readonly clock: Clock; readonly inFlightOn: InFlightOn },
  scope: Scope,
): Promise<Store> {
  const options = parseOptions(config.uri, config.options);
  const { readOnly } = policy;
  const place = readOnly
    ? await openReadOnlyPlace(options, config.name, context, inFlightOn)
    : await openPlace(options, config.name, context, scope.log, inFlightOn);
  try {
    const layout =
      options.layout === 'image'
        ? createImageLayout(options, place, clock)
        : await createDirectoryLayout(options, place, clock, readOnly);
    const parts = createParts(place, layout, clock);
    const verbs = readOnly
      ? createReadOnlyVerbs(parts)
      : {
          ...createReading(parts),
          ...createVolumes(parts),
          ...createAdopt(parts),
          create: createCreate(parts),
          trash: createTrash(parts),
          orphans: createOrphans(parts),
          ...createSweep(parts),
          close: () => place.close(),
        };
    return {
      ...{ name: config.name, kind: 'local', reach: 'node', readOnly, shared: readOnly, identity: place.identity },
      ...{ enforcesCapacity: layout.enforcesCapacity, access: layout.access, needsSize: layout.needsSize },
      check: (at) =>
        checkStore(parts, options, readOnly, at).catch((cause: unknown) => {
          throw stowageError(cause);
        }),
      ...verbs,
    };
  } catch (cause) {
    await place.close();
    throw cause;
  }
}
