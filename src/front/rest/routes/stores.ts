import { type Static, Type } from 'typebox';
import { adoptDeadlineMs } from '#core/adoption.ts';
import { parsePodPlace } from '#core/check-places.ts';
import type { Core } from '#core/core.ts';
import type { Call } from '#core/operations.ts';
import type { StoreView } from '#core/store-view.ts';
import { checkFromPod, onlyFromPods } from '../check-from-pod.ts';
import { adoptionJson, orphanJson, storeCheckJson, storeJson, trashJson, unreachedJson, volumeJson } from '../json.ts';
import { isAdministrator, maySee, requireStore, visibleStores } from '../principal.ts';
import { redactedAdoption, redactedCheck, redactedOrphan, redactedView } from '../redaction.ts';
import { created, nothing, ok, type Route, route } from '../route.ts';
import * as bodies from '../schema-bodies.ts';
import * as schemas from '../schemas.ts';
import { storeEnforcesSize } from './volume-refs.ts';

const tag = 'stores';
const storesAreObjects = 'In a cluster stores are Store objects: kubectl get stores.stowage.dev';
const params = Type.Object({ store: Type.String({ minLength: 1, maxLength: 128 }) }, { additionalProperties: false });
const trashParams = Type.Object(
  { volume: Type.String({ minLength: 1, maxLength: 64, description: 'Volume id' }) },
  { additionalProperties: false },
);
const trashQuery = Type.Object(
  { store: Type.Optional(Type.String({ minLength: 1, maxLength: 128 })) },
  { additionalProperties: false },
);

const storesWithState = async (core: Core, views: readonly StoreView[], call: Call) => {
  const names = views.map(({ config }) => config.name);
  const { liveness, catalogue } = core;
  const [silent, rooms] = await Promise.all([liveness.findSilent(names, call), liveness.rooms(names, call)]);
  return views.map((view) => {
    const { name } = view.config;
    const totals = catalogue.totals(name);
    const [room, refusal] = [rooms.get(name), liveness.denialOf(name)];
    return storeJson(view, { totals, isSilent: silent.has(name), room, refusal });
  });
};
const storeWithState = async (core: Core, view: StoreView, call: Call) =>
  (await storesWithState(core, [view], call))[0];

