import { stowageError } from '#core/errors.ts';
import { roomForVolumes } from '#core/limits.ts';
import type { Volume } from '#core/model.ts';
import { partsOfQualified } from '#core/names.ts';
import type { Call } from '#core/operations.ts';
import { storeGone } from '#core/store-errors.ts';
import { isWritable, type StoreView } from '#core/stores.ts';
import {
  type Controller,
  type GetCapacityRequest,
  ControllerServiceCapability_RPC_Type as Rpc,
  type ValidateVolumeCapabilitiesRequest,
} from '#wire/csi/generated/csi.ts';
import type { Handlers } from '#wire/csi/grpc.ts';
import { cannotHave, wishesFrom } from './capabilities.ts';
import { createVolume, isHere, parametersFrom } from './create-volume.ts';
import { type About, callFrom, storeFor, storesOf } from './driver-context.ts';
import { listHealth, listVolumes } from './list-volumes.ts';
import { isWithin, mapIn, outOfRange, rangeIn, refuse, textIn } from './request-fields.ts';
import { contextOf, otherFilesystemOf, volumeMessage, volumeOf } from './resolve-volume.ts';
import { conditionMessage, conditionOf, healthMessage } from './volume-condition.ts';

const capabilities = [
  Rpc.CREATE_DELETE_VOLUME,
  Rpc.LIST_VOLUMES,
  Rpc.GET_CAPACITY,
  Rpc.EXPAND_VOLUME,
  Rpc.GET_VOLUME,
  Rpc.VOLUME_CONDITION,
  Rpc.GET_VOLUME_HEALTH,
  Rpc.LIST_VOLUME_HEALTH,
  Rpc.SINGLE_NODE_MULTI_WRITER,
];

export const controllerOf = (about: About): Handlers<typeof Controller> => ({
  controllerGetCapabilities: async () => ({
    capabilities: capabilities.map((type) => ({ type: { case: 'rpc', value: { type } } })),
  }),
  createVolume: async (request, call) => ({
    volume: volumeMessage(about, await createVolume(about, request, callFrom(about, call))),
  }),
  deleteVolume: async ({ volumeId, secrets }, given) => {
    const id = textIn(volumeId, 'volume_id');
    mapIn(secrets, 'secrets');
    await about.underway(`volume ${id}`, () => deleteVolume(about, id, callFrom(about, given)));
    return {};
  },
  validateVolumeCapabilities: (request, call) => validate(about, request, callFrom(about, call)),
  listVolumes: (request, call) => listVolumes(about, request, callFrom(about, call)),
  getCapacity: async (request, call) => ({ availableCapacity: await capacity(about, request, callFrom(about, call)) }),
  controllerGetVolume: async ({ volumeId }, given) => {
    const call = callFrom(about, given);
    const volume = await volumeOf(about, textIn(volumeId, 'volume_id'), call);
    const volumeCondition = conditionMessage(await conditionOf(about, volume, call));
    return { volume: volumeMessage(about, volume), status: { volumeCondition } };
  },
  controllerListVolumeHealth: (request, call) => listHealth(about, request, callFrom(about, call)),
  controllerGetVolumeHealth: async ({ volumeId, secrets }, given) => {
    const call = callFrom(about, given);
    mapIn(secrets, 'secrets');
    const volume = await volumeOf(about, textIn(volumeId, 'volume_id'), call);
    return { volumeHealth: healthMessage(volumeId, await conditionOf(about, volume, call)) };
  },
  controllerExpandVolume: async ({ volumeId, capacityRange, secrets, volumeCapability }, given) => {
    const id = textIn(volumeId, 'volume_id');
    if (capacityRange === undefined) throw refuse('capacity_range is missing');
    const range = rangeIn(capacityRange);
    mapIn(secrets, 'secrets');
    if (volumeCapability !== undefined) wishesFrom([volumeCapability]);
    const call = callFrom(about, given);
    const volume = await about.underway(`volume ${id}`, async () => {
      const before = await volumeOf(about, id, call);
      if (isWithin(before.bytes, range)) return before;
      const wanted = range.from ?? before.bytes ?? 0n;
      if (before.bytes !== undefined && before.bytes > wanted)
        throw outOfRange(`volume '${before.store}/${before.name}' is larger than the limit`);
      return await about.core.volumes.expand(before.id, wanted, undefined, call);
    });
    // Where it is mounted on this node it has grown already; elsewhere, and later, it does when it is staged.
    return { capacityBytes: volume.bytes ?? 0n, nodeExpansionRequired: about.driver.nodeExpansion };
  },
});

