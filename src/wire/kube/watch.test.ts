import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { type FakeKubeApi, startKubeApi } from '#testing/fakes/kube-api.ts';
import { createWaitedClock, type WaitedClock } from '#testing/kube-clock.ts';
import { createKubeClient, type KubeClient } from './client.ts';
import { nodes } from './resources.ts';
import type { Node } from './types.ts';
import type { WatchEvent } from './watch.ts';

const path = '/api/v1/nodes';
let api: FakeKubeApi;
let client: KubeClient;
let clock: WaitedClock;
let stop: AbortController;

beforeEach(async () => {
  api = await startKubeApi();
  clock = createWaitedClock();
  stop = new AbortController();
  client = createKubeClient({ access: api.access, clock, userAgent: 'x', random: () => 1 });
});
afterEach(async () => {
  stop.abort();
  client[Symbol.dispose]();
  await api[Symbol.asyncDispose]();
});

/** Collects the events of a watch as texts. `end` resolves with the reason why the watch ended, or with its error. */
function watchNodes(resourceVersion: string): { readonly events: string[]; readonly end: Promise<unknown> } {
  const events: string[] = [];
  const describeEvent = (change: WatchEvent<Node>): string =>
    change.kind === 'bookmark' ? 'bookmark' : `${change.kind} ${change.object.metadata.name ?? ''}`;
  const run = async (): Promise<string> => {
    for await (const change of client.watch(nodes, { resourceVersion }, stop.signal))
      events.push(describeEvent(change));
    return 'a new list is needed';
  };
  return { events, end: run().catch((error: unknown) => error) };
}
const node = (name: string) => ({ metadata: { name } });
const currentVersion = (): string => api.put(path, node('first')).metadata.resourceVersion ?? '';
const watchRequests = (): string[] => api.requests.filter((one) => one.includes('watch=true'));
const requestedVersion = (asked: string | undefined): string | null =>
  new URL(asked ?? '', 'http://x').searchParams.get('resourceVersion');

test('reports changes in order', async () => {
  const { events } = watchNodes(currentVersion());
  await expect.poll(() => api.watches).toBe(1);
  api.put(path, node('a'));
  api.put(path, node('a'));
  api.remove(path, 'a');
  api.bookmark();
  await expect.poll(() => events).toEqual(['added a', 'modified a', 'deleted a', 'bookmark']);
  expect(watchRequests()[0]).toContain('allowWatchBookmarks=true');
});

test('resumes at once when the API server closes the watch', async () => {
  const { events } = watchNodes(currentVersion());
  await expect.poll(() => api.watches).toBe(1);
  const { resourceVersion } = api.put(path, node('a')).metadata;
  await expect.poll(() => events).toEqual(['added a']);
  api.cutWatches(true);
  await expect.poll(() => watchRequests().length).toBe(2);
  expect(requestedVersion(watchRequests()[1]?.slice(4))).toBe(resourceVersion);
  api.put(path, node('b'));
  await expect.poll(() => events).toEqual(['added a', 'added b']);
});

test('resumes from a bookmark', async () => {
  watchNodes(currentVersion());
  await expect.poll(() => api.watches).toBe(1);
  api.bookmark();
  const { resourceVersion } = api.put('/api/v1/pods', node('elsewhere')).metadata;
  api.cutWatches(true);
  await expect.poll(() => watchRequests().length).toBe(2);
  expect(requestedVersion(watchRequests()[1]?.slice(4))).toBe(String(Number(resourceVersion) - 1));
});

describe('a truncated line', () => {
  test.each([
    ['of a connection that breaks', false],
    ['of a connection that ends', true],
  ])('%s is received completely on the next connection', async (_how, isClean) => {
    const version = currentVersion();
    let isFirst = true;
    api.intercept = (request, response) => {
      if (!isFirst || request.url?.includes('watch=true') !== true) return false;
      isFirst = false;
      const object = { metadata: { name: 'a', resourceVersion: '900' } };
      const line = JSON.stringify({ type: 'ADDED', object });
      // Without a length and without chunks, the end of the connection is the end of the response.
      const head = `HTTP/1.1 200 OK\r\n${isClean ? '' : 'content-length: 9999\r\n'}connection: close\r\n\r\n`;
      response.socket?.end(`${head}${line}\n${line.slice(0, 30)}`);
      return true;
    };
    const { events } = watchNodes(version);
    await expect.poll(() => events).toEqual(['added a']);
    if (!isClean) await clock.passWhenAsleep(10_000);
    await expect.poll(() => watchRequests().length).toBe(2);
    expect(requestedVersion(watchRequests()[1]?.slice(4))).toBe('900');
  });
});

test.each([
  ['in the stream', () => api.compact()],
  [
    'as the status of the response',
    () => {
      api.intercept = (_request, response) => {
        api.refuse(response, 410, 'Gone');
        return true;
      };
    },
  ],
  [
    'because the API server has older data than the client',
    () => {
      api.intercept = (_request, response) => {
        api.refuse(response, 504, 'Timeout', { details: { causes: [{ reason: 'ResourceVersionTooLarge' }] } });
        return true;
      };
    },
  ],
])('ends when a new list is needed, reported %s', async (_how, prepare) => {
  const version = currentVersion();
  prepare();
  expect(await watchNodes(version).end).toBe('a new list is needed');
});

