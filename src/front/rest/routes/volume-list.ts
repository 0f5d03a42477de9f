import { type Static, Type } from 'typebox';
import type { Engine } from '#core/engine.ts';
import { stowageError } from '#core/errors.ts';
import type { Labels } from '#core/model.ts';
import type { Call } from '#core/operations.ts';
import { isShared } from '#core/placement.ts';
import { type Place, placeFrom, type VolumePage, volumesOfNodes } from '../node-lists.ts';
import { type Principal, requireStore, visibleStores } from '../principal.ts';
import { ok, type Route, route } from '../route.ts';
import { oneOf } from '../schema-parts.ts';
import * as schemas from '../schemas.ts';
import { json } from './volume-refs.ts';

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
        description: 'The `next` of the page before',
      }),
    ),
    limit: Type.Optional(Type.Integer({ minimum: 1, maximum: 1000 })),
  },
  { additionalProperties: false },
);
type Query = Static<typeof query>;

function labelsFrom(pairs: readonly string[]): Labels {
  return Object.fromEntries(pairs.map((pair) => [pair.slice(0, pair.indexOf('=')), pair.slice(pair.indexOf('=') + 1)]));
}

/** Those of one store, or of all that can be reached from there. */
function storesIn(engine: Engine, principal: Principal, { store, reach }: Query): readonly string[] {
  const wanted = store === undefined ? visibleStores(engine, principal) : [store];
  return reach === undefined
    ? wanted
    : wanted.filter((name) => isShared(engine.stores.view(name).placement) === (reach === 'anywhere'));
}

interface Wanted {
  readonly query: Query;
  readonly after: Place | undefined;
  readonly limit: number;
}

async function ownPage(
  engine: Engine,
  principal: Principal,
  { query: q, after, limit }: Wanted,
  call: Call,
): Promise<VolumePage> {
  const { volumes: found, unanswered } = await engine.catalogue.page(
    {
      stores: storesIn(engine, principal, q),
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
    items: items.map((volume) => json(engine, volume)),
    next: found.length > limit && last ? `${last.store}/${last.name}` : null,
    unanswered: [...unanswered],
  };
}

const nothingHere: VolumePage = { items: [], next: null, unanswered: [] };

export const volumeListRoutes: readonly Route[] = [
  route({
    method: 'GET',
    path: '/v1/volumes',
    id: 'listVolumes',
    tag: 'volumes',
    summary: 'List volumes, by store and name; in a cluster then those that nodes have for themselves, by node',
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
        'Stores that cannot be used now (silent, not open, or access denied): their volumes are listed as they were last seen',
      ),
    },
    handle: async ({ engine, principal, query: q, nodes, call }) => {
      const limit = q.limit ?? 100;
      if (q.store !== undefined) requireStore(principal, q.store);
      const after = placeFrom(q.after);
      const wanted = { query: q, after, limit };
      if (nodes === undefined) return ok(await ownPage(engine, principal, wanted, call));
      const own =
        after?.node === undefined
          ? await ownPage(engine, principal, wanted, call).catch((thrown: unknown) => {
              // Then it is one that nodes have, or none.
              if (q.store !== undefined && stowageError(thrown).reason === 'store-unknown') return undefined;
              throw thrown;
            })
          : nothingHere;
      const isShared = after?.node === undefined && own !== undefined && q.store !== undefined;
      if (isShared || q.reach === 'anywhere' || (own !== undefined && own.next !== null)) return ok(own ?? nothingHere);
      const before = own ?? nothingHere;
      const room = limit - before.items.length;
      // The next page begins with the nodes.
      if (room <= 0) return ok({ ...before, next: '*/*/ ' });
      const rest = { filter: q, after: after?.node === undefined ? undefined : after, limit: room };
      const theirs = await volumesOfNodes(nodes, rest, { principal, call });
      if (own === undefined && theirs.isNowhere) engine.stores.view(q.store ?? '');
      const { items, next, unanswered, unreached } = theirs;
      return ok({
        ...{ items: [...before.items, ...items], next, unanswered: [...before.unanswered, ...unanswered] },
        unreached: [...unreached],
      });
    },
  }),
];
