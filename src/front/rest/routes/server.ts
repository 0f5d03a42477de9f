import { Type } from 'typebox';
import type { Core } from '#core/core.ts';
import { StowageError } from '#core/errors.ts';
import type { OperationId } from '#core/model.ts';
import { quoted } from '#core/names.ts';
import type { OperationView } from '#core/operations.ts';
import type { Right } from '../access.ts';
import { nodeListJson, operationJson, tokenJson } from '../json.ts';
import { isForAllStores, maySee, type Principal } from '../principal.ts';
import { created, nothing, ok, type Route, route } from '../route.ts';
import * as bodies from '../schema-bodies.ts';
import * as schemas from '../schemas.ts';
import { mountRoutes, nodesQuery } from './mounts.ts';
import { storeRoutes } from './stores.ts';
import { volumeRoutes } from './volumes.ts';

/** What the routes need from the program beside core. */
export interface ServerBackend {
  status(principal: Principal): Promise<schemas.StatusJson>;
  doctor(signal: AbortSignal): Promise<readonly schemas.FindingJson[]>;
  /** The processes that serve mounts of network stores. */
  readonly dataPaths: {
    list(signal: AbortSignal): Promise<readonly schemas.DataPathJson[]>;
    upgrade(signal: AbortSignal): Promise<readonly schemas.DataPathJson[]>;
  };
  /** The answer of a request that was answered with 202, once it is known. */
  resultOf(operation: OperationId): unknown;
}

/** In a cluster, Stowage's own tokens are not used. */
const kubernetesRbac = 'Use service accounts and RBAC rules for the API group stowage.dev.';

const idParams = Type.Object({ id: Type.String({ minLength: 1, maxLength: 64 }) }, { additionalProperties: false });
const operationQuery = Type.Object(
  {
    after: Type.Optional(Type.String({ pattern: '^[0-9]{1,15}$', description: 'The `next` of the previous page' })),
    limit: Type.Optional(Type.Integer({ minimum: 1, maximum: 1000 })),
  },
  { additionalProperties: false },
);

/** Cancelling an operation needs the right to start one of that kind. */
const rightToStart = new Map<string, Right>(
  [...volumeRoutes, ...mountRoutes, ...storeRoutes].flatMap((route) =>
    [route.operation ?? []].flat().map((kind) => [kind, route] as const),
  ),
);
const rightToStartOther: Right = {
  role: 'admin',
  scope: 'server',
  effect: 'changes volumes',
  access: { resource: 'operations', verb: 'update' },
};

function operationOf(core: Core, principal: Principal, id: string): OperationView {
  const view = core.operations.get(id as OperationId);
  if (view !== undefined && maySee(principal, view.operation.store)) return view;
  throw new StowageError(`operation ${quoted(id)} not found`, {
    code: 'not-found',
    reason: 'operation-unknown',
    action: 'Stowage keeps ended operations only for a while. List them: stowage operations',
  });
}

const machineRoutes = (backend: ServerBackend): readonly Route[] => [
  route({
    method: 'GET',
    path: '/v1/status',
    id: 'getStatus',
    tag: 'server',
    summary: 'Show the status of the server',
    role: 'viewer',
    scope: 'visible',
    effect: 'reads',
    access: { resource: 'status', verb: 'get' },
    success: { status: 200, description: 'The status', schema: schemas.status },
    handle: async ({ principal }) => ok(await backend.status(principal)),
  }),
  route({
    method: 'GET',
    path: '/v1/doctor',
    id: 'examine',
    tag: 'server',
    summary: 'Check the features of this host, and how to add missing ones',
    role: 'admin',
    scope: 'server',
    effect: 'reads',
    access: { resource: 'doctor', verb: 'get' },
    query: nodesQuery,
    success: { status: 200, description: 'The findings', schema: schemas.listOverNodes(schemas.finding) },
    handle: async ({ principal, query, nodes, call }) => {
      if (nodes !== undefined)
        return ok(nodeListJson(principal, await nodes.list<schemas.FindingJson>('/v1/doctor', query.after, call)));
      return ok({ items: await backend.doctor(call.signal), next: null });
    },
  }),
  route({
    method: 'GET',
    path: '/v1/client',
    id: 'listDataPaths',
    tag: 'server',
    summary: 'List the processes that serve the mounts of network stores',
    role: 'admin',
    scope: 'server',
    effect: 'reads',
    access: { resource: 'clients', verb: 'list' },
    query: nodesQuery,
    success: {
      status: 200,
      description: 'One entry for each network',
      schema: schemas.listOverNodes(schemas.dataPath),
    },
    handle: async ({ principal, query, nodes, call }) => {
      if (nodes !== undefined)
        return ok(nodeListJson(principal, await nodes.list<schemas.DataPathJson>('/v1/client', query.after, call)));
      return ok({ items: await backend.dataPaths.list(call.signal), next: null });
    },
  }),
  route({
    method: 'POST',
    path: '/v1/client/upgrade',
    id: 'upgradeDataPaths',
    tag: 'server',
    summary: 'Replace these processes with processes of this version while mounts are in use',
    role: 'admin',
    scope: 'server',
    effect: 'acts on the machine',
    access: { instead: 'Restart the DaemonSet of the keepers, which replaces them one by one.' },
    deadlineMs: 120_000,
    success: { status: 200, description: 'The new processes', schema: schemas.listOf(schemas.dataPath) },
    handle: async ({ call }) => {
      return ok({ items: await backend.dataPaths.upgrade(call.signal), next: null });
    },
  }),
];

