import { type Static, Type } from 'typebox';
import type { Core } from '#core/core.ts';
import type { Labels } from '#core/model.ts';
import type { Call } from '#core/operations.ts';
import { isShared } from '#core/placement.ts';
import type { ClusterVolumePage, VolumePage } from '../cluster-nodes.ts';
import { unreachedJson } from '../json.ts';
import { type Principal, requireStore, visibleStores } from '../principal.ts';
import { ok, type Route, route } from '../route.ts';
import { oneOf } from '../schema-parts.ts';
import * as schemas from '../schemas.ts';
import { cursorFrom, cursorText, type VolumeCursor } from '../volume-cursor.ts';
import { volumeToJson } from './volume-refs.ts';

const query = Type.Object(
  {
    store: Type.Optional(Type.String({ minLength: 1, maxLength: 128 })),
    reach: Type.Optional(oneOf('anywhere', 'node')),
    label: Type.Optional(
      Type.Array(Type.String({ maxLength: 400, pattern: '^[^=]+=' }), { maxItems: 16, description: 'key=value' }),
    ),
    contains: Type.Optional(Type.String({ minLength: 1, maxLength: 128, description: 'Part of the name' })),
    after: Type.Optional(
      Type.String({
        pattern: '^[^/]{1,128}/[^/]{1,128}(?:/[^/]{1,253})?$',
        description: 'The `next` of the previous page',
      }),
    ),
    limit: Type.Optional(Type.Integer({ minimum: 1, maximum: 1000 })),
  },
  { additionalProperties: false },
);
type VolumeListQuery = Static<typeof query>;

function labelsFrom(pairs: readonly string[]): Labels {
  return Object.fromEntries(pairs.map((pair) => [pair.slice(0, pair.indexOf('=')), pair.slice(pair.indexOf('=') + 1)]));
}

/** The stores to list: the named one or all visible ones, filtered by `reach`. */
function storesIn(core: Core, principal: Principal, { store, reach }: VolumeListQuery): readonly string[] {
  const wanted = store === undefined ? visibleStores(core, principal) : [store];
  return reach === undefined
    ? wanted
    : wanted.filter((name) => isShared(core.stores.view(name).placement) === (reach === 'anywhere'));
}

interface ListRequest {
  readonly query: VolumeListQuery;
  readonly after: VolumeCursor | undefined;
  readonly limit: number;
}

async function ownPage(
  core: Core,
  principal: Principal,
  { query: q, after, limit }: ListRequest,
  call: Call,
): Promise<VolumePage> {
  const { volumes: found, unanswered } = await core.catalogue.page(
    {
      stores: storesIn(core, principal, q),
      labels: labelsFrom(q.label ?? []),
      contains: q.contains,
      after: after?.store === undefined ? undefined : { store: after.store, name: after.name },
      limit: limit + 1,
    },
    call,
  );
  const items = found.slice(0, limit);
  const last = items.at(-1);
  return {
    items: items.map((volume) => volumeToJson(core, volume)),
    next: found.length > limit && last ? { node: undefined, store: last.store, name: last.name } : undefined,
    unanswered: [...unanswered],
  };
}

function pageJson(principal: Principal, { items, next, unanswered, unreached }: ClusterVolumePage) {
  const page = { items, next: next === undefined ? null : cursorText(next), unanswered };
  return unreached === undefined ? page : { ...page, unreached: unreachedJson(principal, unreached) };
}

export const volumeListRoutes: readonly Route[] = [
  route({
    method: 'GET',
    path: '/v1/volumes',
    id: 'listVolumes',
    tag: 'volumes',
    summary: 'List volumes by store and name; in a cluster, then the volumes of node-local stores by node',
    role: 'viewer',
    scope: 'visible',
    effect: 'reads',
    access: { resource: 'volumes', verb: 'list' },
    query,
    success: {
      status: 200,
      description: 'A page of volumes',
      schema: schemas.listOverStores(
        schemas.volume,
        'Stores that are unavailable (not answering, not open, or access denied): their volumes are listed as last seen',
      ),
    },
    handle: async ({ core, principal, query: q, nodes, call }) => {
      const limit = q.limit ?? 100;
      if (q.store !== undefined) requireStore(principal, q.store);
      const after = cursorFrom(q.after);
      const own = (): Promise<VolumePage> => ownPage(core, principal, { query: q, after, limit }, call);
      const page: ClusterVolumePage = await (nodes?.volumes({ filter: q, after, limit }, own, call) ?? own());
      return ok(pageJson(principal, page));
    },
  }),
];
