import { setImmediate } from 'node:timers/promises';
import { describe, expect, test } from 'vitest';
import { StowageError } from '#core/errors.ts';
import { nodeTopologyKey } from '#core/node-topology.ts';
import { topologyOf } from '#front/csi/driver-context.ts';
import type { AgentNode } from '#testing/agent-nodes.ts';
import { aClaim, controllerFixture, eventually, paths } from '#testing/controller-fixture.ts';
import { aCall } from '#testing/core-calls.ts';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { aLocalClaim, aLocalClass, counted, localClaims, moveStore } from '#testing/local-claims.ts';
import { claims } from '#wire/kube/resources.ts';
import type { PersistentVolume } from '#wire/kube/types.ts';
import type { AgentRequest } from './agents.ts';
import { selectedNodeAnnotation, storeIdentityAnnotation } from './names.ts';
import { createNodeProvisioner } from './node-provisioner.ts';
import { createNodeStores } from './node-stores.ts';
import { createNodeVolumes } from './node-volumes.ts';
import { createProvisioning } from './provisioning.ts';

const it = controllerFixture();
const { twoNodes, lead, volumes, wellMade, makeFor } = localClaims(it);
const gib = 1024n ** 3n;

const lost = (): StowageError =>
  new StowageError('the agent is lost', { code: 'unavailable', reason: 'agent-lost', action: 'Wait.' });

const makes = ({ method, path }: AgentRequest): boolean => method === 'POST' && path === '/v1/volumes';

const nodeOf = ({ spec }: PersistentVolume): unknown =>
  spec.nodeAffinity?.required?.nodeSelectorTerms[0]?.matchExpressions?.[0];

test('volumes are bound to the topology that the driver reports for its node', () => {
  expect(topologyOf({ core: { node: 'node-1' } as never })).toEqual({ [nodeTopologyKey]: 'node-1' });
});

