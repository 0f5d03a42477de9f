import { Type } from 'typebox';
import type { Engine } from '#core/engine.ts';
import { StowageError, stowageError } from '#core/errors.ts';
import type { Labels, Volume } from '#core/model.ts';
import { isVolumeId, partsOfQualified } from '#core/names.ts';
import { mountJson, time, usageJson, volumeDetailJson, volumeJson } from '../json.ts';
import { isEverywhere, maySee, type Principal, requireDefault, requireStore, visibleStores } from '../principal.ts';
import { created, nothing, ok, type Route, route } from '../route.ts';
import * as schemas from '../schemas.ts';
import { inspectionFor } from '../told.ts';

const tag = 'volumes';
const params = Type.Object(
  { volume: Type.String({ minLength: 1, maxLength: 300, description: 'A volume id, store..name, or a name' }) },
  { additionalProperties: false },
);
const useParams = Type.Object(
  { ...params.properties, host: Type.String({ minLength: 1, maxLength: 128, description: 'The id of the host' }) },
  { additionalProperties: false },
);
const query = Type.Object(
  {
    store: Type.Optional(Type.String({ minLength: 1, maxLength: 128 })),
    label: Type.Optional(
      Type.Array(Type.String({ maxLength: 400, pattern: '^[^=]+=' }), { maxItems: 16, description: 'key=value' }),
    ),
    contains: Type.Optional(Type.String({ minLength: 1, maxLength: 128, description: 'Part of the name' })),
    after: Type.Optional(
      Type.String({ pattern: '^[^/]{1,128}/[^/]{1,128}$', description: 'The `next` of the page before' }),
    ),
    limit: Type.Optional(Type.Integer({ minimum: 1, maximum: 1000 })),
  },
  { additionalProperties: false },
);

const byStore = (engine: Engine, store: string): boolean => engine.stores.view(store).store?.enforcesCapacity ?? false;
const json = (engine: Engine, volume: Volume) => volumeJson(volume, byStore(engine, volume.store));
const tagged = (volume: Volume): Record<string, string> => ({ etag: `"${volume.revision}"` });

/** A volume the principal may work on. */
async function allowed(
  engine: Engine,
  principal: Principal,
  ref: string,
  call: Parameters<Engine['catalogue']['resolve']>[1],
): Promise<Volume> {
  const store = partsOfQualified(ref)?.store;
  if (store !== undefined) requireStore(principal, store);
  return await engine.catalogue.resolve(ref, call, (one) => maySee(principal, one));
}

function labelsFrom(pairs: readonly string[]): Labels {
  return Object.fromEntries(pairs.map((pair) => [pair.slice(0, pair.indexOf('=')), pair.slice(pair.indexOf('=') + 1)]));
}

function afterFrom(text: string | undefined): { store: string; name: string } | undefined {
  const [store, name] = text?.split('/') ?? [];
  return store === undefined || name === undefined ? undefined : { store, name };
}

/** Each is an operation of its own, which may fail without the other. */
const oneChange = (): StowageError =>
  new StowageError('a change is either of the labels or of the enforcement', {
    code: 'invalid',
    reason: 'request-invalid',
    action: 'Send `labels` or `enforce`, each in a request of its own.',
  });

