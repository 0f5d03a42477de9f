import { expect, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { controllerFixture, eventually, paths } from '#testing/controller-fixture.ts';
import { createFakeAgents } from '#testing/fakes/agents.ts';
import { createKubeClient } from '#wire/kube/client.ts';
import { namespaces, nodes } from '#wire/kube/resources.ts';
import { createController } from './machinery/controller.ts';
import { done } from './machinery/outcome.ts';
import { createControllerMetrics } from './metrics.ts';

const fixture = controllerFixture();
const { signal } = new AbortController();

test('the metrics cover controllers, caches, agents and Events as soon as the process leads', async () => {
  let isLeading = false;
  const metrics = createControllerMetrics('1.2.3', () => isLeading);
  const lines = async (): Promise<readonly string[]> =>
    (await metrics.text()).split('\n').filter((line) => line.startsWith('stowage_'));
  expect(await lines()).toContain('stowage_info{version="1.2.3"} 1');
  expect(await lines()).toContain('stowage_controller_leading 0');
  isLeading = true;
  const agents = createFakeAgents();
  agents.connect('node-1', () => ({}));
  const events = metrics.countEvents(fixture.parts.events);
  const failing = (key: string): Error => Object.assign(new Error('no'), { key });
  const controller = fixture.start(() =>
    createController({
      name: 'example',
      clock: systemClock(),
      firstRetryMs: 60_000,
      maxRetryMs: 60_000,
      reconcile: async (key) => {
        if (key === 'bad') throw failing(key);
        return done;
      },
    }),
  );
  metrics.startLeading({ controllers: [controller], caches: { ...fixture.caches }, agents, events });
  fixture.api.put(paths.nodes, { metadata: { name: 'node-1' } });
  controller.add('good');
  controller.add('bad');
  events.report({
    regarding: { kind: 'Node', name: 'node-1' },
    type: 'Normal',
    reason: 'Example',
    action: 'X',
    note: 'x',
  });
  await eventually(lines).toEqual(
    expect.arrayContaining([
      'stowage_controller_leading 1',
      'stowage_controller_agents 1',
      'stowage_controller_cache_objects{resource="nodes"} 1',
      'stowage_controller_cache_synced{resource="claims"} 1',
      'stowage_controller_keys{controller="example",state="delayed"} 1',
      'stowage_controller_reconciles_total{controller="example",outcome="done"} 1',
      'stowage_controller_reconciles_total{controller="example",outcome="retried"} 1',
      'stowage_controller_reconcile_seconds_count{controller="example"} 2',
      'stowage_controller_events_total{type="Normal",reason="Example"} 1',
    ]),
  );
});

test('calls to the API server are counted by result', async () => {
  const metrics = createControllerMetrics('1', () => false);
  const { access } = fixture.api;
  using client = createKubeClient({
    access,
    clock: systemClock(),
    userAgent: 'test',
    onResponse: metrics.countRequest,
  });
  await client.get(namespaces, { name: 'none' }, signal).catch(() => undefined);
  await Array.fromAsync(client.list(nodes, {}, signal));
  const ending = new AbortController();
  const watching = Array.fromAsync(client.watch(nodes, { resourceVersion: '100' }, ending.signal)).catch(
    () => undefined,
  );
  await eventually(() => fixture.api.watches).toBe(1);
  await fixture.api.down();
  await client.get(namespaces, { name: 'none' }, signal).catch(() => undefined);
  ending.abort();
  await watching;
  const text = await metrics.text();
  for (const [verb, code] of [
    ['get', '404'],
    ['get', '200'],
    ['get', 'unreachable'],
    ['watch', '200'],
  ])
    expect(text).toContain(`stowage_kube_requests_total{verb="${verb}",code="${code}"} 1`);
  await fixture.api.up();
});
