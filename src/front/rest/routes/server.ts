import { Type } from 'typebox';
import type { Engine } from '#core/engine.ts';
import { StowageError } from '#core/errors.ts';
import type { OperationId } from '#core/model.ts';
import { quoted } from '#core/names.ts';
import type { OperationView } from '#core/operations.ts';
import { mountJson, operationJson, tokenJson } from '../json.ts';
import { maySee, type Principal, requireEverywhere } from '../principal.ts';
import { created, nothing, ok, type Route, route } from '../route.ts';
import * as schemas from '../schemas.ts';

/** What only the program around the API knows. */
export interface Surroundings {
  status(): Promise<schemas.StatusJson>;
  doctor(signal: AbortSignal): Promise<readonly schemas.FindingJson[]>;
  /** What an operation that was answered with 202 would have answered. */
  resultOf(operation: OperationId): unknown;
}

const idParams = Type.Object({ id: Type.String({ minLength: 1, maxLength: 64 }) }, { additionalProperties: false });
const operationQuery = Type.Object(
  { limit: Type.Optional(Type.Integer({ minimum: 1, maximum: 1000 })) },
  { additionalProperties: false },
);

function visible(principal: Principal, view: OperationView): boolean {
  const { store } = view.operation;
  return store === undefined ? principal.stores.length === 0 : maySee(principal, store);
}

function operationOf(engine: Engine, principal: Principal, id: string): OperationView {
  const view = engine.operations.get(id as OperationId);
  if (view !== undefined && visible(principal, view)) return view;
  throw new StowageError(`there is no operation ${quoted(id)}`, {
    code: 'not-found',
    reason: 'operation-unknown',
    action: 'Ended operations are kept for a while only; see: stowage operations',
  });
}

const machineRoutes = (around: Surroundings): readonly Route[] => [
  route({
    method: 'GET',
    path: '/v1/status',
    id: 'getStatus',
    tag: 'server',
    summary: 'What runs, where, and how much of it',
    role: 'viewer',
    success: { status: 200, description: 'The status', schema: schemas.status },
    handle: async () => ok(await around.status()),
  }),
  route({
    method: 'GET',
    path: '/v1/doctor',
    id: 'examine',
    tag: 'server',
    summary: 'What this machine offers, and how to get what is missing',
    role: 'admin',
    success: { status: 200, description: 'The findings', schema: schemas.listOf(schemas.finding) },
    handle: async ({ principal, call }) => {
      requireEverywhere(principal);
      return ok({ items: await around.doctor(call.signal), next: null });
    },
  }),
  route({
    method: 'GET',
    path: '/v1/mounts',
    id: 'listMounts',
    tag: 'mounts',
    summary: 'What is mounted where, for whom',
    role: 'viewer',
    success: { status: 200, description: 'The mounts of this node', schema: schemas.listOf(schemas.mount) },
    handle: async ({ engine, principal, call }) => {
      const mounts = (await engine.mounts.list(call)).map((mount) => ({
        mount,
        volume: engine.records.volumes.byId(mount.volumeId),
      }));
      const seen = mounts.filter(({ volume }) =>
        volume === undefined ? principal.stores.length === 0 : maySee(principal, volume.store),
      );
      return ok({ items: seen.map(({ mount, volume }) => mountJson(mount, volume)), next: null });
    },
  }),
];

const operationRoutes = (around: Surroundings): readonly Route[] => [
  route({
    method: 'GET',
    path: '/v1/operations',
    id: 'listOperations',
    tag: 'operations',
    summary: 'What is being done, and what was done lately, newest first',
    role: 'viewer',
    query: operationQuery,
    success: { status: 200, description: 'The operations', schema: schemas.listOf(schemas.operation) },
    handle: ({ engine, principal, query }) => {
      const views = engine.operations.list(query.limit ?? 50).filter((view) => visible(principal, view));
      return ok({ items: views.map((view) => operationJson(view, around.resultOf(view.operation.id))), next: null });
    },
  }),
  route({
    method: 'GET',
    path: '/v1/operations/{id}',
    id: 'getOperation',
    tag: 'operations',
    summary: 'Show an operation, its progress and its result',
    role: 'viewer',
    params: idParams,
    success: { status: 200, description: 'The operation', schema: schemas.operation },
    handle: ({ engine, principal, params }) =>
      ok(operationJson(operationOf(engine, principal, params.id), around.resultOf(params.id as OperationId))),
  }),
  route({
    method: 'POST',
    path: '/v1/operations/{id}/cancel',
    id: 'cancelOperation',
    tag: 'operations',
    summary: 'Stop an operation; what it had done is undone or can be repeated',
    role: 'user',
    params: idParams,
    success: { status: 200, description: 'The operation, which ends soon', schema: schemas.operation },
    handle: ({ engine, principal, params }) => {
      const view = operationOf(engine, principal, params.id);
      engine.operations.cancel(view.operation.id);
      return ok(operationJson(view, around.resultOf(view.operation.id)));
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
    success: { status: 200, description: 'The tokens', schema: schemas.listOf(schemas.token) },
    handle: ({ engine, principal }) => {
      requireEverywhere(principal);
      return ok({ items: engine.tokens.list().map(tokenJson), next: null });
    },
  }),
  route({
    method: 'POST',
    path: '/v1/tokens',
    id: 'createToken',
    tag: 'tokens',
    summary: 'Create a token; its secret is in this answer and nowhere else',
    role: 'admin',
    body: schemas.newToken,
    secret: true,
    success: { status: 201, description: 'The token', schema: schemas.createdToken },
    handle: ({ engine, principal, body }) => {
      requireEverywhere(principal);
      for (const store of body.stores ?? []) engine.stores.view(store);
      const { token, secret } = engine.tokens.create({
        name: body.name,
        role: body.role,
        stores: body.stores ?? [],
        expiresIn: body.expiresIn,
      });
      return created({ ...tokenJson(token), secret });
    },
  }),
  route({
    method: 'DELETE',
    path: '/v1/tokens/{id}',
    id: 'revokeToken',
    tag: 'tokens',
    summary: 'Revoke a token at once',
    role: 'admin',
    params: idParams,
    success: { status: 204, description: 'It is revoked' },
    handle: ({ engine, principal, params }) => {
      requireEverywhere(principal);
      engine.tokens.revoke(params.id);
      return nothing;
    },
  }),
];

export const serverRoutes = (around: Surroundings): readonly Route[] => [
  ...machineRoutes(around),
  ...operationRoutes(around),
  ...tokenRoutes,
];
