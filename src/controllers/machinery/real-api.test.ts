import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import { dirname } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { type Scope, silentLog } from '#base/log.ts';
import { type Cluster, startCluster } from '#testbed/kubernetes/cluster.ts';
import { lacks } from '#testbed/lacks.ts';
import { kubeContract } from '#testing/contracts/kube.ts';
import { createKubeClient, type KubeClient } from '#wire/kube/client.ts';
import { fromKubeconfig } from '#wire/kube/config.ts';
import type { Resource } from '#wire/kube/resources.ts';
import * as resources from '#wire/kube/resources.ts';
import type { KubeObject } from '#wire/kube/types.ts';
import { createLeader, LeadershipLost } from './leader.ts';

const { signal } = new AbortController();
const clock = systemClock();

/** Forwards connections to a server, and can cut them. */
async function startProxy(to: URL): Promise<AsyncDisposable & { readonly port: number; cut(): void }> {
  const open = new Set<Socket>();
  const cut = (): void => {
    for (const socket of open) socket.destroy();
  };
  const listener = createServer((client) => {
    const upstream = connect(Number(to.port), to.hostname);
    for (const [one, other] of [
      [client, upstream],
      [upstream, client],
    ] as const) {
      open.add(one);
      one
        .on('error', () => undefined)
        .on('close', () => {
          open.delete(one);
          other.destroy();
        });
      one.pipe(other);
    }
  }).listen(0, '127.0.0.1');
  await once(listener, 'listening');
  return {
    cut,
    port: (listener.address() as AddressInfo).port,
    [Symbol.asyncDispose]: async () => {
      cut();
      listener.close();
      await once(listener, 'close');
    },
  };
}

describe.skipIf(lacks('root', 'mount', 'netns', 'firewall', 'kubernetes', 'busybox'))('a real API server', () => {
  let cluster: Cluster;

  beforeAll(async () => {
    cluster = await startCluster(signal, { nodes: 0 });
  }, 180_000);
  afterAll(() => cluster[Symbol.asyncDispose]());

  const access = async () => {
    const config: unknown = JSON.parse(await readFile(cluster.kubeconfig, 'utf8'));
    return await fromKubeconfig({ config, folder: dirname(cluster.kubeconfig), clock, env: {} });
  };

  kubeContract('in a cluster', async () => {
    const direct = await access();
    const proxy = await startProxy(direct.server);
    return {
      access: { ...direct, server: new URL(`https://127.0.0.1:${proxy.port}`) },
      down: () => cluster.apiServer.stop(),
      up: () => cluster.apiServer.start(),
      cutWatches: () => Promise.resolve(proxy.cut()),
      // The history in its memory starts with the process.
      forget: async () => {
        await cluster.apiServer.stop();
        await cluster.apiServer.start();
      },
      [Symbol.asyncDispose]: () => proxy[Symbol.asyncDispose](),
    };
  });

  test('that is frozen for longer than a leader waits never has two leaders, and has one in the end', async () => {
    const client = createKubeClient({ access: await access(), clock, userAgent: 'stowage/test' });
    const stopping = new AbortController();
    const scope = { signal: stopping.signal, log: silentLog() };
    let working = 0;
    let maxWorking = 0;
    const work = async ({ signal: workSignal }: Scope): Promise<void> => {
      working++;
      maxWorking = Math.max(maxWorking, working);
      await once(workSignal, 'abort');
      working--;
    };
    const options = { client, clock, namespace: 'default', name: 'frozen' };
    const all = ['a', 'b', 'c'].map((identity) =>
      createLeader({ ...options, identity })
        .run(work, scope, stopping.signal)
        .catch((error: unknown) => error),
    );
    await expect.poll(() => working, { timeout: 20_000 }).toBe(1);
    await cluster.apiServer.freeze();
    const frozenAt = clock.elapsed();
    // The leader gives up; the candidates still wait.
    expect(await Promise.race(all)).toBeInstanceOf(LeadershipLost);
    // The leader gives up before the Lease expires for the candidates.
    expect(clock.elapsed() - frozenAt).toBeLessThan(15_000);
    expect(working).toBe(0);
    cluster.apiServer.thaw();
    await expect.poll(() => working, { timeout: 60_000, interval: 20 }).toBe(1);
    expect(maxWorking).toBe(1);
    stopping.abort();
    await Promise.all(all);
    client[Symbol.dispose]();
  }, 120_000);

  describe('the resources', () => {
    let client: KubeClient;
    beforeAll(async () => {
      client = createKubeClient({ access: await access(), clock, userAgent: 'stowage/test' });
    });
    afterAll(() => client[Symbol.dispose]());

    test.each<Resource<KubeObject>>([
      resources.persistentVolumes,
      resources.claims,
      resources.nodes,
      resources.namespaces,
      resources.pods,
      resources.secrets,
      resources.storageClasses,
      resources.csiNodes,
      resources.csiDrivers,
      resources.csiStorageCapacities,
      resources.leases,
      resources.events,
    ])('$plural are at the path that the client uses', async (resource) => {
      const path = `/${resource.group === '' ? 'api' : `apis/${resource.group}`}/${resource.version}`;
      const { resources: served } = JSON.parse(await client.raw({ method: 'GET', path }, signal)) as {
        readonly resources: readonly { readonly name: string; readonly kind: string; readonly namespaced: boolean }[];
      };
      const { plural: name, kind, namespaced } = resource;
      expect(served).toContainEqual(expect.objectContaining({ name, kind, namespaced }));
      for await (const page of client.list(resource, { limit: 1 }, signal)) expect(page.items.length).toBeLessThan(2);
    });

    test('TokenRequest and TokenReview work for an audience', async () => {
      const audiences = ['stowage.dev/controller'];
      const body = { apiVersion: 'authentication.k8s.io/v1', metadata: {}, spec: { audiences } };
      const tokenPath = { namespace: 'default', name: 'default', subresource: 'token' } as const;
      const { status } = await client.create(resources.tokenRequests, body, signal, tokenPath);
      const review = (spec: { token: string; audiences: readonly string[] }) =>
        client.create(resources.tokenReviews, { metadata: {}, spec }, signal);
      const token = status?.token ?? '';
      expect((await review({ token, audiences })).status).toMatchObject({
        authenticated: true,
        audiences,
        user: { username: 'system:serviceaccount:default:default' },
      });
      expect((await review({ token, audiences: ['stowage.dev'] })).status?.authenticated).not.toBe(true);
    });

    test('SubjectAccessReview returns whether a user has a permission', async () => {
      const isAllowed = async (user: string): Promise<boolean | undefined> => {
        const resourceAttributes = { group: 'stowage.dev', resource: 'volumes', verb: 'list' };
        const groups = user === 'admin' ? ['system:masters'] : [];
        const spec = { user, groups, resourceAttributes };
        return (await client.create(resources.subjectAccessReviews, { metadata: {}, spec }, signal)).status?.allowed;
      };
      expect([await isAllowed('admin'), await isAllowed('nobody')]).toEqual([true, false]);
    });
  });
});