describe('a claim whose node the scheduler has chosen', () => {
  test('gets a volume on that node, bound to it and labelled with the claim', async () => {
    const [one, two] = await twoNodes();
    it.api.put(paths.classes, aLocalClass());
    it.api.put(paths.claims, aLocalClaim('data', 'node-2'));
    it.api.put(paths.claims, aLocalClaim('unscheduled'));
    lead();
    await eventually(wellMade).toEqual(['pvc-uid-of-data']);
    const [volume] = await volumes();
    expect(volume && nodeOf(volume)).toEqual({ key: nodeTopologyKey, operator: 'In', values: ['node-2'] });
    const [made] = await two.volumes();
    expect(volume?.spec.csi).toMatchObject({ driver: 'local.stowage.dev', volumeHandle: made?.id });
    expect(made).toMatchObject({ name: 'pvc-uid-of-data', bytes: gib, labels: { 'stowage.dev/claim-name': 'data' } });
    expect(await counted(one, two)).toEqual([0, 1]);
  });

  test.each([
    ['', 0],
    [', from an agent that reports it only on request', 1],
  ])('gets the current identity of the store, not the one of the last check%s', async (_, asked) => {
    const [, two] = await twoNodes();
    it.api.put(paths.classes, aLocalClass());
    lead();
    const before = (): string | undefined => it.parts.nodeStores.reportOf('node-2')?.stores.get('disks')?.identity;
    await eventually(before).not.toBe(undefined);
    await moveStore(two, 'elsewhere');
    if (asked > 0)
      two.intercept = async (request) => {
        if (!makes(request)) return undefined;
        two.intercept = undefined;
        const { storeIdentity: _said, ...answer } = (await two.answer(request)) as Record<string, unknown>;
        return answer;
      };
    it.api.put(paths.claims, aLocalClaim('data', 'node-2'));
    await eventually(wellMade).toEqual(['pvc-uid-of-data']);
    const now = two.server.core.stores.view('disks').store?.identity;
    expect(before()).not.toBe(now);
    expect((await volumes())[0]?.metadata.annotations?.[storeIdentityAnnotation]).toBe(now);
    expect(it.agents.requests.filter((one) => one === 'node-2 GET /v1/stores/disks')).toHaveLength(asked);
  });

  test('gets the same volume from the next controller, even if the claim has changed', async () => {
    const [, two] = await twoNodes();
    const wanted = { claim: { namespace: 'shop', name: 'data', uid: 'u-1' }, store: 'disks', name: 'pvc-u-1' };
    const more = { bytes: gib, enforce: false, access: 'filesystem', node: 'node-2', allowedTopologies: [] } as const;
    const first = lead().local;
    await it.caches.stores.whenSynced(aCall().signal);
    const made = await first.create({ ...wanted, ...more, labels: {} }, aCall());
    const second = createNodeProvisioner({
      ...it.parts,
      stores: it.parts.nodeStores,
      volumes: it.start(createNodeVolumes),
    });
    const again = await second.create({ ...wanted, ...more, labels: { team: 'red' } }, aCall());
    const larger = await second.create({ ...wanted, ...more, name: 'red-data', labels: { team: 'red' } }, aCall());
    expect([again, larger]).toEqual([made, made]);
    expect(await counted(two)).toEqual([1]);
  });

  test('has one volume in the end if its node changes while the result of a request is unknown', async () => {
    const [one, two] = await twoNodes();
    one.intercept = async (request) => {
      if (request.method !== 'POST' || request.path !== '/v1/volumes') return undefined;
      one.intercept = undefined;
      await one.answer(request);
      it.agents.lose('node-1');
      throw lost();
    };
    it.api.put(paths.classes, aLocalClass());
    it.api.put(paths.claims, aLocalClaim('data', 'node-1'));
    lead();
    await eventually(() => it.agents.nodes()).toEqual(['node-2']);
    it.api.put(paths.claims, aLocalClaim('data', 'node-2'));
    await eventually(wellMade).toEqual(['pvc-uid-of-data']);
    expect(await counted(one, two)).toEqual([1, 1]);
    one.connect();
    await eventually(() => counted(one, two)).toEqual([0, 1]);
    const [volume] = await volumes();
    expect((await two.volumes()).map(({ id }) => id)).toEqual([volume?.spec.csi?.volumeHandle]);
  });

  const notSeen: AgentNode['intercept'] = async ({ method, path }) => {
    if (method !== 'POST' || path !== '/v1/volumes') return undefined;
    throw new StowageError('it is in the container', { code: 'invalid', reason: 'store-not-on-node', action: '' });
  };

  test.each<[string, (node: AgentNode) => void, RegExp]>([
    ['has no room', () => undefined, /has no room for/],
    [
      'does not see the store’s folder',
      (node) => Object.assign(node, { intercept: notSeen }),
      /cannot use its configured location/,
    ],
    ['is no longer in the cluster', () => it.api.remove(paths.nodes, 'node-1'), /no longer in the cluster/],
  ])('goes back to the scheduler with an Event if the node %s', async (_, prepare, why) => {
    const [one, two] = await twoNodes('?maxBytes=1M');
    prepare(one);
    it.api.put(paths.classes, aLocalClass());
    lead();
    const asked = (): number => it.agents.requests.filter((one) => one === 'node-1 GET /v1/stores').length;
    // The controller has polled both nodes, and waits before the next poll.
    await eventually(() => it.parts.nodeStores.counts()).toMatchObject({ waiting: 0, running: 0, delayed: 2 });
    const before = asked();
    it.api.put(paths.claims, aLocalClaim('data', 'node-1'));
    const annotation = async () => (await it.list(claims))[0]?.metadata.annotations?.[selectedNodeAnnotation];
    await eventually(annotation).toBe(undefined);
    await eventually(async () => (await it.notes('ProvisioningFailed')).join()).toMatch(why);
    // The free space that this node last reported would let it be chosen again.
    if (why.test('has no room for')) await eventually(asked).toBe(before + 1);
    it.api.put(paths.claims, aLocalClaim('data', 'node-2'));
    await eventually(wellMade).toEqual(['pvc-uid-of-data']);
    expect(await counted(one, two)).toEqual([0, 1]);
  });

  test('waits for the agent of that node with an Event, and gets its volume when the agent connects', async () => {
    const [one, two] = await twoNodes();
    it.agents.lose('node-1');
    it.api.put(paths.classes, aLocalClass());
    it.api.put(paths.claims, aLocalClaim('data', 'node-1'));
    lead();
    await eventually(async () => (await it.notes('ProvisioningFailed')).join()).toMatch(
      /agent of node 'node-1' is not connected/,
    );
    expect((await it.list(claims))[0]?.metadata.annotations).toEqual({ [selectedNodeAnnotation]: 'node-1' });
    one.connect();
    await eventually(wellMade).toEqual(['pvc-uid-of-data']);
    expect(await counted(one, two)).toEqual([1, 0]);
  });
});

