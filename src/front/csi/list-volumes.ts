import type { StoreName, Volume } from '#core/model.ts';
import type { Call } from '#core/operations.ts';
import type { VolumeQuery } from '#core/ports.ts';
import type { ControllerListVolumeHealthRequest, ListVolumesRequest } from '#wire/csi/generated/csi.ts';
import { GrpcError } from '#wire/csi/grpc.ts';
import { type DriverContext, storesOf } from './driver-context.ts';
import { invalidRequest, toCheckedMap } from './request-fields.ts';
import { volumeMessage } from './resolve-volume.ts';
import { conditionMessage, healthMessage, storeConditionOf, type VolumeCondition } from './volume-condition.ts';

/** The most volumes in one response, also if the request sets no limit: a gRPC client in Go accepts messages of at most 4 MiB. */
const maxPageSize = 3_000;
const abortedCode = 10;

export async function listVolumes(ctx: DriverContext, { maxEntries, startingToken }: ListVolumesRequest, call: Call) {
  const conditions = await storeConditions(ctx, call);
  const { volumes, nextToken } = await readPage(ctx, storesOf(ctx).map(nameOf), maxEntries, startingToken, call);
  return {
    entries: volumes.map((volume) => {
      const condition = conditions.get(volume.store);
      return {
        volume: volumeMessage(ctx, volume),
        status: condition === undefined ? {} : { volumeCondition: conditionMessage(condition) },
      };
    }),
    nextToken,
  };
}

/** The volumes of unhealthy stores. Inspecting each volume would take too long. */
export async function listHealth(ctx: DriverContext, request: ControllerListVolumeHealthRequest, call: Call) {
  toCheckedMap(request.secrets, 'secrets');
  const conditions = await storeConditions(ctx, call);
  const unhealthy = [...conditions].flatMap(([store, { health }]) => (health === 'ok' ? [] : [store]));
  const { volumes, nextToken } = await readPage(ctx, unhealthy, request.maxEntries, request.startingToken, call);
  return {
    entries: volumes.flatMap((volume) => {
      const condition = conditions.get(volume.store);
      return condition === undefined ? [] : [healthMessage(volume.id, condition)];
    }),
    nextToken,
  };
}

const nameOf = ({ config }: ReturnType<typeof storesOf>[number]): StoreName => config.name;

async function readPage(
  ctx: DriverContext,
  stores: readonly StoreName[],
  maxEntries: number,
  token: string,
  call: Call,
) {
  if (maxEntries < 0) throw invalidRequest('max_entries is negative');
  const after = token === '' ? undefined : parseToken(ctx, token);
  const limit = Math.min(maxEntries === 0 ? maxPageSize : maxEntries, maxPageSize);
  // One more than the page, to know if there is a next page.
  const query = { stores, labels: {}, contains: undefined, after, limit: limit + 1 };
  const { volumes: found } = stores.length === 0 ? { volumes: [] } : await ctx.core.catalogue.page(query, call);
  const volumes = found.slice(0, limit);
  const last = volumes.at(-1);
  return { volumes, nextToken: last !== undefined && found.length > volumes.length ? tokenOf(last) : '' };
}

async function storeConditions(ctx: DriverContext, call: Call): Promise<ReadonlyMap<StoreName, VolumeCondition>> {
  const stores = storesOf(ctx).map(nameOf);
  const found = await Promise.all(stores.map((store) => storeConditionOf(ctx, { store }, call)));
  return new Map(stores.flatMap((store, index) => (found[index] === undefined ? [] : [[store, found[index]]])));
}

const tokenOf = ({ store, name }: Volume): string => Buffer.from(JSON.stringify([store, name])).toString('base64url');

function parseToken(ctx: DriverContext, token: string): NonNullable<VolumeQuery['after']> {
  try {
    const [store, name] = JSON.parse(Buffer.from(token, 'base64url').toString()) as readonly unknown[];
    const isKnown = storesOf(ctx).some(({ config }) => config.name === store);
    if (isKnown && typeof store === 'string' && typeof name === 'string') return { store, name };
  } catch (cause) {
    throw invalidToken(cause);
  }
  throw invalidToken();
}

/** The CSI specification requires ABORTED here: the caller then starts again without a token. */
const invalidToken = (cause?: unknown): GrpcError =>
  new GrpcError('starting_token is unknown', { code: abortedCode, cause });
