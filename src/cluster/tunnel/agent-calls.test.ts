import { expect, test } from 'vitest';
import { allRoutes } from '#testing/routes.ts';
import { agentCalls, findAgentCall } from './agent-calls.ts';

const concretePath = (path: string): string => path.replaceAll(/\{\w+\}/g, encodeURIComponent("disks/a ..é!~*'()_"));

test('agents accept every request that the controller forwards', () => {
  const forwardedRoutes = allRoutes.filter(({ onNodes }) => onNodes === true);
  expect(forwardedRoutes.length).toBeGreaterThan(5);
  for (const { method, path } of forwardedRoutes)
    expect(findAgentCall(method, concretePath(path))).toMatchObject({ method, path });
});

test('every call that agents accept is a route of the API', () => {
  const routes = allRoutes.map(({ method, path }) => `${method} ${path}`);
  for (const { method, path } of agentCalls) {
    expect(routes).toContain(`${method} ${path}`);
    expect(findAgentCall(method, concretePath(path))).toMatchObject({ method, path });
  }
});

test('agents refuse all other routes of the API', () => {
  const refusedRoutes = allRoutes.filter(({ method, path }) => findAgentCall(method, concretePath(path)) === undefined);
  expect(refusedRoutes.map(({ id }) => id).sort()).toEqual([
    'addStore',
    'adoptStore',
    'cancelOperation',
    'createToken',
    'getOperation',
    'listOperations',
    'listOrphans',
    'listTokens',
    'listTrash',
    'mountVolume',
    'purgeVolume',
    'releaseVolume',
    'removeStore',
    'restoreVolume',
    'revokeToken',
    'setDefaultStore',
    'unmountVolume',
    'upgradeDataPaths',
  ]);
});
