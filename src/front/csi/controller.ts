import { stowageError } from '#core/errors.ts';
import type { Volume } from '#core/model.ts';
import { partsOfQualified } from '#core/names.ts';
import type { Call } from '#core/operations.ts';
import { storeGone } from '#core/store-errors.ts';
import { roomForVolumes } from '#core/store-limits.ts';
import { isWritable, type StoreView } from '#core/store-view.ts';
import {
  type Controller,
  type GetCapacityRequest,
  ControllerServiceCapability_RPC_Type as Rpc,
  type ValidateVolumeCapabilitiesRequest,
} from '#wire/csi/generated/csi.ts';
import type { Handlers } from '#wire/csi/grpc.ts';
import { parseCapabilities, unsupportedBecause } from './capabilities.ts';
import { createVolume, includesThisNode, parseParameters } from './create-volume.ts';
import { callFrom, chooseStore, type DriverContext, storesOf } from './driver-context.ts';
import { listHealth, listVolumes } from './list-volumes.ts';
import {
  invalidRequest,
  isWithin,
  outOfRange,
  parseCapacityRange,
  requiredText,
  toCheckedMap,
} from './request-fields.ts';
import { contextOf, resolveVolume, volumeFilesystemMismatch, volumeMessage } from './resolve-volume.ts';
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

export const controllerOf = (ctx: DriverContext): Handlers<typeof Controller> => ({
  controllerGetCapabilities: async () => ({
    capabilities: capabilities.map((type) => ({ type: { case: 'rpc', value: { type } } })),
  }),
  createVolume: async (request, call) => ({
    volume: volumeMessage(ctx, await createVolume(ctx, request, callFrom(ctx, call))),
  }),
  deleteVolume: async ({ volumeId, secrets }, given) => {
    const id = requiredText(volumeId, 'volume_id');
    toCheckedMap(secrets, 'secrets');
    await ctx.runExclusive(`volume ${id}`, () => deleteVolume(ctx, id, callFrom(ctx, given)));
    return {};
  },
  validateVolumeCapabilities: (request, call) => validate(ctx, request, callFrom(ctx, call)),
  listVolumes: (request, call) => listVolumes(ctx, request, callFrom(ctx, call)),
  getCapacity: async (request, call) => ({ availableCapacity: await capacity(ctx, request, callFrom(ctx, call)) }),
  controllerGetVolume: async ({ volumeId }, given) => {
    const call = callFrom(ctx, given);
    const volume = await resolveVolume(ctx, requiredText(volumeId, 'volume_id'), call);
    const volumeCondition = conditionMessage(await conditionOf(ctx, volume, call));
    return { volume: volumeMessage(ctx, volume), status: { volumeCondition } };
  },
  controllerListVolumeHealth: (request, call) => listHealth(ctx, request, callFrom(ctx, call)),
  controllerGetVolumeHealth: async ({ volumeId, secrets }, given) => {
    const call = callFrom(ctx, given);
    toCheckedMap(secrets, 'secrets');
    const volume = await resolveVolume(ctx, requiredText(volumeId, 'volume_id'), call);
    return { volumeHealth: healthMessage(volumeId, await conditionOf(ctx, volume, call)) };
  },
  controllerExpandVolume: async ({ volumeId, capacityRange, secrets, volumeCapability }, given) => {
    const id = requiredText(volumeId, 'volume_id');
    if (capacityRange === undefined) throw invalidRequest('capacity_range is missing');
    const range = parseCapacityRange(capacityRange);
    toCheckedMap(secrets, 'secrets');
    if (volumeCapability !== undefined) parseCapabilities([volumeCapability]);
    const call = callFrom(ctx, given);
    const volume = await ctx.runExclusive(`volume ${id}`, async () => {
      const before = await resolveVolume(ctx, id, call);
      if (isWithin(before.bytes, range)) return before;
      const wanted = range.from ?? before.bytes ?? 0n;
      if (before.bytes !== undefined && before.bytes > wanted)
        throw outOfRange(`volume '${before.store}/${before.name}' is larger than the limit`);
      return await ctx.core.volumes.expand(before.id, wanted, undefined, call);
    });
    // Mounts on this node have grown already. On other nodes the file system grows when the volume is staged.
    return { capacityBytes: volume.bytes ?? 0n, nodeExpansionRequired: ctx.driver.nodeExpansion };
  },
});

