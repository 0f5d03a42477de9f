import { Type } from 'typebox';
import { StowageError } from '#core/errors.ts';
import type { Volume } from '#core/model.ts';
import { time, unreachedJson, usageJson, volumeDetailJson } from '../json.ts';
import { requireDefaultStore, requireRole, requireStore } from '../principal.ts';
import { redactedInspection } from '../redaction.ts';
import { created, nothing, ok, type Route, route } from '../route.ts';
import * as bodies from '../schema-bodies.ts';
import * as schemas from '../schemas.ts';
import { params, resolvePermitted, storeEnforcesSize, volumeToJson } from './volume-refs.ts';

const tag = 'volumes';
const useParams = Type.Object(
  { ...params.properties, host: Type.String({ minLength: 1, maxLength: 128, description: 'The id of the host' }) },
  { additionalProperties: false },
);
const etagOf = (volume: Volume): Record<string, string> => ({ etag: `"${volume.revision}"` });

/** Labels and enforcement are separate operations, and one can fail without the other. */
const oneChange = (): StowageError =>
  new StowageError('a request can change either the labels or the enforcement', {
    code: 'invalid',
    reason: 'request-invalid',
    action: 'Send `labels` and `enforce` in separate requests.',
  });

export const volumeRoutes: readonly Route[] = [
  route({
    method: 'POST',
    path: '/v1/volumes',
    id: 'createVolume',
    operation: 'volume.create',
    tag,
    summary: 'Create a volume',
    role: 'user',
    scope: 'store',
    effect: 'changes volumes',
    access: { resource: 'volumes', verb: 'create' },
    body: bodies.newVolume,
    success: { status: 201, description: 'The volume', schema: schemas.createdVolume },
    handle: async ({ core, principal, body, call }) => {
      const store = body.store ?? core.stores.defaultName;
      if (body.store === undefined) requireDefaultStore(principal, store);
      else requireStore(principal, body.store);
      if (body.ownLabels !== undefined) requireRole(principal, 'admin');
      const want = {
        store,
        name: body.name,
        bytes: body.bytes === undefined ? undefined : BigInt(body.bytes),
        enforce: body.enforce,
        access: body.access,
        labels: body.labels ?? {},
        ownLabels: body.ownLabels,
      };
      const { volume, storeIdentity } = await core.volumes.createWithStoreIdentity(want, call);
      const createdVolume = { ...volumeToJson(core, volume), storeIdentity: storeIdentity ?? null };
      return created(createdVolume, { ...etagOf(volume), location: `/v1/volumes/${volume.id}` });
    },
  }),
  route({
    method: 'GET',
    path: '/v1/volumes/{volume}',
    id: 'getVolume',
    tag,
    summary: 'Show a volume, its condition, its users, and the hosts that use it',
    role: 'viewer',
    scope: 'store',
    effect: 'reads',
    access: { resource: 'volumes', verb: 'get' },
    onNodes: true,
    params,
    success: { status: 200, description: 'The volume', schema: schemas.volumeDetail },
    handle: async ({ core, principal, params: p, nodes, call }) => {
      const volume = await resolvePermitted(core, principal, p.volume, call);
      const [found, mounts, uses, onNodes] = await Promise.all([
        core.volumes.inspect(volume.id, call),
        core.mounts.ofVolume(volume.id, call),
        core.uses.list(volume, call),
        nodes?.mountsOf(volume.id, call),
      ]);
      const redacted = redactedInspection(principal, found);
      const detail = volumeDetailJson(redacted, storeEnforcesSize(core, volume.store), mounts, uses);
      const nodeMounts = onNodes && { ...onNodes, unreached: unreachedJson(principal, onNodes.unreached) };
      return ok({ ...detail, ...nodeMounts }, etagOf(found.volume));
    },
  }),
  route({
    method: 'GET',
    path: '/v1/volumes/{volume}/usage',
    id: 'getVolumeUsage',
    tag,
    summary: 'Measure the usage of a volume',
    role: 'viewer',
    scope: 'store',
    effect: 'reads',
    access: { resource: 'volumes', verb: 'get' },
    onNodes: true,
    params,
    success: { status: 200, description: 'The usage', schema: schemas.usage },
    handle: async ({ core, principal, params: p, call }) => {
      const { id } = await resolvePermitted(core, principal, p.volume, call);
      return ok(usageJson(await core.volumes.usage(id, call)));
    },
  }),
  route({
    method: 'POST',
    path: '/v1/volumes/{volume}/expand',
    id: 'expandVolume',
    operation: 'volume.expand',
    tag,
    summary: 'Expand a volume, even while it is mounted',
    role: 'user',
    scope: 'store',
    effect: 'changes volumes',
    access: { resource: 'volumes', verb: 'update' },
    onNodes: true,
    params,
    body: bodies.expansion,
    conditional: true,
    success: { status: 200, description: 'The volume', schema: schemas.volume },
    handle: async ({ core, principal, params: p, body, expected, call }) => {
      const { id } = await resolvePermitted(core, principal, p.volume, call);
      const volume = await core.volumes.expand(id, BigInt(body.bytes), expected, call);
      return ok(volumeToJson(core, volume), etagOf(volume));
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
    scope: 'store',
    effect: 'changes volumes',
    access: { resource: 'volumes', verb: 'update' },
    onNodes: true,
    params,
    body: bodies.renaming,
    conditional: true,
    success: { status: 200, description: 'The volume', schema: schemas.volume },
    handle: async ({ core, principal, params: p, body, expected, call }) => {
      const { id } = await resolvePermitted(core, principal, p.volume, call);
      const volume = await core.volumes.rename(id, body.name, expected, call);
      return ok(volumeToJson(core, volume), etagOf(volume));
    },
  }),
  route({
    method: 'PATCH',
    path: '/v1/volumes/{volume}',
    id: 'labelVolume',
    operation: ['volume.label', 'volume.enforce'],
    tag,
    summary: 'Change the labels or enforce the size (only one per request)',
    role: 'user',
    scope: 'store',
    effect: 'changes volumes',
    access: { resource: 'volumes', verb: 'patch' },
    onNodes: true,
    params,
    body: bodies.volumeChange,
    conditional: true,
    success: { status: 200, description: 'The volume', schema: schemas.volume },
    handle: async ({ core, principal, params: p, body, expected, call }) => {
      const { labels, ownLabels, enforce } = body;
      // Check this before the lookup: a node-local volume's request is sent on to its node, which runs it as administrator.
      if (ownLabels !== undefined) requireRole(principal, 'admin');
      const { id } = await resolvePermitted(core, principal, p.volume, call);
      if ((labels === undefined && ownLabels === undefined) === (enforce === undefined)) throw oneChange();
      const volume =
        enforce === undefined
          ? await core.volumes.label(id, labels ?? {}, expected, call, ownLabels)
          : await core.volumes.enforce(id, enforce, expected, call);
      return ok(volumeToJson(core, volume), etagOf(volume));
    },
  }),
  route({
    method: 'DELETE',
    path: '/v1/volumes/{volume}',
    id: 'deleteVolume',
    operation: 'volume.delete',
    tag,
    summary:
      "Delete a volume; the store's onDelete policy decides whether its data is deleted, moved to the trash or retained",
    role: 'user',
    scope: 'store',
    effect: 'destroys data',
    access: { resource: 'volumes', verb: 'delete' },
    onNodes: true,
    params,
    conditional: true,
    success: { status: 200, description: 'The outcome', schema: schemas.deletion },
    handle: async ({ core, principal, params: p, expected, call }) => {
      const { id } = await resolvePermitted(core, principal, p.volume, call);
      const { outcome, expiresAt } = await core.deletions.delete(id, expected, call);
      return ok({ outcome, expiresAt: expiresAt === undefined ? null : time(expiresAt) });
    },
  }),
  route({
    method: 'DELETE',
    path: '/v1/volumes/{volume}/empty',
    id: 'discardVolume',
    operation: 'volume.delete',
    tag,
    summary: "Delete a volume only if it is certainly empty, regardless of the store's onDelete policy",
    role: 'user',
    scope: 'store',
    effect: 'changes volumes',
    access: { resource: 'volumes', verb: 'delete' },
    onNodes: true,
    params,
    success: { status: 204, description: 'The volume is gone' },
    handle: async ({ core, principal, params: p, call }) => {
      const { id } = await resolvePermitted(core, principal, p.volume, call);
      await core.deletions.delete(id, undefined, call, { discard: true });
      return nothing;
    },
  }),
  route({
    method: 'DELETE',
    path: '/v1/volumes/{volume}/uses/{host}',
    id: 'releaseVolume',
    operation: 'volume.release',
    tag,
    summary: 'Break the use record and the writer record of a host that is permanently gone',
    role: 'admin',
    scope: 'store',
    effect: 'changes volumes',
    access: { resource: 'volumes/uses', verb: 'delete' },
    params: useParams,
    success: { status: 204, description: 'The host no longer has a use record of the volume' },
    handle: async ({ core, principal, params: p, call }) => {
      const { id } = await resolvePermitted(core, principal, p.volume, call);
      await core.uses.release(id, p.host, call);
      return nothing;
    },
  }),
];
