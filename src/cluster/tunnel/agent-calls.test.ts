import { expect, test } from 'vitest';
import { allRoutes } from '#testing/routes.ts';
import { agentCalls, findAgentCall } from './agent-calls.ts';

const filled = (path: string): string => path.replaceAll(/\{\w+\}/g, encodeURIComponent("disks/a ..é!~*'()_"));

test('agents accept every request that the controller forwards', () => {
  const passedOn = allRoutes.filter(({ onNodes }) => onNodes === true);
  expect(passedOn.length).toBeGreaterThan(5);
  for (const { method, path } of passedOn) expect(findAgentCall(method, filled(path))).toMatchObject({ method, path });
});

test('every call that agents accept is a route of the API', () => {
  const known = allRoutes.map(({ method, path }) => `${method} ${path}`);
  for (const { method, path } of agentCalls) {
    expect(known).toContain(`${method} ${path}`);
    expect(findAgentCall(method, filled(path))).toMatchObject({ method, path });
  }
});

test('agents refuse all other routes of the API', () => {
  const others = allRoutes.filter(({ method, path }) => findAgentCall(method, filled(path)) === undefined);
  expect(others.map(({ id }) => id).sort()).toEqual([
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