async function deleteVolume(ctx: DriverContext, id: string, call: Call): Promise<void> {
  try {
    const volume = await resolveVolume(ctx, id, call);
    await ctx.core.deletions.delete(volume.id, undefined, call);
  } catch (thrown) {
    // The catalogue throws this only after every store has answered.
    if (stowageError(thrown).reason !== 'volume-unknown') throw thrown;
    requireConfiguredStore(ctx, id);
  }
}

/** The record of a volume outlives the configuration of its store. Without the store, the data may still exist. */
function requireConfiguredStore({ core }: DriverContext, id: string): void {
  const store = core.catalogue.findRecorded(id)?.store ?? partsOfQualified(id)?.store;
  if (store === undefined || core.stores.list().some(({ config }) => config.name === store)) return;
  throw storeGone(store, 'Configure the store again; or, to keep the data, retain the volume instead of deleting it.');
}

async function validate(ctx: DriverContext, request: ValidateVolumeCapabilitiesRequest, call: Call) {
  const { volumeId, volumeCapabilities, volumeContext, parameters } = request;
  const id = requiredText(volumeId, 'volume_id');
  const requestedCapabilities = parseCapabilities(volumeCapabilities);
  toCheckedMap(request.secrets, 'secrets');
  const context = toCheckedMap(volumeContext, 'volume_context');
  const given = toCheckedMap(parameters, 'parameters');
  const volume = await resolveVolume(ctx, id, call);
  const view = ctx.core.stores.view(volume.store);
  const message =
    unsupportedBecause(requestedCapabilities, ctx.driver, view) ??
    accessMismatch(volume, requestedCapabilities[0].access) ??
    contextMismatch(volume, context) ??
    parameterMismatch(volume, given) ??
    (await volumeFilesystemMismatch(ctx, volume, requestedCapabilities, call));
  if (message !== undefined) return { message };
  return { confirmed: { volumeCapabilities, volumeContext, parameters } };
}

const accessMismatch = ({ access }: Volume, wanted: Volume['access']): string | undefined =>
  access === wanted ? undefined : `the volume is a ${access} volume`;

function contextMismatch(volume: Volume, context: ReadonlyMap<string, string>): string | undefined {
  const own: Readonly<Record<string, string>> = contextOf(volume);
  const wrong = ['store'].find((key) => context.has(key) && context.get(key) !== own[key]);
  return wrong === undefined ? undefined : `volume_context does not match the ${wrong} of the volume`;
}

function parameterMismatch(volume: Volume, given: ReadonlyMap<string, string>): string | undefined {
  const { store, enforce } = parseParameters(given);
  if (store !== undefined && store !== volume.store) return `the volume is on store '${volume.store}'`;
  if (enforce !== undefined && enforce !== volume.enforce)
    return `the size of the volume is ${volume.enforce ? '' : 'not '}enforced`;
  return undefined;
}

async function capacity(ctx: DriverContext, request: GetCapacityRequest, call: Call): Promise<bigint> {
  const { store } = parseParameters(toCheckedMap(request.parameters, 'parameters'));
  const requestedCapabilities =
    request.volumeCapabilities.length === 0 ? [] : parseCapabilities(request.volumeCapabilities);
  const { accessibleTopology } = request;
  if (
    ctx.driver.topology === 'node' &&
    accessibleTopology !== undefined &&
    !includesThisNode(ctx, accessibleTopology.segments)
  )
    return 0n;
  const chosen = chooseStore(ctx, store);
  const views = (chosen === undefined ? storesOf(ctx) : [chosen]).filter(
    (view) => isWritable(view) && unsupportedBecause(requestedCapabilities, ctx.driver, view) === undefined,
  );
  const free = await Promise.all(views.map((view) => freeIn(ctx, view, call)));
  return free.reduce((sum, bytes) => sum + bytes, 0n);
}

async function freeIn({ core }: DriverContext, { config }: StoreView, call: Call): Promise<bigint> {
  const { freeBytes = 0n } = await core.stores.check(config.name, call);
  return roomForVolumes(freeBytes, config.policy, core.catalogue.totals(config.name));
}
