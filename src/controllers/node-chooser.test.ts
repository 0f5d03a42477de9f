import { setImmediate } from 'node:timers/promises';
import { describe, expect, test } from 'vitest';
import { StowageError } from '#core/errors.ts';
import { nodeTopologyKey } from '#core/node-topology.ts';
import { topologyOf } from '#front/csi/driver-context.ts';
import type { AgentNode } from '#testing/agent-nodes.ts';
import { aClaim, controllerFixture, eventually, paths } from '#testing/controller-fixture.ts';
import { aCall } from '#testing/core-calls.ts';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { aLocalClaim, aLocalClass, localClaims, moveStore, volumeCounts } from '#testing/local-claims.ts';
import { claims } from '#wire/kube/resources.ts';
import type { PersistentVolume } from '#wire/kube/types.ts';
import type { AgentRequest } from './agents.ts';
import { selectedNodeAnnotation, storeIdentityAnnotation } from './names.ts';
import { createNodeProvisioner } from './node-provisioner.ts';
import { createNodeStores } from './node-stores.ts';
import { createNodeVolumes } from './node-volumes.ts';
import { createProvisioning } from './provisioning.ts';

const fixture = controllerFixture();
const { twoNodes, startLeader, volumes, claimsWithVolumes, provision } = localClaims(fixture);
const gib = 1024n ** 3n;

const connectionLost = (): StowageError =>
  new StowageError('the agent is lost', { code: 'unavailable', reason: 'agent-lost', action: 'Wait.' });

const isCreateRequest = ({ method, path }: AgentRequest): boolean => method === 'POST' && path === '/v1/volumes';

const affinityTermOf = ({ spec }: PersistentVolume): unknown =>
  spec.nodeAffinity?.required?.nodeSelectorTerms[0]?.matchExpressions?.[0];

test('volumes are bound to the topology that the driver reports for its node', () => {
  expect(topologyOf({ core: { node: 'node-1' } as never })).toEqual({ [nodeTopologyKey]: 'node-1' });
});