describe('a claim that does not wait for a pod', () => {
  const immediate = { volumeBindingMode: 'Immediate' };

  test('gets its volume on the node with the most free space that the class allows', async () => {
    const [one, two] = await twoNodes('?maxBytes=2G', '?maxBytes=8G');
    const allowedTopologies = [{ matchLabelExpressions: [{ key: nodeTopologyKey, values: ['node-1'] }] }];
    it.api.put(paths.classes, aLocalClass(immediate));
    it.api.put(paths.classes, { ...aLocalClass({ ...immediate, allowedTopologies }), metadata: { name: 'first' } });
    lead();
    it.api.put(paths.claims, aLocalClaim('roomy'));
    await eventually(() => counted(one, two)).toEqual([0, 1]);
    it.api.put(paths.claims, aClaim('allowed', { storageClassName: 'first' }));
    await eventually(() => counted(one, two)).toEqual([1, 1]);
    it.api.put(
      paths.claims,
      aClaim('large', { storageClassName: 'first', resources: { requests: { storage: '5Gi' } } }),
    );
    await eventually(async () => (await it.notes('ProvisioningFailed')).join()).toMatch(
      /does not have enough free space on any of 1/,
    );
    expect(await wellMade()).toHaveLength(2);
  });

  test('is not refused because of unfilled volumes, and goes to the node with fewer new volumes', async () => {
    const nodes = await twoNodes();
    for (const [at, node] of nodes.entries())
      node.intercept = ({ path }) =>
        path.endsWith('/check')
          ? { steps: [{ ok: true }], totalBytes: String(8n * gib), freeBytes: String(BigInt(3 - at) * gib) }
          : undefined;
    it.api.put(paths.classes, aLocalClass(immediate));
    lead();
    await eventually(() => [...it.parts.nodeStores.all()].length).toBe(2);
    for (const name of ['a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', 'i']) it.api.put(paths.claims, aLocalClaim(name));
    await eventually(() => counted(...nodes)).toEqual([5, 4]);
    it.api.put(paths.claims, aLocalClaim('j'));
    await eventually(() => counted(...nodes)).toEqual([6, 4]);
    expect(await it.notes('ProvisioningFailed')).toEqual([]);
  });

  test('gets its volume on another node when the chosen one refuses', async () => {
    const [one, two] = await twoNodes('?maxBytes=8G', '?maxBytes=2G');
    one.intercept = ({ method, path }) => {
      if (method !== 'POST' || path !== '/v1/volumes') return undefined;
      throw new StowageError('the disk is full', { code: 'exhausted', reason: 'store-full', action: '' });
    };
    it.api.put(paths.classes, aLocalClass(immediate));
    lead();
    it.api.put(paths.claims, aLocalClaim('data'));
    await eventually(() => counted(one, two)).toEqual([0, 1]);
    expect(await it.notes('ProvisioningFailed')).toEqual([]);
  });

  const broken = (): StowageError =>
    new StowageError('the disk is broken', { code: 'unavailable', reason: 'store-io-error', action: '' });

  test('gets its volume on another node when the one whose answer was lost refuses, which keeps no volume', async () => {
    const [one, two] = await twoNodes('?maxBytes=8G', '?maxBytes=2G');
    let times = 0;
    one.intercept = async (request) => {
      if (!makes(request)) return undefined;
      times++;
      await setImmediate();
      if (times > 20) throw lost();
      if (times > 1) throw broken();
      one.intercept = undefined;
      await one.answer(request);
      one.intercept = refusing;
      throw lost();
    };
    const refusing = one.intercept;
    it.api.put(paths.classes, aLocalClass(immediate));
    lead();
    it.api.put(paths.claims, aLocalClaim('data'));
    await eventually(wellMade).toEqual(['pvc-uid-of-data']);
    await eventually(() => counted(one, two)).toEqual([0, 1]);
    expect(times).toBe(2);
  });

  test('gets its volume on another node when the one on which an earlier controller created it refuses', async () => {
    const [one, two] = await twoNodes('?maxBytes=8G', '?maxBytes=2G');
    await makeFor('data', one);
    let times = 0;
    one.intercept = async (request) => {
      if (!makes(request)) return undefined;
      await setImmediate();
      throw times++ > 20 ? lost() : broken();
    };
    it.api.put(paths.classes, aLocalClass(immediate));
    it.api.put(paths.claims, aLocalClaim('data'));
    lead();
    await eventually(wellMade).toEqual(['pvc-uid-of-data']);
    expect([times, await counted(two)]).toEqual([1, [1]]);
  });

  const silent = (): StowageError =>
    new StowageError('it gave no answer', { code: 'deadline', reason: 'agent-no-answer', action: '' });

  test.each([
    ['disk', '/v1/stores/disks/check'],
    ['agent', '/v1/stores'],
  ])(
    'gets its volume on another node when the %s of the chosen one is silent for long, which keeps no volume',
    async (_, looked) => {
      const [one, two] = await twoNodes('?maxBytes=8G', '?maxBytes=2G');
      const clock = createFakeClock();
      const stores = it.start(() => createNodeStores({ ...it.parts, clock }));
      const found = it.start(createNodeVolumes);
      const local = createNodeProvisioner({ ...it.parts, clock, stores, volumes: found });
      it.start(createProvisioning, { clock, provisioners: new Map([[local.driver, local]]) });
      await eventually(() => [...stores.all()].length).toBe(2);
      let silentAt: number | undefined;
      const passed = new WeakSet<AgentRequest>();
      one.intercept = async (request) => {
        if (passed.has(request)) return undefined;
        passed.add(request);
        const answer = (await one.answer(request)) as object;
        if (request.path === looked) silentAt ??= clock.elapsed();
        if (request.path === looked || makes(request)) throw silent();
        // The agent lists its volumes as last seen.
        return request.path.startsWith('/v1/volumes?') ? { ...answer, unanswered: ['disks'] } : answer;
      };
      it.api.put(paths.classes, aLocalClass(immediate));
      it.api.put(paths.claims, aLocalClaim('data'));
      let madeAt = 0;
      two.intercept = (request) => {
        if (makes(request)) madeAt = clock.elapsed();
      };
      await eventually(() => counted(one)).toEqual([1]);
      await eventually(async () => {
        clock.advance(1_000);
        return await wellMade();
      }).toEqual(['pvc-uid-of-data']);
      expect(madeAt - (silentAt ?? Number.POSITIVE_INFINITY)).toBeGreaterThanOrEqual(60_000);
      const [volume] = await volumes();
      expect(volume?.spec.csi?.volumeHandle).toBe((await two.volumes())[0]?.id);
      expect(await counted(one, two)).toEqual([1, 1]);
      one.intercept = undefined;
      found.add('node-1');
      await eventually(() => counted(one, two)).toEqual([0, 1]);
    },
  );

  test('is not retried after every poll of the nodes, but when one of them has enough free space', async () => {
    const nodes = await twoNodes();
    let free = gib / 2n;
    for (const node of nodes)
      node.intercept = ({ path }) =>
        path.endsWith('/check')
          ? { steps: [{ ok: true }], totalBytes: String(8n * gib), freeBytes: String(free) }
          : undefined;
    it.api.put(paths.classes, aLocalClass(immediate));
    it.api.put(paths.claims, aLocalClaim('data'));
    const { provisioning } = lead();
    await eventually(async () => (await it.notes('ProvisioningFailed')).join()).toMatch(
      /does not have enough free space on any of 2/,
    );
    const seen = (): unknown => [...it.parts.nodeStores.all()].map(({ stores }) => stores.get('disks')?.freeBytes);
    const look = async (bytes: bigint): Promise<void> => {
      free = bytes;
      const { again } = it.parts.nodeStores.counts();
      for (const { name } of nodes) it.parts.nodeStores.add(name);
      await eventually(() => it.parts.nodeStores.counts().again).toBeGreaterThanOrEqual(again + 2);
      expect(seen()).toEqual([bytes, bytes]);
    };
    await look(free);
    await eventually(() => provisioning.counts()).toMatchObject({ waiting: 0, running: 0, delayed: 1 });
    const { terminal } = provisioning.counts();
    for (const bytes of [gib / 2n, gib - 1n, gib / 4n, gib / 3n]) await look(bytes);
    expect(provisioning.counts()).toMatchObject({ terminal, waiting: 0, running: 0, delayed: 1 });
    await look(gib);
    await eventually(wellMade).toEqual(['pvc-uid-of-data']);
  });

  test('is retried when another node becomes schedulable', async () => {
    const [one] = await twoNodes();
    const labels = { [nodeTopologyKey]: 'node-1' };
    for (const name of ['node-1', 'node-2'])
      it.api.put(paths.nodes, { metadata: { name, labels }, spec: { unschedulable: true } });
    it.api.put(paths.classes, aLocalClass(immediate));
    const stores = it.start(({ nodeStores }) => nodeStores);
    const local = createNodeProvisioner({ ...it.parts, stores, volumes: it.start(createNodeVolumes) });
    await eventually(() => [...stores.all()].length).toBe(2);
    // The clock does not advance, so no timer triggers a retry.
    const more = { clock: createFakeClock(), provisioners: new Map([[local.driver, local]]) };
    const provisioning = it.start(createProvisioning, more);
    it.api.put(paths.claims, aLocalClaim('data'));
    await eventually(() => provisioning.counts()).toMatchObject({ retried: 1, running: 0, delayed: 1 });
    it.api.put(paths.nodes, { metadata: { name: 'node-1', labels } });
    await eventually(() => counted(one)).toEqual([1]);
  });

  test('causes no request to another node after the controller has ended', async () => {
    const nodes = await twoNodes();
    const ending = new AbortController();
    const asked: string[] = [];
    for (const node of nodes)
      node.intercept = (request) => {
        if (!makes(request)) return;
        asked.push(node.name);
        ending.abort();
        throw broken();
      };
    const provisioner = lead().local;
    await eventually(() => [...it.parts.nodeStores.all()].length).toBe(2);
    const wanted = { claim: { namespace: 'shop', name: 'data', uid: 'u-1' }, store: 'disks', name: 'pvc-u-1' };
    const more = {
      bytes: gib,
      enforce: false,
      access: 'filesystem',
      node: undefined,
      allowedTopologies: [],
      labels: {},
    } as const;
    const making = provisioner.create({ ...wanted, ...more }, { ...aCall(), signal: ending.signal });
    await expect(making).rejects.toThrow(/abort/);
    expect(asked).toHaveLength(1);
  });

  test('gets the volume that an earlier controller created, and waits for the agents that may have it', async () => {
    const [one, two] = await twoNodes('?maxBytes=8G', '?maxBytes=2G');
    it.api.put(paths.classes, aLocalClass(immediate));
    const ownLabels = {
      'stowage.dev/claim-uid': 'uid-of-data',
      'stowage.dev/cluster': it.parts.cluster,
      'stowage.dev/claim-namespace': 'shop',
      'stowage.dev/claim-name': 'data',
    };
    const body = { store: 'disks', name: 'pvc-uid-of-data', bytes: String(gib), ownLabels };
    await two.answer({ method: 'POST', path: '/v1/volumes', body, requestId: 'uid-of-data' });
    it.agents.lose('node-2');
    it.api.put(paths.claims, aLocalClaim('data'));
    lead();
    await eventually(
      () => it.agents.requests.filter((one) => one.startsWith('node-1 GET /v1/volumes?')).length,
    ).not.toBe(0);
    expect(await counted(one)).toEqual([0]);
    two.connect();
    await eventually(wellMade).toEqual(['pvc-uid-of-data']);
    const [volume] = await volumes();
    expect(volume?.spec.csi?.volumeHandle).toBe((await two.volumes())[0]?.id);
    expect(await counted(one, two)).toEqual([0, 1]);
    // No earlier controller knew a claim that was created later.
    it.agents.lose('node-2');
    it.api.put(paths.claims, aLocalClaim('later'));
    await eventually(() => counted(one)).toEqual([1]);
  });
});
