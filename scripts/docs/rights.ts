import { eventsRight, metricsRight, type Right } from '#front/rest/access.ts';
import { allRoutes } from '#testing/routes.ts';
import { code, table } from './markdown.ts';

const scopes = {
  server: 'no limit to stores',
  store: 'the store',
  visible: 'any; only its stores are shown',
} as const satisfies Record<Right['scope'], string>;

const row = (request: string, { role, scope, effect }: Right): readonly string[] => [
  request,
  code(role),
  scopes[scope],
  effect,
];

/** The tokens that each request of the REST API needs, and what the request can do. */
export function rightsTable(): string {
  const rows = allRoutes.flatMap((route) => {
    const request = code(`${route.method} ${route.path}`);
    const { additionalRight } = route;
    return [
      row(request, route),
      ...(additionalRight === undefined ? [] : [row(`${request} ${additionalRight.when}`, additionalRight)]),
    ];
  });
  return table(
    ['Request', 'Role', 'Scope of the token', 'Effect'],
    [...rows, row(code('GET /v1/events'), eventsRight), row(code('GET /metrics'), metricsRight)],
  ).join('\n');
}