async function deleteVolume(about: About, id: string, call: Call): Promise<void> {
  try {
    const volume = await volumeOf(about, id, call);
    await about.core.deletions.delete(volume.id, undefined, call);
  } catch (thrown) {
    // Said only when every store has answered.
    if (stowageError(thrown).reason !== 'volume-unknown') throw thrown;
    refuseStoreGone(about, id);
  }
}

/** The record of a volume outlives the configuration of its store. */
function refuseStoreGone({ core }: About, id: string): void {
  const store = core.catalogue.recorded(id)?.store ?? partsOfQualified(id)?.store;
  if (store === undefined || core.stores.list().some(({ config }) => config.name === store)) return;
  throw storeGone(
    store,
    'Configure the store again; or, to leave the data where they are, retain the volume instead of deleting it.',
  );
}

async function validate(about: About, request: ValidateVolumeCapabilitiesRequest, call: Call) {
  const { volumeId, volumeCapabilities, volumeContext, parameters } = request;
  const id = textIn(volumeId, 'volume_id');
  const wishes = wishesFrom(volumeCapabilities);
  mapIn(request.secrets, 'secrets');
  const context = mapIn(volumeContext, 'volume_context');
  const given = mapIn(parameters, 'parameters');
  const volume = await volumeOf(about, id, call);
  const view = about.core.stores.view(volume.store);
  const message =
    cannotHave(wishes, about.driver, view) ??
    otherAccess(volume, wishes[0].access) ??
    otherContext(volume, context) ??
    otherParameters(volume, given) ??
    (await otherFilesystemOf(about, volume, wishes, call));
  if (message !== undefined) return { message };
  return { confirmed: { volumeCapabilities, volumeContext, parameters } };
}

const otherAccess = ({ access }: Volume, wanted: Volume['access']): string | undefined =>
  access === wanted ? undefined : `the volume is a ${access} volume`;

function otherContext(volume: Volume, context: ReadonlyMap<string, string>): string | undefined {
  const own: Readonly<Record<string, string>> = contextOf(volume);
  const wrong = ['store'].find((key) => context.has(key) && context.get(key) !== own[key]);
  return wrong === undefined ? undefined : `volume_context has another ${wrong} than the volume`;
}

function otherParameters(volume: Volume, given: ReadonlyMap<string, string>): string | undefined {
  const { store, enforce } = parametersFrom(given);
  if (store !== undefined && store !== volume.store) return `the volume is on store '${volume.store}'`;
  if (enforce !== undefined && enforce !== volume.enforce)
    return `the volume is ${volume.enforce ? '' : 'not '}held to its size`;
  return undefined;
}

async function capacity(about: About, request: GetCapacityRequest, call: Call): Promise<bigint> {
  const { store } = parametersFrom(mapIn(request.parameters, 'parameters'));
  const wishes = request.volumeCapabilities.length === 0 ? [] : wishesFrom(request.volumeCapabilities);
  const { accessibleTopology } = request;
  if (
    about.driver.topology === 'node' &&
    accessibleTopology !== undefined &&
    !isHere(about, accessibleTopology.segments)
  )
    return 0n;
  const chosen = storeFor(about, store);
  const views = (chosen === undefined ? storesOf(about) : [chosen]).filter(
    (view) => isWritable(view) && cannotHave(wishes, about.driver, view) === undefined,
  );
  const free = await Promise.all(views.map((view) => freeIn(about, view, call)));
  return free.reduce((sum, bytes) => sum + bytes, 0n);
}

async function freeIn({ core }: About, { config }: StoreView, call: Call): Promise<bigint> {
  const { freeBytes = 0n } = await core.stores.check(config.name, call);
  return roomForVolumes(freeBytes, config.policy, core.catalogue.totals(config.name));
}