describe('a claim whose node the scheduler has chosen', () => {
  test('gets a volume on that node, bound to it and labelled with the claim', async () => {
    const [one, two] = await twoNodes();
    fixture.api.put(paths.classes, aLocalClass());
    fixture.api.put(paths.claims, aLocalClaim('data', 'node-2'));
    fixture.api.put(paths.claims, aLocalClaim('unscheduled'));
    startLeader();
    await eventually(claimsWithVolumes).toEqual(['pvc-uid-of-data']);
    const [volume] = await volumes();
    expect(volume && affinityTermOf(volume)).toEqual({ key: nodeTopologyKey, operator: 'In', values: ['node-2'] });
    const [made] = await two.volumes();
    expect(volume?.spec.csi).toMatchObject({ driver: 'local.stowage.dev', volumeHandle: made?.id });
    expect(made).toMatchObject({ name: 'pvc-uid-of-data', bytes: gib, labels: { 'stowage.dev/claim-name': 'data' } });
    expect(await volumeCounts(one, two)).toEqual([0, 1]);
  });

  test.each([
    ['', 0],
    [', from an agent that reports it only on request', 1],
  ])('gets the current identity of the store, not the one of the last check%s', async (_, expectedReads) => {
    const [, two] = await twoNodes();
    fixture.api.put(paths.classes, aLocalClass());
    startLeader();
    const checkedIdentity = (): string | undefined =>
      fixture.parts.nodeStores.reportOf('node-2')?.stores.get('disks')?.identity;
    await eventually(checkedIdentity).not.toBe(undefined);
    await moveStore(two, 'elsewhere');
    if (expectedReads > 0)
      two.intercept = async (request) => {
        if (!isCreateRequest(request)) return undefined;
        two.intercept = undefined;
        const { storeIdentity: _said, ...answer } = (await two.answer(request)) as Record<string, unknown>;
        return answer;
      };
    fixture.api.put(paths.claims, aLocalClaim('data', 'node-2'));
    await eventually(claimsWithVolumes).toEqual(['pvc-uid-of-data']);
    const currentIdentity = two.server.core.stores.view('disks').store?.identity;
    expect(checkedIdentity()).not.toBe(currentIdentity);
    expect((await volumes())[0]?.metadata.annotations?.[storeIdentityAnnotation]).toBe(currentIdentity);
    expect(fixture.agents.requests.filter((one) => one === 'node-2 GET /v1/stores/disks')).toHaveLength(expectedReads);
  });

  test('gets the same volume from the next controller, even if the request has changed', async () => {
    const [, two] = await twoNodes();
    const wanted = { claim: { namespace: 'shop', name: 'data', uid: 'u-1' }, store: 'disks', name: 'pvc-u-1' };
    const more = { bytes: gib, enforce: false, access: 'filesystem', node: 'node-2', allowedTopologies: [] } as const;
    const first = startLeader().local;
    await fixture.caches.stores.whenSynced(aCall().signal);
    const created = await first.create({ ...wanted, ...more, labels: {} }, aCall());
    const second = createNodeProvisioner({
      ...fixture.parts,
      stores: fixture.parts.nodeStores,
      volumes: fixture.start(createNodeVolumes),
    });
    const repeated = await second.create({ ...wanted, ...more, labels: { team: 'red' } }, aCall());
    const larger = await second.create({ ...wanted, ...more, name: 'red-data', labels: { team: 'red' } }, aCall());
    expect([repeated, larger]).toEqual([created, created]);
    expect(await volumeCounts(two)).toEqual([1]);
  });

  test('has one volume in the end if its node changes after the answer of the first node was lost', async () => {
    const [one, two] = await twoNodes();
    one.intercept = async (request) => {
      if (request.method !== 'POST' || request.path !== '/v1/volumes') return undefined;
      one.intercept = undefined;
      await one.answer(request);
      fixture.agents.disconnect('node-1');
      throw connectionLost();
    };
    fixture.api.put(paths.classes, aLocalClass());
    fixture.api.put(paths.claims, aLocalClaim('data', 'node-1'));
    startLeader();
    await eventually(() => fixture.agents.nodes()).toEqual(['node-2']);
    fixture.api.put(paths.claims, aLocalClaim('data', 'node-2'));
    await eventually(claimsWithVolumes).toEqual(['pvc-uid-of-data']);
    expect(await volumeCounts(one, two)).toEqual([1, 1]);
    one.connect();
    await eventually(() => volumeCounts(one, two)).toEqual([0, 1]);
    const [volume] = await volumes();
    expect((await two.volumes()).map(({ id }) => id)).toEqual([volume?.spec.csi?.volumeHandle]);
  });

  const folderNotVisible: AgentNode['intercept'] = async ({ method, path }) => {
    if (method !== 'POST' || path !== '/v1/volumes') return undefined;
    throw new StowageError('it is in the container', { code: 'invalid', reason: 'store-not-on-node', action: '' });
  };

  test.each<[string, (node: AgentNode) => void, RegExp]>([
    ['has not enough space', () => undefined, /has no room for/],
    [
      'does not see the store’s folder',
      (node) => Object.assign(node, { intercept: folderNotVisible }),
      /cannot use its configured location/,
    ],
    ['is no longer in the cluster', () => fixture.api.remove(paths.nodes, 'node-1'), /no longer in the cluster/],
  ])('is returned to the scheduler with an Event if the node %s', async (_, prepare, expectedNote) => {
    const [one, two] = await twoNodes('?maxBytes=1M');
    prepare(one);
    fixture.api.put(paths.classes, aLocalClass());
    startLeader();
    const polls = (): number => fixture.agents.requests.filter((one) => one === 'node-1 GET /v1/stores').length;
    // The controller has polled both nodes, and waits before the next poll.
    await eventually(() => fixture.parts.nodeStores.counts()).toMatchObject({ waiting: 0, running: 0, delayed: 2 });
    const pollsBefore = polls();
    fixture.api.put(paths.claims, aLocalClaim('data', 'node-1'));
    const annotation = async () => (await fixture.list(claims))[0]?.metadata.annotations?.[selectedNodeAnnotation];
    await eventually(annotation).toBe(undefined);
    await eventually(async () => (await fixture.notes('ProvisioningFailed')).join()).toMatch(expectedNote);
    // The free space that this node last reported would let it be chosen again.
    if (expectedNote.test('has no room for')) await eventually(polls).toBe(pollsBefore + 1);
    fixture.api.put(paths.claims, aLocalClaim('data', 'node-2'));
    await eventually(claimsWithVolumes).toEqual(['pvc-uid-of-data']);
    expect(await volumeCounts(one, two)).toEqual([0, 1]);
  });

  test('waits for the agent of that node with an Event, and gets its volume when the agent connects', async () => {
    const [one, two] = await twoNodes();
    fixture.agents.disconnect('node-1');
    fixture.api.put(paths.classes, aLocalClass());
    fixture.api.put(paths.claims, aLocalClaim('data', 'node-1'));
    startLeader();
    await eventually(async () => (await fixture.notes('ProvisioningFailed')).join()).toMatch(
      /agent of node 'node-1' is not connected/,
    );
    expect((await fixture.list(claims))[0]?.metadata.annotations).toEqual({ [selectedNodeAnnotation]: 'node-1' });
    one.connect();
    await eventually(claimsWithVolumes).toEqual(['pvc-uid-of-data']);
    expect(await volumeCounts(one, two)).toEqual([1, 0]);
  });
});

