import type { Clock } from '#base/clock.ts';
import { systemClock } from '#base/clock.ts';
import type { Scope } from '#base/log.ts';
import { stowageError } from '#core/errors.ts';
import type { StoreConfig, StorePolicy } from '#core/model.ts';
import type { StoreContext } from '#core/ports.ts';
import { createDirectoryLayout } from '../file-store/layout-directory.ts';
import { createVerbContext } from '../file-store/verb-context.ts';
import { createVerbs, type FileStore, type FileStoreKind, layoutTraits } from '../file-store/verbs.ts';
import { checkStore } from './check.ts';
import { createImageLayout } from './layout-image.ts';
import { localPath } from './local-path.ts';
import { createDirectoryMaker } from './new-directory.ts';
import { openReadOnlyStoreRoot, openStoreRoot } from './open-store-root.ts';
import { optionHelp, parseOptions } from './options.ts';
import { createSlotsByDevice, type SlotsOfDevice } from './slots-by-device.ts';

const withImages = 'a local store with layout=image';

/** Volumes in a directory of this machine: `local:///srv/data?layout=directory|image`. */
export function createLocalStoreKind(clock: Clock = systemClock()): FileStoreKind {
  const slotsOfDevice = createSlotsByDevice();
  return {
    scheme: 'local',
    placement: 'node',
    options: optionHelp,
    offers: { enforcement: withImages, blockVolumes: withImages },
    localDirectory: ({ uri, options }) =>
      localPath(uri).map((path) => ({ path, hasImages: options['layout'] === 'image' }))[0],
    clientName: ({ options }) => (options['layout'] === 'image' ? 'loop' : 'bind'),
    validate: ({ uri, options }) => void parseOptions(uri, options),
    open: async (config, policy, context, scope) => {
      try {
        scope.signal.throwIfAborted();
        return await open(config, policy, context, { clock, slotsOfDevice }, scope);
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
  { clock, slotsOfDevice }: { readonly clock: Clock; readonly slotsOfDevice: SlotsOfDevice },
  scope: Scope,
): Promise<FileStore> {
  const options = parseOptions(config.uri, config.options);
  const { readOnly } = policy;
  const storeRoot = readOnly
    ? await openReadOnlyStoreRoot(options, config.name, context, slotsOfDevice)
    : await openStoreRoot(options, config.name, context, scope.log, slotsOfDevice);
  try {
    const layout =
      options.layout === 'image'
        ? createImageLayout(options, storeRoot, clock)
        : createDirectoryLayout({
            storeRoot,
            clock,
            make: await createDirectoryMaker(options, storeRoot, readOnly),
            source: (path) => ({ kind: 'directory', node: context.node, path }),
          });
    const parts = createVerbContext(storeRoot, layout, clock);
    return {
      ...layoutTraits(parts),
      ...(readOnly ? { changedByOthers: {} } : {}),
      sources: ['directory', 'loop'],
      check: (checkScope) =>
        checkStore(parts, options, readOnly, checkScope).catch((cause: unknown) => {
          throw stowageError(cause);
        }),
      ...createVerbs(parts, readOnly),
    };
  } catch (cause) {
    await storeRoot.close();
    throw cause;
  }
}