test('waits for Retry-After of a busy API server', async () => {
  const version = currentVersion();
  let refusals = 0;
  api.intercept = (_request, response) => {
    if (refusals > 0) return false;
    refusals++;
    api.refuse(response, 429, 'TooManyRequests', { headers: { 'retry-after': '17' } });
    return true;
  };
  watchNodes(version);
  await expect.poll(() => clock.slept).toEqual([17_000]);
  clock.advance(17_000);
  await expect.poll(() => api.watches).toBe(1);
});

test('backs off while the API server is down, and resets the backoff afterwards', async () => {
  const { events } = watchNodes(currentVersion());
  await expect.poll(() => api.watches).toBe(1);
  await api.down();
  for (let i = 1; i <= 8; i++) {
    await expect.poll(() => clock.slept.length).toBe(i);
    clock.advance(10_000);
  }
  await expect.poll(() => clock.slept).toEqual([200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000, 10_000]);
  await api.up();
  await clock.passWhenAsleep(10_000);
  await expect.poll(() => api.watches).toBe(1);
  api.put(path, node('a'));
  await expect.poll(() => events).toEqual(['added a']);
  await api.down();
  await expect.poll(() => clock.slept.slice(9)).toEqual([200]);
});

test('reconnects soon after a long healthy watch, despite earlier failures', async () => {
  const { events } = watchNodes(currentVersion());
  for (let i = 1; i <= 4; i++) {
    await expect.poll(() => api.watches).toBe(1);
    // Once the client has received the bookmark, it knows that the watch is open.
    api.bookmark();
    await expect.poll(() => events.length).toBe(i);
    clock.advance(31_000);
    api.cutWatches(false);
    await expect.poll(() => clock.slept.length).toBe(i);
    clock.advance(10_000);
  }
  expect(clock.slept).toEqual([200, 200, 200, 200]);
});

test('backs off from a watch that keeps ending at once', async () => {
  const version = currentVersion();
  api.intercept = (_request, response) => {
    response.writeHead(200).end();
    return true;
  };
  watchNodes(version);
  await expect.poll(() => clock.slept).toEqual([400]);
  // The client retries once without a pause, since the first end may have been an accident.
  expect(watchRequests().length).toBe(2);
  await clock.passWhenAsleep(400);
  await expect.poll(() => clock.slept).toEqual([400, 800]);
});

test('replaces a connection that is silent for too long', async () => {
  const { events } = watchNodes(currentVersion());
  await expect.poll(() => api.watches).toBe(1);
  api.bookmark();
  await expect.poll(() => events).toEqual(['bookmark']);
  clock.advance(89_000);
  api.put(path, node('a'));
  await expect.poll(() => events).toEqual(['bookmark', 'added a']);
  clock.advance(89_000);
  api.put(path, node('b'));
  await expect.poll(() => events).toEqual(['bookmark', 'added a', 'added b']);
  expect(watchRequests().length).toBe(1);
  clock.advance(90_000);
  await expect.poll(() => watchRequests().length).toBe(2);
});

test('retries a server that never answers', async () => {
  const version = currentVersion();
  api.intercept = () => true;
  watchNodes(version);
  await expect.poll(() => watchRequests().length).toBe(1);
  clock.advance(30_000);
  await expect.poll(() => watchRequests().length).toBe(2);
});

test('fails on a line that is longer than the limit', async () => {
  const version = currentVersion();
  api.intercept = (_request, response) => {
    const piece = Buffer.alloc(1 << 20, 0x20);
    const more = (): void => {
      while (!response.destroyed && response.write(piece));
      if (!response.destroyed) response.once('drain', more);
    };
    more();
    return true;
  };
  expect(await watchNodes(version).end).toMatchObject({
    failure: 'garbled',
    message: `WATCH /api/v1/nodes: a line is longer than ${16 << 20} bytes`,
  });
});

test.each([
  ['[]', 'a line is not a change of an object'],
  ['{"type":"ADDED","object":{}}', 'a line is not a change of an object'],
  ['{"type":"X","object":{"metadata":{"resourceVersion":"1"}}}', 'a line is a change of an unknown kind'],
  ['{"type"', 'the answer is not JSON'],
])('fails on a line that is not a change: %s', async (line, why) => {
  const version = currentVersion();
  api.intercept = (_request, response) => response.end(`${line}\n`) && true;
  expect(await watchNodes(version).end).toMatchObject({ failure: 'garbled', message: `WATCH /api/v1/nodes: ${why}` });
});

test('throws errors that waiting does not fix', async () => {
  const version = currentVersion();
  api.intercept = (_request, response) => {
    api.refuse(response, 403, 'Forbidden');
    return true;
  };
  expect(await watchNodes(version).end).toMatchObject({ failure: 'refused', status: 403 });
});

test.each(['while it is open', 'while it waits'])('ends when its signal is aborted, %s', async (when) => {
  const { end } = watchNodes(currentVersion());
  await expect.poll(() => api.watches).toBe(1);
  if (when === 'while it waits') {
    await api.down();
    await expect.poll(() => clock.sleeping.length).toBe(1);
  }
  stop.abort();
  expect(await end).toMatchObject({ failure: 'canceled' });
  await expect.poll(() => api.watches).toBe(0);
});

test('closes the connection when the consumer stops', async () => {
  const version = currentVersion();
  api.put(path, node('a'));
  for await (const _ of client.watch(nodes, { resourceVersion: version }, stop.signal)) break;
  await expect.poll(() => api.watches).toBe(0);
});