describe('a claim that does not wait for a pod', () => {
  const immediate = { volumeBindingMode: 'Immediate' };

  test('gets its volume on the node with the most free space that the class allows', async () => {
    const [one, two] = await twoNodes('?maxBytes=2G', '?maxBytes=8G');
    const allowedTopologies = [{ matchLabelExpressions: [{ key: nodeTopologyKey, values: ['node-1'] }] }];
    fixture.api.put(paths.classes, aLocalClass(immediate));
    fixture.api.put(paths.classes, {
      ...aLocalClass({ ...immediate, allowedTopologies }),
      metadata: { name: 'first' },
    });
    startLeader();
    fixture.api.put(paths.claims, aLocalClaim('roomy'));
    await eventually(() => volumeCounts(one, two)).toEqual([0, 1]);
    fixture.api.put(paths.claims, aClaim('allowed', { storageClassName: 'first' }));
    await eventually(() => volumeCounts(one, two)).toEqual([1, 1]);
    fixture.api.put(
      paths.claims,
      aClaim('large', { storageClassName: 'first', resources: { requests: { storage: '5Gi' } } }),
    );
    await eventually(async () => (await fixture.notes('ProvisioningFailed')).join()).toMatch(
      /does not have enough free space on any of 1/,
    );
    expect(await claimsWithVolumes()).toHaveLength(2);
  });

  test('is not refused because of empty volumes, and gets its volume on the node with fewer new volumes', async () => {
    const nodes = await twoNodes();
    for (const [index, node] of nodes.entries())
      node.intercept = ({ path }) =>
        path.endsWith('/check')
          ? { steps: [{ ok: true }], totalBytes: String(8n * gib), freeBytes: String(BigInt(3 - index) * gib) }
          : undefined;
    fixture.api.put(paths.classes, aLocalClass(immediate));
    startLeader();
    await eventually(() => [...fixture.parts.nodeStores.all()].length).toBe(2);
    for (const name of ['a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', 'i']) fixture.api.put(paths.claims, aLocalClaim(name));
    await eventually(() => volumeCounts(...nodes)).toEqual([5, 4]);
    fixture.api.put(paths.claims, aLocalClaim('j'));
    await eventually(() => volumeCounts(...nodes)).toEqual([6, 4]);
    expect(await fixture.notes('ProvisioningFailed')).toEqual([]);
  });

  test('gets its volume on another node when the chosen one refuses', async () => {
    const [one, two] = await twoNodes('?maxBytes=8G', '?maxBytes=2G');
    one.intercept = ({ method, path }) => {
      if (method !== 'POST' || path !== '/v1/volumes') return undefined;
      throw new StowageError('the disk is full', { code: 'exhausted', reason: 'store-full', action: '' });
    };
    fixture.api.put(paths.classes, aLocalClass(immediate));
    startLeader();
    fixture.api.put(paths.claims, aLocalClaim('data'));
    await eventually(() => volumeCounts(one, two)).toEqual([0, 1]);
    expect(await fixture.notes('ProvisioningFailed')).toEqual([]);
  });

  const diskBroken = (): StowageError =>
    new StowageError('the disk is broken', { code: 'unavailable', reason: 'store-io-error', action: '' });

  test('gets its volume on another node when the first node refuses a retry after a lost answer, and the first node keeps no volume', async () => {
    const [one, two] = await twoNodes('?maxBytes=8G', '?maxBytes=2G');
    let createCount = 0;
    one.intercept = async (request) => {
      if (!isCreateRequest(request)) return undefined;
      createCount++;
      await setImmediate();
      if (createCount > 20) throw connectionLost();
      if (createCount > 1) throw diskBroken();
      one.intercept = undefined;
      await one.answer(request);
      one.intercept = refusing;
      throw connectionLost();
    };
    const refusing = one.intercept;
    fixture.api.put(paths.classes, aLocalClass(immediate));
    startLeader();
    fixture.api.put(paths.claims, aLocalClaim('data'));
    await eventually(claimsWithVolumes).toEqual(['pvc-uid-of-data']);
    await eventually(() => volumeCounts(one, two)).toEqual([0, 1]);
    expect(createCount).toBe(2);
  });

  test('gets its volume on another node when the node refuses on which an earlier controller created it', async () => {
    const [one, two] = await twoNodes('?maxBytes=8G', '?maxBytes=2G');
    await provision('data', one);
    let createCount = 0;
    one.intercept = async (request) => {
      if (!isCreateRequest(request)) return undefined;
      await setImmediate();
      throw createCount++ > 20 ? connectionLost() : diskBroken();
    };
    fixture.api.put(paths.classes, aLocalClass(immediate));
    fixture.api.put(paths.claims, aLocalClaim('data'));
    startLeader();
    await eventually(claimsWithVolumes).toEqual(['pvc-uid-of-data']);
    expect([createCount, await volumeCounts(two)]).toEqual([1, [1]]);
  });

  const noAnswer = (): StowageError =>
    new StowageError('it gave no answer', { code: 'deadline', reason: 'agent-no-answer', action: '' });

  test.each([
    ['disk', '/v1/stores/disks/check'],
    ['agent', '/v1/stores'],
  ])(
    'gets its volume on another node when the %s of the chosen node does not answer for a minute, and the chosen node keeps no volume',
    async (_, silentPath) => {
      const [one, two] = await twoNodes('?maxBytes=8G', '?maxBytes=2G');
      const clock = createFakeClock();
      const stores = fixture.start(() => createNodeStores({ ...fixture.parts, clock }));
      const nodeVolumes = fixture.start(createNodeVolumes);
      const local = createNodeProvisioner({ ...fixture.parts, clock, stores, volumes: nodeVolumes });
      fixture.start(createProvisioning, { clock, provisioners: new Map([[local.driver, local]]) });
      await eventually(() => [...stores.all()].length).toBe(2);
      let silentAt: number | undefined;
      const seenRequests = new WeakSet<AgentRequest>();
      one.intercept = async (request) => {
        if (seenRequests.has(request)) return undefined;
        seenRequests.add(request);
        const answer = (await one.answer(request)) as object;
        if (request.path === silentPath) silentAt ??= clock.elapsed();
        if (request.path === silentPath || isCreateRequest(request)) throw noAnswer();
        // The agent lists its volumes as last seen.
        return request.path.startsWith('/v1/volumes?') ? { ...answer, unanswered: ['disks'] } : answer;
      };
      fixture.api.put(paths.classes, aLocalClass(immediate));
      fixture.api.put(paths.claims, aLocalClaim('data'));
      let createdAt = 0;
      two.intercept = (request) => {
        if (isCreateRequest(request)) createdAt = clock.elapsed();
      };
      await eventually(() => volumeCounts(one)).toEqual([1]);
      await eventually(async () => {
        clock.advance(1_000);
        return await claimsWithVolumes();
      }).toEqual(['pvc-uid-of-data']);
      expect(createdAt - (silentAt ?? Number.POSITIVE_INFINITY)).toBeGreaterThanOrEqual(60_000);
      const [volume] = await volumes();
      expect(volume?.spec.csi?.volumeHandle).toBe((await two.volumes())[0]?.id);
      expect(await volumeCounts(one, two)).toEqual([1, 1]);
      one.intercept = undefined;
      nodeVolumes.add('node-1');
      await eventually(() => volumeCounts(one, two)).toEqual([0, 1]);
    },
  );

  test('is not retried after every poll of the nodes, but as soon as a node has enough free space', async () => {
    const nodes = await twoNodes();
    let free = gib / 2n;
    for (const node of nodes)
      node.intercept = ({ path }) =>
        path.endsWith('/check')
          ? { steps: [{ ok: true }], totalBytes: String(8n * gib), freeBytes: String(free) }
          : undefined;
    fixture.api.put(paths.classes, aLocalClass(immediate));
    fixture.api.put(paths.claims, aLocalClaim('data'));
    const { provisioning } = startLeader();
    await eventually(async () => (await fixture.notes('ProvisioningFailed')).join()).toMatch(
      /does not have enough free space on any of 2/,
    );
    const reportedFreeBytes = (): unknown =>
      [...fixture.parts.nodeStores.all()].map(({ stores }) => stores.get('disks')?.freeBytes);
    const poll = async (bytes: bigint): Promise<void> => {
      free = bytes;
      const { again } = fixture.parts.nodeStores.counts();
      for (const { name } of nodes) fixture.parts.nodeStores.add(name);
      await eventually(() => fixture.parts.nodeStores.counts().again).toBeGreaterThanOrEqual(again + 2);
      expect(reportedFreeBytes()).toEqual([bytes, bytes]);
    };
    await poll(free);
    await eventually(() => provisioning.counts()).toMatchObject({ waiting: 0, running: 0, delayed: 1 });
    const { terminal } = provisioning.counts();
    for (const bytes of [gib / 2n, gib - 1n, gib / 4n, gib / 3n]) await poll(bytes);
    expect(provisioning.counts()).toMatchObject({ terminal, waiting: 0, running: 0, delayed: 1 });
    await poll(gib);
    await eventually(claimsWithVolumes).toEqual(['pvc-uid-of-data']);
  });

  test('is retried when another node becomes schedulable', async () => {
    const [one] = await twoNodes();
    const labels = { [nodeTopologyKey]: 'node-1' };
    for (const name of ['node-1', 'node-2'])
      fixture.api.put(paths.nodes, { metadata: { name, labels }, spec: { unschedulable: true } });
    fixture.api.put(paths.classes, aLocalClass(immediate));
    const stores = fixture.start(({ nodeStores }) => nodeStores);
    const local = createNodeProvisioner({ ...fixture.parts, stores, volumes: fixture.start(createNodeVolumes) });
    await eventually(() => [...stores.all()].length).toBe(2);
    // The clock does not advance, so no timer triggers a retry.
    const more = { clock: createFakeClock(), provisioners: new Map([[local.driver, local]]) };
    const provisioning = fixture.start(createProvisioning, more);
    fixture.api.put(paths.claims, aLocalClaim('data'));
    await eventually(() => provisioning.counts()).toMatchObject({ retried: 1, running: 0, delayed: 1 });
    fixture.api.put(paths.nodes, { metadata: { name: 'node-1', labels } });
    await eventually(() => volumeCounts(one)).toEqual([1]);
  });

  test('causes no request to another node after the controller has ended', async () => {
    const nodes = await twoNodes();
    const ending = new AbortController();
    const askedNodes: string[] = [];
    for (const node of nodes)
      node.intercept = (request) => {
        if (!isCreateRequest(request)) return;
        askedNodes.push(node.name);
        ending.abort();
        throw diskBroken();
      };
    const provisioner = startLeader().local;
    await eventually(() => [...fixture.parts.nodeStores.all()].length).toBe(2);
    const wanted = { claim: { namespace: 'shop', name: 'data', uid: 'u-1' }, store: 'disks', name: 'pvc-u-1' };
    const more = {
      bytes: gib,
      enforce: false,
      access: 'filesystem',
      node: undefined,
      allowedTopologies: [],
      labels: {},
    } as const;
    const creation = provisioner.create({ ...wanted, ...more }, { ...aCall(), signal: ending.signal });
    await expect(creation).rejects.toThrow(/abort/);
    expect(askedNodes).toHaveLength(1);
  });

  test('gets the volume that an earlier controller created, and waits for the agents that may have it', async () => {
    const [one, two] = await twoNodes('?maxBytes=8G', '?maxBytes=2G');
    fixture.api.put(paths.classes, aLocalClass(immediate));
    const ownLabels = {
      'stowage.dev/claim-uid': 'uid-of-data',
      'stowage.dev/cluster': fixture.parts.cluster,
      'stowage.dev/claim-namespace': 'shop',
      'stowage.dev/claim-name': 'data',
    };
    const body = { store: 'disks', name: 'pvc-uid-of-data', bytes: String(gib), ownLabels };
    await two.answer({ method: 'POST', path: '/v1/volumes', body, requestId: 'uid-of-data' });
    fixture.agents.disconnect('node-2');
    fixture.api.put(paths.claims, aLocalClaim('data'));
    startLeader();
    await eventually(
      () => fixture.agents.requests.filter((one) => one.startsWith('node-1 GET /v1/volumes?')).length,
    ).not.toBe(0);
    expect(await volumeCounts(one)).toEqual([0]);
    two.connect();
    await eventually(claimsWithVolumes).toEqual(['pvc-uid-of-data']);
    const [volume] = await volumes();
    expect(volume?.spec.csi?.volumeHandle).toBe((await two.volumes())[0]?.id);
    expect(await volumeCounts(one, two)).toEqual([0, 1]);
    // An earlier controller cannot have created a volume for a claim that was created later.
    fixture.agents.disconnect('node-2');
    fixture.api.put(paths.claims, aLocalClaim('later'));
    await eventually(() => volumeCounts(one)).toEqual([1]);
  });
});