const operationRoutes = (backend: ServerBackend): readonly Route[] => [
  route({
    method: 'GET',
    path: '/v1/operations',
    id: 'listOperations',
    tag: 'operations',
    summary: 'List running and recent operations, newest first',
    role: 'viewer',
    scope: 'visible',
    effect: 'reads',
    access: { resource: 'operations', verb: 'list' },
    query: operationQuery,
    success: { status: 200, description: 'A page of operations', schema: schemas.listOf(schemas.operation) },
    handle: ({ core, principal, query }) => {
      const { items, next } = core.operations.page({
        stores: isForAllStores(principal) ? undefined : principal.stores,
        after: query.after === undefined ? undefined : Number(query.after),
        limit: query.limit ?? 50,
      });
      return ok({
        items: items.map((view) => operationJson(view, backend.resultOf(view.operation.id), principal)),
        next: next === undefined ? null : String(next),
      });
    },
  }),
  route({
    method: 'GET',
    path: '/v1/operations/{id}',
    id: 'getOperation',
    tag: 'operations',
    summary: 'Show an operation, its progress and its result',
    role: 'viewer',
    scope: 'store',
    effect: 'reads',
    access: { resource: 'operations', verb: 'get' },
    params: idParams,
    success: { status: 200, description: 'The operation', schema: schemas.operation },
    handle: ({ core, principal, params }) =>
      ok(operationJson(operationOf(core, principal, params.id), backend.resultOf(params.id as OperationId), principal)),
  }),
  route({
    method: 'POST',
    path: '/v1/operations/{id}/cancel',
    id: 'cancelOperation',
    tag: 'operations',
    summary:
      'Cancel an operation; requires the right to start an operation of this kind. Partial work is rolled back or can be repeated',
    role: 'user',
    scope: 'store',
    effect: 'changes volumes',
    access: { resource: 'operations', verb: 'update' },
    params: idParams,
    success: { status: 200, description: 'The operation, which ends soon', schema: schemas.operation },
    handle: async ({ core, principal, params, permit }) => {
      const view = operationOf(core, principal, params.id);
      await permit(rightToStart.get(view.operation.kind) ?? rightToStartOther);
      core.operations.cancel(view.operation.id);
      return ok(operationJson(view, backend.resultOf(view.operation.id), principal));
    },
  }),
];

const tokenRoutes: readonly Route[] = [
  route({
    method: 'GET',
    path: '/v1/tokens',
    id: 'listTokens',
    tag: 'tokens',
    summary: 'List tokens, without their secrets',
    role: 'admin',
    scope: 'server',
    effect: 'reads',
    access: { instead: kubernetesRbac },
    success: { status: 200, description: 'The tokens', schema: schemas.listOf(schemas.token) },
    handle: ({ core }) => {
      return ok({ items: core.tokens.list().map(tokenJson), next: null });
    },
  }),
  route({
    method: 'POST',
    path: '/v1/tokens',
    id: 'createToken',
    tag: 'tokens',
    summary:
      'Create a token; only this response contains its secret, so a repeated Idempotency-Key creates a new token',
    role: 'admin',
    scope: 'server',
    effect: 'changes the server',
    access: { instead: kubernetesRbac },
    body: bodies.newToken,
    secret: true,
    success: { status: 201, description: 'The token', schema: schemas.createdToken },
    handle: ({ core, body, call }) => {
      for (const store of body.stores ?? []) core.stores.view(store);
      const { name, role, stores = [], expiresIn } = body;
      const { token, secret } = core.tokens.create({ name, role, stores, expiresIn }, call.requestId);
      return created({ ...tokenJson(token), secret });
    },
  }),
  route({
    method: 'DELETE',
    path: '/v1/tokens/{id}',
    id: 'revokeToken',
    tag: 'tokens',
    summary: 'Revoke a token immediately',
    role: 'admin',
    scope: 'server',
    effect: 'changes the server',
    access: { instead: kubernetesRbac },
    params: idParams,
    success: { status: 204, description: 'The token is revoked' },
    handle: ({ core, params }) => {
      core.tokens.revoke(params.id);
      return nothing;
    },
  }),
];

export const serverRoutes = (backend: ServerBackend): readonly Route[] => [
  ...machineRoutes(backend),
  ...operationRoutes(backend),
  ...tokenRoutes,
];
