import { describe, expect, test } from 'vitest';
import { allRoutes } from '#testing/routes.ts';
import { clusterResources, ruleText } from './access.ts';
import type { Route } from './route.ts';

/** The verbs that fit each method. */
const verbs: Readonly<Record<Route['method'], readonly string[]>> = {
  GET: ['get', 'list', 'watch'],
  POST: ['create', 'update'],
  PATCH: ['patch'],
  DELETE: ['delete'],
};

describe.each(allRoutes.map((route) => ({ name: `${route.method} ${route.path}`, route })))('$name', ({ route }) => {
  test('declares its RBAC rule for clusters, or what to do there instead', () => {
    const { access, method } = route;
    if ('instead' in access) return expect(access.instead).toMatch(/^[A-Z].{20,}$/);
    if (!('resource' in access)) throw new Error('routes have rules for resources of Stowage');
    expect(clusterResources).toContain(access.resource);
    expect(verbs[method]).toContain(access.verb);
  });
});

describe.each(
  allRoutes.flatMap((route) => {
    const name = `${route.method} ${route.path}`;
    return [
      { name, right: route },
      ...(route.additionalRight
        ? [{ name: `${name} ${route.additionalRight.when}`, right: route.additionalRight }]
        : []),
    ];
  }),
)('$name', ({ name, right }) => {
  test('acts on the machine only for administrators with a token for all stores', () => {
    if (right.effect === 'acts on the machine') expect(right).toMatchObject({ role: 'admin', scope: 'server' });
  });

  test('changes something only with a method that allows it, and for more than viewers', () => {
    if (name.startsWith('GET ')) expect(right.effect).toBe('reads');
    if (right.effect !== 'reads') expect(['user', 'admin']).toContain(right.role);
  });
});

test('reading routes need no verb that changes anything, and these are all rules', () => {
  const rights = allRoutes.flatMap((route) => [route, ...(route.additionalRight ? [route.additionalRight] : [])]);
  const rules = rights.flatMap(({ access }) => ('instead' in access ? [] : [ruleText(access)]));
  expect([...new Set(rules)].sort()).toEqual([
    'create stores.stowage.dev/adopt',
    'create stores.stowage.dev/check',
    'create volumes.stowage.dev',
    'delete trash.stowage.dev',
    'delete volumes.stowage.dev',
    'delete volumes.stowage.dev/uses',
    'get doctor.stowage.dev',
    'get operations.stowage.dev',
    'get status.stowage.dev',
    'get stores.stowage.dev',
    'get volumes.stowage.dev',
    'list clients.stowage.dev',
    'list mounts.stowage.dev',
    'list operations.stowage.dev',
    'list stores.stowage.dev',
    'list trash.stowage.dev',
    'list volumes.stowage.dev',
    'patch volumes.stowage.dev',
    'update operations.stowage.dev',
    'update stores.stowage.dev/check',
    'update trash.stowage.dev',
    'update volumes.stowage.dev',
  ]);
});