export const volumeRoutes: readonly Route[] = [
  route({
    method: 'GET',
    path: '/v1/volumes',
    id: 'listVolumes',
    tag,
    summary: 'List volumes, by store and name',
    role: 'viewer',
    query,
    success: {
      status: 200,
      description: 'A page of volumes',
      schema: schemas.listOverStores(
        schemas.volume,
        'Stores that did not answer: their volumes are listed as they were last seen',
      ),
    },
    handle: async ({ engine, principal, query: q, call }) => {
      const limit = q.limit ?? 100;
      if (q.store !== undefined) requireStore(principal, q.store);
      const { volumes: found, unanswered } = await engine.catalogue.page(
        {
          stores: q.store === undefined ? visibleStores(engine, principal) : [q.store],
          labels: labelsFrom(q.label ?? []),
          contains: q.contains,
          after: afterFrom(q.after),
          limit: limit + 1,
        },
        call,
      );
      const items = found.slice(0, limit);
      const last = items.at(-1);
      return ok({
        items: items.map((volume) => json(engine, volume)),
        next: found.length > limit && last ? `${last.store}/${last.name}` : null,
        unanswered: [...unanswered],
      });
    },
  }),
  route({
    method: 'POST',
    path: '/v1/volumes',
    id: 'createVolume',
    operation: 'volume.create',
    tag,
    summary: 'Create a volume',
    role: 'user',
    body: schemas.newVolume,
    success: { status: 201, description: 'The volume', schema: schemas.volume },
    handle: async ({ engine, principal, body, call }) => {
      const store = body.store ?? engine.stores.defaultName;
      if (body.store === undefined) requireDefault(principal, store);
      else requireStore(principal, body.store);
      const want = {
        store,
        name: body.name,
        bytes: body.bytes === undefined ? undefined : BigInt(body.bytes),
        enforce: body.enforce,
        access: body.access,
        labels: body.labels ?? {},
      };
      const volume = await engine.volumes.create(want, call);
      return created(json(engine, volume), { ...tagged(volume), location: `/v1/volumes/${volume.id}` });
    },
  }),
  route({
    method: 'GET',
    path: '/v1/volumes/{volume}',
    id: 'getVolume',
    tag,
    summary: 'Show a volume, its condition, its users, and the hosts that use it',
    role: 'viewer',
    params,
    success: { status: 200, description: 'The volume', schema: schemas.volumeDetail },
    handle: async ({ engine, principal, params: p, call }) => {
      const volume = await allowed(engine, principal, p.volume, call);
      const [found, mounts, uses] = await Promise.all([
        engine.volumes.inspect(volume.id, call),
        engine.mounts.of(volume.id, call),
        engine.uses.of(volume, call),
      ]);
      const told = inspectionFor(principal, found);
      return ok(volumeDetailJson(told, byStore(engine, volume.store), mounts, uses), tagged(found.volume));
    },
  }),
  route({
    method: 'GET',
    path: '/v1/volumes/{volume}/usage',
    id: 'getVolumeUsage',
    tag,
    summary: "Measure the volume's own usage",
    role: 'viewer',
    params,
    success: { status: 200, description: 'Its usage', schema: schemas.usage },
    handle: async ({ engine, principal, params: p, call }) => {
      const { id } = await allowed(engine, principal, p.volume, call);
      return ok(usageJson(await engine.volumes.usage(id, call)));
    },
  }),
  route({
    method: 'POST',
    path: '/v1/volumes/{volume}/expand',
    id: 'expandVolume',
    operation: 'volume.expand',
    tag,
    summary: 'Enlarge a volume, mounted or not',
    role: 'user',
    params,
    body: schemas.expansion,
    conditional: true,
    success: { status: 200, description: 'The volume', schema: schemas.volume },
    handle: async ({ engine, principal, params: p, body, expected, call }) => {
      const { id } = await allowed(engine, principal, p.volume, call);
      const volume = await engine.volumes.expand(id, BigInt(body.bytes), expected, call);
      return ok(json(engine, volume), tagged(volume));
    },
  }),
  route({
    method: 'POST',
    path: '/v1/volumes/{volume}/rename',
    id: 'renameVolume',
    operation: 'volume.rename',
    tag,
    summary: 'Rename a volume that is not in use',
    role: 'user',
    params,
    body: schemas.renaming,
    conditional: true,
    success: { status: 200, description: 'The volume', schema: schemas.volume },
    handle: async ({ engine, principal, params: p, body, expected, call }) => {
      const { id } = await allowed(engine, principal, p.volume, call);
      const volume = await engine.volumes.rename(id, body.name, expected, call);
      return ok(json(engine, volume), tagged(volume));
    },
  }),
  route({
    method: 'PATCH',
    path: '/v1/volumes/{volume}',
    id: 'labelVolume',
    operation: ['volume.label', 'volume.enforce'],
    tag,
    summary: 'Change labels, or have the volume held to its size: one of the two',
    role: 'user',
    params,
    body: schemas.volumeChange,
    conditional: true,
    success: { status: 200, description: 'The volume', schema: schemas.volume },
    handle: async ({ engine, principal, params: p, body, expected, call }) => {
      const { id } = await allowed(engine, principal, p.volume, call);
      const { labels, enforce } = body;
      if ((labels === undefined) === (enforce === undefined)) throw oneChange();
      const volume =
        enforce === undefined
          ? await engine.volumes.label(id, labels ?? {}, expected, call)
          : await engine.volumes.enforce(id, enforce, expected, call);
      return ok(json(engine, volume), tagged(volume));
    },
  }),
  route({
    method: 'DELETE',
    path: '/v1/volumes/{volume}',
    id: 'deleteVolume',
    operation: 'volume.delete',
    tag,
    summary: "Delete a volume; its data are destroyed, kept in the trash or left, as the store's onDelete says",
    role: 'user',
    params,
    conditional: true,
    success: { status: 200, description: 'What became of it', schema: schemas.deletion },
    handle: async ({ engine, principal, params: p, expected, call }) => {
      const { id } = await allowed(engine, principal, p.volume, call);
      const { outcome, expiresAt } = await engine.deletions.delete(id, expected, call);
      return ok({ outcome, expiresAt: expiresAt === undefined ? null : time(expiresAt) });
    },
  }),
  route({
    method: 'DELETE',
    path: '/v1/volumes/{volume}/uses/{host}',
    id: 'releaseVolume',
    operation: 'volume.release',
    tag,
    summary: 'Break the record of a host that uses a volume, or may write to it, and is gone for good',
    role: 'admin',
    params: useParams,
    success: { status: 204, description: 'That host has no record of using it any more' },
    handle: async ({ engine, principal, params: p, call }) => {
      const { id } = await allowed(engine, principal, p.volume, call);
      await engine.uses.release(id, p.host, call);
      return nothing;
    },
  }),
  route({
    method: 'POST',
    path: '/v1/volumes/{volume}/mount',
    id: 'mountVolume',
    operation: 'volume.mount',
    tag: 'mounts',
    summary: "Mount a volume at a path of the server's machine",
    role: 'admin',
    params,
    body: schemas.mounting,
    success: { status: 200, description: 'The mount', schema: schemas.mount },
    handle: async ({ engine, principal, params: p, body, call }) => {
      const volume = await allowed(engine, principal, p.volume, call);
      const mount = await engine.mounts.publish(
        volume.id,
        body.target,
        { readOnly: body.readOnly ?? false, user: undefined },
        call,
      );
      return ok(mountJson(mount, volume));
    },
  }),
  route({
    method: 'POST',
    path: '/v1/volumes/{volume}/unmount',
    id: 'unmountVolume',
    operation: 'volume.unmount',
    tag: 'mounts',
    summary: 'Unmount a volume from a path',
    role: 'admin',
    params,
    body: schemas.unmounting,
    success: { status: 204, description: 'It is unmounted' },
    handle: async ({ engine, principal, params: p, body, call }) => {
      const { id } = await allowed(engine, principal, p.volume, call).catch((thrown: unknown) => {
        // Off record, since its store lies elsewhere now; what is still mounted of it can be unmounted.
        const isGone = stowageError(thrown).reason === 'volume-unknown';
        const { volume } = p;
        if (isGone && isEverywhere(principal) && isVolumeId(volume)) return { id: volume };
        throw thrown;
      });
      await engine.mounts.unpublish(body.target, id, call, { force: body.force ?? false });
      return nothing;
    },
  }),
];
