import { Type } from 'typebox';
import { stowageError } from '#core/errors.ts';
import { isVolumeId } from '#core/names.ts';
import { mountJson, nodeListJson, troubleJson } from '../json.ts';
import { maySee } from '../principal.ts';
import { nothing, ok, type Route, route } from '../route.ts';
import * as bodies from '../schema-bodies.ts';
import * as schemas from '../schemas.ts';
import { params, resolvePermitted } from './volume-refs.ts';

const tag = 'mounts';
const podsMount = 'In a cluster, pods mount volumes through PersistentVolumeClaims.';

const afterNode = Type.Optional(
  Type.String({ minLength: 1, maxLength: 253, description: 'The `next` of the previous page' }),
);
export const nodesQuery = Type.Object({ after: afterNode }, { additionalProperties: false });
const query = Type.Object(
  {
    volume: Type.Optional(
      Type.String({ minLength: 1, maxLength: 64, description: 'Only mounts of the volume with this id' }),
    ),
    after: afterNode,
  },
  { additionalProperties: false },
);

export const mountRoutes: readonly Route[] = [
  route({
    method: 'POST',
    path: '/v1/volumes/{volume}/mount',
    id: 'mountVolume',
    operation: 'volume.mount',
    tag,
    summary: "Mount a volume at a path on the server's host",
    role: 'admin',
    scope: 'server',
    effect: 'acts on the machine',
    access: { instead: podsMount },
    params,
    body: bodies.mounting,
    success: { status: 200, description: 'The mount', schema: schemas.mount },
    handle: async ({ core, principal, params: p, body, call }) => {
      const volume = await resolvePermitted(core, principal, p.volume, call);
      const mount = await core.mounts.publish(
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
    tag,
    summary: 'Unmount a volume from a path',
    role: 'admin',
    scope: 'server',
    effect: 'acts on the machine',
    access: { instead: podsMount },
    params,
    body: bodies.unmounting,
    success: { status: 204, description: 'The volume is unmounted' },
    handle: async ({ core, principal, params: p, body, call }) => {
      const { id } = await resolvePermitted(core, principal, p.volume, call).catch((thrown: unknown) => {
        // The volume may be off record because its store has moved. Its remaining mounts can still be unmounted.
        const isGone = stowageError(thrown).reason === 'volume-unknown';
        const { volume } = p;
        if (isGone && isVolumeId(volume)) return { id: volume };
        throw thrown;
      });
      await core.mounts.unpublish(body.target, id, call, { force: body.force ?? false });
      return nothing;
    },
  }),
  route({
    method: 'GET',
    path: '/v1/mounts',
    id: 'listMounts',
    tag,
    summary: 'List mounts with their volumes and users',
    role: 'viewer',
    scope: 'visible',
    effect: 'reads',
    access: { resource: 'mounts', verb: 'list' },
    query,
    success: {
      status: 200,
      description: 'The mounts of this node; in a cluster, the mounts of all nodes, page by page',
      schema: schemas.listOverNodes(schemas.mount),
    },
    handle: async ({ core, principal, query: q, nodes, call }) => {
      const only = q.volume;
      if (nodes !== undefined) {
        const path = `/v1/mounts${only === undefined ? '' : `?volume=${encodeURIComponent(only)}`}`;
        return ok(nodeListJson(principal, await nodes.list<schemas.MountJson>(path, q.after, call)));
      }
      const mounts = (await core.mounts.list(call))
        .filter(({ volumeId }) => only === undefined || volumeId === only)
        .map((mount) => ({ mount, volume: core.catalogue.findRecorded(mount.volumeId) }));
      const seen = mounts.filter(({ volume }) => maySee(principal, volume?.store));
      return ok({ items: seen.map(({ mount, volume }) => mountJson(mount, volume)), next: null });
    },
  }),
  route({
    method: 'GET',
    path: '/v1/troubles',
    id: 'listTroubles',
    tag,
    summary: 'List mounts that have a problem, and mounts that were repaired by remounting',
    role: 'viewer',
    scope: 'visible',
    effect: 'reads',
    access: { resource: 'mounts', verb: 'list' },
    query: nodesQuery,
    success: {
      status: 200,
      description: 'The mounts; none if all are healthy',
      schema: schemas.listOverNodes(schemas.trouble),
    },
    handle: async ({ core, principal, query: q, nodes, call }) => {
      if (nodes !== undefined)
        return ok(nodeListJson(principal, await nodes.list<schemas.TroubleJson>('/v1/troubles', q.after, call)));
      const troubled = (await core.mountHealth(call))
        .filter(({ health }) => health.state !== 'ok' || health.repairedAt !== undefined)
        .map((mount) => ({ mount, volume: core.catalogue.findRecorded(mount.volumeId) }));
      const seen = troubled.filter(({ volume }) => maySee(principal, volume?.store));
      return ok({ items: seen.map(({ mount, volume }) => troubleJson(mount, volume)), next: null });
    },
  }),
];