export const storeRoutes: readonly Route[] = [
  route({
    method: 'GET',
    path: '/v1/stores',
    id: 'listStores',
    tag,
    summary: 'List stores',
    role: 'viewer',
    scope: 'visible',
    effect: 'reads',
    access: { resource: 'stores', verb: 'list' },
    success: { status: 200, description: 'All stores', schema: schemas.listOverNodes(schemas.store) },
    handle: async ({ core, principal, nodes, call }) => {
      const visible = core.stores.list().filter((view) => maySee(principal, view.config.name));
      const seen = visible.map((view) => redactedView(principal, view));
      const [own, theirs] = await Promise.all([storesWithState(core, seen, call), nodes?.stores(call)]);
      if (theirs === undefined) return ok({ items: own, next: null });
      const items = [...own, ...theirs.stores].toSorted((a, b) => (a.name < b.name ? -1 : 1));
      return ok({ items, next: null, unreached: unreachedJson(principal, theirs.unreached) });
    },
  }),
  route({
    method: 'POST',
    path: '/v1/stores',
    id: 'addStore',
    tag,
    summary: 'Add a store',
    role: 'admin',
    scope: 'server',
    effect: 'acts on the machine',
    access: { instead: storesAreObjects },
    body: bodies.newStore,
    success: { status: 201, description: 'The store', schema: schemas.store },
    handle: async ({ core, body, call }) => {
      await core.stores.add(body.name, body.uri, call);
      if (body.default === true) core.stores.setDefault(body.name);
      const added = await storeWithState(core, core.stores.view(body.name), call);
      return created(added, { location: `/v1/stores/${body.name}` });
    },
  }),
  route({
    method: 'GET',
    path: '/v1/stores/{store}',
    id: 'getStore',
    tag,
    summary: 'Show a store',
    role: 'viewer',
    scope: 'store',
    effect: 'reads',
    access: { resource: 'stores', verb: 'get' },
    params,
    success: { status: 200, description: 'The store', schema: schemas.store },
    handle: async ({ core, principal, params: p, nodes, call }) => {
      requireStore(principal, p.store);
      const isHere = core.stores.list().some(({ config }) => config.name === p.store);
      const theirs = isHere ? undefined : await nodes?.stores(call);
      const found = theirs?.stores.find(({ name }) => name === p.store);
      return ok(found ?? (await storeWithState(core, redactedView(principal, core.stores.view(p.store)), call)));
    },
  }),
  route({
    method: 'DELETE',
    path: '/v1/stores/{store}',
    id: 'removeStore',
    tag,
    summary: 'Remove a store that was added with this API; its volumes are not deleted',
    role: 'admin',
    scope: 'server',
    effect: 'changes the server',
    access: { instead: storesAreObjects },
    params,
    success: { status: 204, description: 'The store is removed' },
    handle: async ({ core, params: p, call }) => {
      await core.stores.remove(p.store, call);
      return nothing;
    },
  }),
  route({
    method: 'POST',
    path: '/v1/stores/{store}/default',
    id: 'setDefaultStore',
    tag,
    summary: 'Make a store the default store',
    role: 'admin',
    scope: 'server',
    effect: 'changes the server',
    access: { instead: 'Create a StorageClass for the store, and make it the default StorageClass.' },
    params,
    success: { status: 200, description: 'The store', schema: schemas.store },
    handle: async ({ core, params: p, call }) => ok(await storeWithState(core, core.stores.setDefault(p.store), call)),
  }),
  route({
    method: 'POST',
    path: '/v1/stores/{store}/check',
    id: 'checkStore',
    tag,
    summary: 'Check that a store is reachable and writable, and how much space is free',
    role: 'user',
    scope: 'store',
    effect: 'reads',
    access: { resource: 'stores/check', verb: 'create' },
    params,
    body: bodies.checking,
    bodyOptional: true,
    // A check with `from` starts containers and enters other network namespaces.
    additionalRight: {
      when: 'with `from`',
      isNeeded: (body) => (body as Static<typeof bodies.checking> | undefined)?.from !== undefined,
      role: 'admin',
      scope: 'server',
      effect: 'acts on the machine',
      access: { resource: 'stores/check', verb: 'update' },
    },
    success: { status: 200, description: 'The result of each step', schema: schemas.storeCheck },
    handle: async ({ core, principal, params: p, body, call, nodes, permit }) => {
      requireStore(principal, p.store);
      const pod = parsePodPlace(body?.from);
      if (pod === undefined && nodes !== undefined && body?.from !== undefined) throw onlyFromPods(body.from);
      // Throws if the store does not exist, before an agent is asked.
      core.stores.view(p.store);
      const found =
        pod === undefined
          ? await core.stores.check(p.store, call, body?.from)
          : await checkFromPod({ nodes, permit, call }, p.store, pod);
      const failed = found.steps.find((step) => !step.ok);
      // The details that the answer hides, for the administrator.
      if (failed !== undefined && !isAdministrator(principal))
        call.log.warn('store check failed', { store: p.store, ...failed });
      return ok(storeCheckJson(p.store, redactedCheck(principal, p.store, found), body?.from));
    },
  }),
  route({
    method: 'POST',
    path: '/v1/stores/{store}/adopt',
    id: 'adoptStore',
    operation: 'store.adopt',
    deadlineMs: adoptDeadlineMs,
    tag,
    summary: 'Rebuild the catalogue from the store, and adopt existing directories as volumes',
    role: 'admin',
    scope: 'store',
    effect: 'changes volumes',
    access: { resource: 'stores/adopt', verb: 'create' },
    params,
    body: bodies.adopting,
    bodyOptional: true,
    success: { status: 200, description: 'The adopted volumes, and the skipped names', schema: schemas.adoption },
    handle: async ({ core, principal, params: p, body, call }) => {
      requireStore(principal, p.store);
      const how = { dryRun: body?.dryRun ?? false, data: body?.directories ?? true, names: body?.names };
      return ok(adoptionJson(redactedAdoption(principal, await core.adoptions.adopt(p.store, how, call))));
    },
  }),
  route({
    method: 'GET',
    path: '/v1/stores/{store}/orphans',
    id: 'listOrphans',
    tag,
    summary: 'List data on the store that belongs to no volume, and incomplete volumes',
    role: 'viewer',
    scope: 'store',
    effect: 'reads',
    access: { resource: 'stores', verb: 'get' },
    params,
    success: { status: 200, description: 'The orphans', schema: schemas.listOf(schemas.orphan) },
    handle: async ({ core, principal, params: p, call }) => {
      requireStore(principal, p.store);
      const found = await core.adoptions.orphans(p.store, call);
      return ok({ items: found.map((orphan) => orphanJson(redactedOrphan(principal, orphan))), next: null });
    },
  }),
  route({
    method: 'GET',
    path: '/v1/trash',
    id: 'listTrash',
    tag: 'trash',
    summary: 'List deleted volumes that can be restored',
    role: 'viewer',
    scope: 'visible',
    effect: 'reads',
    access: { resource: 'trash', verb: 'list' },
    query: trashQuery,
    success: {
      status: 200,
      description: 'The trash, newest first',
      schema: schemas.listOverStores(
        schemas.trashEntry,
        'Stores that are unavailable (not answering, not open, or access denied): their trash is not in the list',
      ),
    },
    handle: async ({ core, principal, query, call }) => {
      if (query.store !== undefined) requireStore(principal, query.store);
      const { entries, unanswered } =
        query.store === undefined
          ? await core.deletions.trash(visibleStores(core, principal), call)
          : { entries: await core.deletions.trashOf(query.store, call), unanswered: [] };
      const items = entries.map((entry) => trashJson(entry, storeEnforcesSize(core, entry.volume.store)));
      return ok({ items, next: null, unanswered: [...unanswered] });
    },
  }),
  route({
    method: 'POST',
    path: '/v1/trash/{volume}/restore',
    id: 'restoreVolume',
    operation: 'volume.restore',
    tag: 'trash',
    summary: 'Restore a deleted volume',
    role: 'user',
    scope: 'store',
    effect: 'changes volumes',
    access: { resource: 'trash', verb: 'update' },
    params: trashParams,
    body: bodies.restoring,
    bodyOptional: true,
    success: { status: 200, description: 'The volume', schema: schemas.volume },
    handle: async ({ core, principal, params: p, body, call }) => {
      const volume = await core.deletions.restore(p.volume, body?.name, (store) => maySee(principal, store), call);
      return ok(volumeJson(volume, storeEnforcesSize(core, volume.store)));
    },
  }),
  route({
    method: 'DELETE',
    path: '/v1/trash/{volume}',
    id: 'purgeVolume',
    operation: 'trash.purge',
    tag: 'trash',
    summary: 'Delete a volume in the trash permanently',
    role: 'admin',
    scope: 'store',
    effect: 'destroys data',
    access: { resource: 'trash', verb: 'delete' },
    params: trashParams,
    success: { status: 204, description: 'The volume is gone' },
    handle: async ({ core, principal, params: p, call }) => {
      await core.deletions.purge(p.volume, (store) => maySee(principal, store), call);
      return nothing;
    },
  }),
];
