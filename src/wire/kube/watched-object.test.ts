import { beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { silentLog } from '#base/log.ts';
import { eventually } from '#testing/controller-fixture.ts';
import { type FakeKubeApi, startKubeApi } from '#testing/fakes/kube-api.ts';
import { createKubeClient } from './client.ts';
import { configMaps } from './resources.ts';
import type { ConfigMap } from './types.ts';
import { createWatchedObject, type WatchedObject } from './watched-object.ts';

const path = '/api/v1/namespaces/here/configmaps';
const clock = systemClock();
let api: FakeKubeApi;
let watched: WatchedObject<ConfigMap>;
let values: (string | undefined)[];
const put = (name: string, a: string) => api.put(path, { metadata: { name }, data: { a } } as never);

beforeEach(async () => {
  api = await startKubeApi();
  onTestFinished(() => api[Symbol.asyncDispose]());
  const client = createKubeClient({ access: api.access, clock, userAgent: 'test' });
  onTestFinished(() => client[Symbol.dispose]());
  const options = { client, clock, resource: configMaps, namespace: 'here', name: 'mine', random: () => 0 };
  watched = createWatchedObject(options);
  values = [];
  watched.onChange(() => values.push(watched.object?.data?.['a']));
});

function run(): void {
  const end = new AbortController();
  const running = watched.run({ signal: end.signal, log: silentLog() });
  onTestFinished(async () => {
    end.abort();
    await running;
  });
}

describe('a watched object', () => {
  test('is not reported as absent before the first list', async () => {
    expect([watched.synced, watched.object]).toEqual([false, undefined]);
    run();
    await eventually(() => watched.synced).toBe(true);
    expect(values).toEqual([undefined]);
  });

  test('is updated by the watch, without requests for other objects', async () => {
    put('mine', '1');
    put('other', 'x');
    run();
    await eventually(() => values).toEqual(['1']);
    put('other', 'y');
    put('mine', '2');
    await eventually(() => values).toEqual(['1', '2']);
    api.remove(path, 'other');
    api.remove(path, 'mine');
    await eventually(() => values).toEqual(['1', '2', undefined]);
    expect(api.requests.filter((one) => !one.includes('fieldSelector=metadata.name%3Dmine'))).toEqual([]);
  });

  test('is up to date again after an outage', async () => {
    put('mine', '1');
    run();
    await eventually(() => values).toEqual(['1']);
    await api.down();
    api.remove(path, 'mine');
    put('mine', '3');
    api.compact();
    await api.up();
    await eventually(() => values.at(-1)).toBe('3');
  });

  test('is listed again after a permission error', async () => {
    put('mine', '1');
    api.intercept = (_, response) => {
      api.refuse(response, 403, 'Forbidden');
      return true;
    };
    run();
    await eventually(() => api.requests.length).toBeGreaterThan(1);
    expect(watched.synced).toBe(false);
    api.intercept = undefined;
    await eventually(() => values).toEqual(['1']);
  });
});
