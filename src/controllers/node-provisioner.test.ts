import { mkdirSync, readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setImmediate } from 'node:timers/promises';
import { describe, expect, test } from 'vitest';
import { StowageError } from '#core/errors.ts';
import { nodeTopologyKey } from '#core/node-topology.ts';
import { topologyOf } from '#front/csi/driver.ts';
import { type AgentNode, anAgentNode } from '#testing/agent-nodes.ts';
import { aClaim, aClass, controlled, eventually, paths } from '#testing/controlled.ts';
import { createFakeClock } from '#testing/fakes/clock.ts';
import type { Thing } from '#testing/fakes/kube-objects.ts';
import { aCall } from '#testing/server.ts';
import { claims, persistentVolumes } from '#wire/kube/resources.ts';
import type { PersistentVolume } from '#wire/kube/types.ts';
import type { AgentRequest } from './agents.ts';
import { createDeleting } from './deleting.ts';
import type { Controller } from './engine/controller.ts';
import { selectedNode, storeIdentity, volumeFinalizer } from './names.ts';
import { createNodeProvisioner } from './node-provisioner.ts';
import { createNodeVolumes } from './node-volumes.ts';
import type { Provisioner } from './provisioner.ts';
import { createProvisioning } from './provisioning.ts';
import { createResizing } from './resizing.ts';

const it = controlled();
const gib = 1024n ** 3n;

const late = { volumeBindingMode: 'WaitForFirstConsumer' };
const aLocalClass = (more: object = late): ReturnType<typeof aClass> =>
  aClass('fast', { provisioner: 'local.stowage.dev', parameters: { store: 'disks' }, ...more });
const chosen = (node: string): object => ({ annotations: { [selectedNode]: node } });
const aLocalClaim = (name: string, node?: string): ReturnType<typeof aClaim> =>
  aClaim(name, { accessModes: ['ReadWriteOnce'] }, node === undefined ? {} : chosen(node));
const volumes = () => it.list(persistentVolumes);
const wellMade = async (): Promise<readonly string[]> =>
  (await volumes()).map(({ metadata }) => metadata.name ?? '').toSorted();
const lost = (): StowageError =>
  new StowageError('the agent is lost', { code: 'unavailable', reason: 'agent-lost', action: 'Wait.' });

let provisioning: Controller;

/** As a controller that begins to lead, and knows nothing of those before it. */
function lead(): Provisioner {
  it.start(() => it.parts.nodeStores);
  const found = it.start(createNodeVolumes);
  const local = createNodeProvisioner({ ...it.parts, stores: it.parts.nodeStores, volumes: found });
  const provisioners = new Map([[local.driver, local]]);
  provisioning = it.start(createProvisioning, { provisioners });
  it.start(createDeleting, { provisioners });
  it.start(createResizing, { provisioners });
  return local;
}

async function twoNodes(...options: readonly string[]): Promise<readonly [AgentNode, AgentNode]> {
  it.api.put(paths.stores, { metadata: { name: 'disks', uid: 'uid-of-disks' }, spec: { uri: 'local:///disks' } });
  return [await anAgentNode(it, 'node-1', options[0]), await anAgentNode(it, 'node-2', options[1])];
}

const counted = async (...nodes: readonly AgentNode[]): Promise<readonly number[]> =>
  await Promise.all(nodes.map(async (node) => (await node.volumes()).length));

/** As it is made for a claim of that name. */
const makeFor = async (name: string, node: AgentNode): Promise<void> => {
  const ownLabels = {
    ...{ 'stowage.dev/claim-uid': `uid-of-${name}`, 'stowage.dev/cluster': it.parts.cluster },
    ...{ 'stowage.dev/claim-namespace': 'shop', 'stowage.dev/claim-name': name },
  };
  await node.answer({ method: 'POST', path: '/v1/volumes', body: { store: 'disks', name, ownLabels } });
};

const nodeOf = ({ spec }: PersistentVolume): unknown =>
  spec.nodeAffinity?.required?.nodeSelectorTerms[0]?.matchExpressions?.[0];

test('volumes are bound to what the driver says of its node', () => {
  expect(topologyOf({ engine: { node: 'node-1' } as never })).toEqual({ [nodeTopologyKey]: 'node-1' });
});

describe('a claim whose node the scheduler chose', () => {
  test('gets its volume there, bound to it, and marked with the claim', async () => {
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

  test('is told which store it is on, also where the controller has not looked at that since it was opened', async () => {
    const [, two] = await twoNodes();
    // As when it was asked before the store was opened.
    two.intercept = ({ method, path }) => (method === 'GET' && path === '/v1/stores' ? { items: [] } : undefined);
    it.api.put(paths.classes, aLocalClass());
    lead();
    await eventually(() => it.parts.nodeStores.of('node-2')?.stores.size).toBe(0);
    it.api.put(paths.claims, aLocalClaim('data', 'node-2'));
    await eventually(wellMade).toEqual(['pvc-uid-of-data']);
    expect((await volumes())[0]?.metadata.annotations?.[storeIdentity]).toBe(
      two.server.engine.stores.view('disks').store?.identity,
    );
  });

  test('gets the same volume from the next controller, whatever the claim says by then', async () => {
    const [, two] = await twoNodes();
    const wanted = { claim: { namespace: 'shop', name: 'data', uid: 'u-1' }, store: 'disks', name: 'pvc-u-1' };
    const more = { bytes: gib, enforce: false, access: 'filesystem', node: 'node-2', allowed: [] } as const;
    const first = lead();
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

  test('whose node changes while nobody knows what became of it has one volume in the end', async () => {
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
      /cannot use the place it was given/,
    ],
    ['is not in the cluster any more', () => it.api.remove(paths.nodes, 'node-1'), /not in the cluster/],
  ])('that %s is given back to the scheduler, and told why', async (_, prepare, why) => {
    const [one, two] = await twoNodes('?maxBytes=1M');
    prepare(one);
    it.api.put(paths.classes, aLocalClass());
    lead();
    const asked = (): number => it.agents.asked.filter((one) => one === 'node-1 GET /v1/stores').length;
    // Both were asked, and are left alone for now.
    await eventually(() => it.parts.nodeStores.counts()).toMatchObject({ waiting: 0, running: 0, delayed: 2 });
    const before = asked();
    it.api.put(paths.claims, aLocalClaim('data', 'node-1'));
    const annotation = async () => (await it.list(claims))[0]?.metadata.annotations?.[selectedNode];
    await eventually(annotation).toBe(undefined);
    await eventually(async () => (await it.notes('ProvisioningFailed')).join()).toMatch(why);
    // By what is known of its room it would be chosen again.
    if (why.test('has no room for')) await eventually(asked).toBe(before + 1);
    it.api.put(paths.claims, aLocalClaim('data', 'node-2'));
    await eventually(wellMade).toEqual(['pvc-uid-of-data']);
    expect(await counted(one, two)).toEqual([0, 1]);
  });

  test('waits for the agent of that node, says so, and has its volume as soon as it is there', async () => {
    const [one, two] = await twoNodes();
    it.agents.lose('node-1');
    it.api.put(paths.classes, aLocalClass());
    it.api.put(paths.claims, aLocalClaim('data', 'node-1'));
    lead();
    await eventually(async () => (await it.notes('ProvisioningFailed')).join()).toMatch(
      /agent of node 'node-1' is not connected/,
    );
    expect((await it.list(claims))[0]?.metadata.annotations).toEqual({ [selectedNode]: 'node-1' });
    one.connect();
    await eventually(wellMade).toEqual(['pvc-uid-of-data']);
    expect(await counted(one, two)).toEqual([1, 0]);
  });

  const refusePersistentVolumes = (): void => {
    it.api.intercept = (request, response) => {
      const isIt = request.method === 'POST' && request.url === paths.volumes;
      if (isIt) it.api.refuse(response, 503, 'ServiceUnavailable');
      return isIt;
    };
  };

  test('that is given its volume by hand, by store and name, as only the API server knows, keeps it', async () => {
    const [one] = await twoNodes();
    refusePersistentVolumes();
    it.api.put(paths.classes, aLocalClass());
    it.api.put(paths.claims, aLocalClaim('data', 'node-1'));
    lead();
    await eventually(() => counted(one)).toEqual([1]);
    const csi = { driver: 'local.stowage.dev', volumeHandle: 'disks..pvc-uid-of-data' };
    const claimRef = { namespace: 'shop', name: 'data', uid: 'uid-of-data' };
    const items = [{ metadata: { name: 'by-hand' }, spec: { csi, claimRef, storageClassName: 'fast' } }];
    let lists = 0;
    const refuse = it.api.intercept;
    it.api.intercept = (request, response, body) => {
      const { method, url = '' } = request;
      if (method !== 'GET' || !url.startsWith(`${paths.volumes}?limit`))
        return refuse?.(request, response, body) === true;
      lists++;
      const list = { kind: 'List', metadata: { resourceVersion: '100' }, items };
      response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(list));
      return true;
    };
    it.api.put(paths.claims, aClaim('data', { volumeName: 'by-hand' }));
    await eventually(() => lists).toBe(1);
    await eventually(() => provisioning.counts()).toMatchObject({ waiting: 0, running: 0 });
    expect(it.agents.asked.filter((one) => one.includes('DELETE'))).toEqual([]);
    expect(await counted(one)).toEqual([1]);
  });

  test.each([
    ['', ''],
    [', also where volumes that are deleted stay', '?onDelete=retain'],
  ])('that goes before its volume was written down leaves nothing%s', async (_, options) => {
    const [one] = await twoNodes(options);
    refusePersistentVolumes();
    it.api.put(paths.classes, aLocalClass());
    it.api.put(paths.claims, aLocalClaim('data', 'node-1'));
    lead();
    await eventually(() => counted(one)).toEqual([1]);
    it.api.remove('/api/v1/namespaces/shop/persistentvolumeclaims', 'data');
    await eventually(() => counted(one)).toEqual([0]);
    expect(readdirSync(join(one.server.folder, 'disks')).filter((name) => !name.startsWith('.'))).toEqual([]);
  });
});

describe('a claim that does not wait for a pod', () => {
  const immediate = { volumeBindingMode: 'Immediate' };

  test('gets its volume where most room is, among the nodes that the class allows', async () => {
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
    await eventually(async () => (await it.notes('ProvisioningFailed')).join()).toMatch(/not so much room on any of 1/);
    expect(await wellMade()).toHaveLength(2);
  });

  test('is not refused for what others may fill one day, and goes where fewer are made', async () => {
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

  test('is made on another node when the one that was chosen refuses', async () => {
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

  const makes = ({ method, path }: AgentRequest): boolean => method === 'POST' && path === '/v1/volumes';
  const broken = (): StowageError =>
    new StowageError('the disk is broken', { code: 'unavailable', reason: 'store-io-error', action: '' });

  test('is made on another node when the one whose answer was lost refuses, which keeps nothing of it', async () => {
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

  test('is made on another node when the one that has it from a controller before refuses', async () => {
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

  test('is asked of no further node when the controller ends', async () => {
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
    const provisioner = lead();
    await eventually(() => [...it.parts.nodeStores.all()].length).toBe(2);
    const wanted = { claim: { namespace: 'shop', name: 'data', uid: 'u-1' }, store: 'disks', name: 'pvc-u-1' };
    const more = {
      bytes: gib,
      enforce: false,
      access: 'filesystem',
      node: undefined,
      allowed: [],
      labels: {},
    } as const;
    const making = provisioner.create({ ...wanted, ...more }, { ...aCall(), signal: ending.signal });
    await expect(making).rejects.toThrow(/abort/);
    expect(asked).toHaveLength(1);
  });

  test('has it where a controller that is gone has made it, and waits for the agents that may know', async () => {
    const [one, two] = await twoNodes('?maxBytes=8G', '?maxBytes=2G');
    it.api.put(paths.classes, aLocalClass(immediate));
    const ownLabels = {
      ...{ 'stowage.dev/claim-uid': 'uid-of-data', 'stowage.dev/cluster': it.parts.cluster },
      ...{ 'stowage.dev/claim-namespace': 'shop', 'stowage.dev/claim-name': 'data' },
    };
    const body = { store: 'disks', name: 'pvc-uid-of-data', bytes: String(gib), ownLabels };
    await two.answer({ method: 'POST', path: '/v1/volumes', body, requestId: 'uid-of-data' });
    it.agents.lose('node-2');
    it.api.put(paths.claims, aLocalClaim('data'));
    lead();
    await eventually(() => it.agents.asked.filter((one) => one.startsWith('node-1 GET /v1/volumes?')).length).not.toBe(
      0,
    );
    expect(await counted(one)).toEqual([0]);
    two.connect();
    await eventually(wellMade).toEqual(['pvc-uid-of-data']);
    const [volume] = await volumes();
    expect(volume?.spec.csi?.volumeHandle).toBe((await two.volumes())[0]?.id);
    expect(await counted(one, two)).toEqual([0, 1]);
    // A claim that came later is nobody's but ours.
    it.agents.lose('node-2');
    it.api.put(paths.claims, aLocalClaim('later'));
    await eventually(() => counted(one)).toEqual([1]);
  });
});

describe('a volume of a node', () => {
  const written = async (change: object = {}): Promise<void> => {
    const [volume] = await volumes();
    if (volume === undefined) throw new Error('there is none');
    const { metadata, spec } = volume;
    it.api.put(paths.volumes, { metadata, spec, ...change });
  };

  async function aVolume(): Promise<readonly [AgentNode, AgentNode]> {
    const both = await twoNodes();
    it.api.put(paths.classes, aLocalClass());
    it.api.put(paths.claims, aLocalClaim('data', 'node-1'));
    lead();
    await eventually(wellMade).toEqual(['pvc-uid-of-data']);
    return both;
  }

  test('is deleted on its node', async () => {
    const [one] = await aVolume();
    it.api.remove('/api/v1/namespaces/shop/persistentvolumeclaims', 'data');
    await written({ status: { phase: 'Released' } });
    await eventually(wellMade).toEqual([]);
    expect(await counted(one)).toEqual([0]);
  });

  test.each<[string, object, number]>([
    ['stays, while another PersistentVolume of its node calls it', { values: ['node-2', 'node-1'] }, 1],
    ['stays, while another PersistentVolume that names no node calls it', { key: 'zone', values: ['a'] }, 1],
    ['is deleted, while another PersistentVolume calls that of another node', { values: ['node-2'] }, 0],
  ])('%s by store and name', async (_, which, left) => {
    const [one] = await aVolume();
    const term = { matchExpressions: [{ key: nodeTopologyKey, operator: 'In', ...which }] };
    const csi = { driver: 'local.stowage.dev', volumeHandle: 'disks..pvc-uid-of-data' };
    const nodeAffinity = { required: { nodeSelectorTerms: [term] } };
    it.api.put(paths.volumes, { metadata: { name: 'by-hand' }, spec: { csi, nodeAffinity } });
    await eventually(() => it.caches.volumes.get('by-hand')).not.toBe(undefined);
    it.api.remove('/api/v1/namespaces/shop/persistentvolumeclaims', 'data');
    const made = (await volumes()).find(({ metadata }) => metadata.name === 'pvc-uid-of-data');
    it.api.put(paths.volumes, { ...made, status: { phase: 'Released' } } as Thing);
    if (left === 0) await eventually(wellMade).toEqual(['by-hand']);
    else
      await eventually(async () => (await it.notes('VolumeFailedDelete')).join()).toContain(
        "PersistentVolume 'by-hand' has the same volume",
      );
    expect(await counted(one)).toEqual([left]);
  });

  test('is deleted on its node, whatever another says of itself', async () => {
    const [one, two] = await aVolume();
    const named = (name: string) => ({
      metadata: { name, uid: `uid-of-${name}`, labels: { [nodeTopologyKey]: 'node-1' } },
    });
    it.api.put(paths.nodes, named('node-2'));
    it.api.remove(paths.nodes, 'node-1');
    it.api.put(paths.nodes, named('node-1'));
    const asked: string[] = [];
    two.intercept = ({ method }) => void asked.push(method);
    await eventually(() => [...it.caches.nodes.all()].at(-1)?.metadata.name).toBe('node-1');
    it.api.remove('/api/v1/namespaces/shop/persistentvolumeclaims', 'data');
    await written({ status: { phase: 'Released' } });
    await eventually(wellMade).toEqual([]);
    expect([await counted(one), asked.includes('DELETE')]).toEqual([[0], false]);
  });

  test('is not taken for deleted because its node does not know the store', async () => {
    const [one] = await aVolume();
    await one.server.engine.stores.remove('disks', aCall());
    it.api.remove('/api/v1/namespaces/shop/persistentvolumeclaims', 'data');
    it.api.remove(paths.stores, 'disks');
    await written({ status: { phase: 'Released' } });
    await eventually(async () => (await it.notes('VolumeFailedDelete')).join()).toMatch(/not configured any more/);
    expect((await volumes())[0]?.metadata.finalizers).toEqual([volumeFinalizer]);
  });

  test('is not taken for deleted because its store means another place by now', async () => {
    const [one] = await aVolume();
    const { stores } = one.server.engine;
    await stores.remove('disks', aCall());
    const elsewhere = join(one.server.folder, 'elsewhere');
    mkdirSync(elsewhere);
    await stores.add('disks', `local://${elsewhere}`, aCall());
    it.api.remove('/api/v1/namespaces/shop/persistentvolumeclaims', 'data');
    await written({ status: { phase: 'Released' } });
    await eventually(async () => (await it.notes('VolumeFailedDelete')).join()).toMatch(
      /'disks' is another one than when the volume was made/,
    );
    expect((await volumes())[0]?.metadata.finalizers).toEqual([volumeFinalizer]);
  });

  test('is found by its own PersistentVolume, where others call theirs the same', async () => {
    const nodes = await twoNodes();
    const handle = 'disks..shared';
    for (const [at, node] of nodes.entries()) {
      await node.answer({
        method: 'POST',
        path: '/v1/volumes',
        body: { store: 'disks', name: 'shared', bytes: '1024' },
      });
      const expressions = [{ key: nodeTopologyKey, operator: 'In', values: [`node-${at + 1}`] }];
      const affinity = { nodeSelectorTerms: [{ matchExpressions: expressions }] };
      const name = `written-${at + 1}`;
      const spec = {
        ...{ capacity: { storage: '1Ki' }, nodeAffinity: { required: affinity } },
        ...{ claimRef: { namespace: 'shop', name, uid: `uid-of-${name}` } },
        csi: { driver: 'local.stowage.dev', volumeHandle: handle, volumeAttributes: { store: 'disks' } },
      };
      it.api.put(paths.volumes, { metadata: { name }, spec, status: { phase: 'Bound' } });
    }
    const asking = aClaim('written-2', { volumeName: 'written-2', resources: { requests: { storage: '2Ki' } } });
    it.api.put(paths.claims, { ...asking, status: { phase: 'Bound', capacity: { storage: '1Ki' } } });
    lead();
    await eventually(async () => (await it.list(claims))[0]?.status?.capacity).toEqual({ storage: '2Ki' });
    const sizes = await Promise.all(nodes.map(async (node) => (await node.volumes())[0]?.bytes));
    expect(sizes).toEqual([1024n, 2048n]);
  });

  test('on a node that is gone says what can be done', async () => {
    await aVolume();
    it.agents.lose('node-1');
    it.api.remove(paths.nodes, 'node-1');
    await eventually(() => it.caches.nodes.get('node-1')).toBe(undefined);
    it.api.remove('/api/v1/namespaces/shop/persistentvolumeclaims', 'data');
    await written({ status: { phase: 'Released' } });
    await eventually(async () => (await it.notes('VolumeFailedDelete')).join()).toMatch(
      /on node 'node-1', which is not in the cluster any more.*Retain/,
    );
    expect(await volumes()).toHaveLength(1);
  });

  test('grows on its node, and kubelets have nothing left to do', async () => {
    const [one] = await aVolume();
    const claim = aClaim('data', { volumeName: 'pvc-uid-of-data', resources: { requests: { storage: '3Gi' } } });
    it.api.put(paths.claims, { ...claim, status: { phase: 'Bound', capacity: { storage: '1Gi' } } });
    await eventually(async () => (await it.list(claims))[0]?.status?.capacity).toEqual({ storage: '3Gi' });
    expect((await one.volumes())[0]?.bytes).toBe(3n * gib);
    expect((await volumes())[0]?.spec.capacity).toEqual({ storage: '3Gi' });
  });

  test('that was made for a claim which is gone, or has another, is taken away after a while', async () => {
    const [one] = await twoNodes();
    for (const name of ['gone', 'other', 'waits', 'by-hand']) await makeFor(name, one);
    it.api.put(paths.claims, aClaim('other', { volumeName: 'of-somebody-else' }));
    it.api.put(paths.claims, aLocalClaim('waits'));
    const byHand = (await one.volumes()).find(({ name }) => (name as string) === 'by-hand');
    const csi = { driver: 'local.stowage.dev', volumeHandle: byHand?.id ?? '' };
    it.api.put(paths.volumes, { metadata: { name: 'written' }, spec: { csi } });
    const names = async () => (await one.volumes()).map(({ name }) => name as string).toSorted();
    const young = it.start(createNodeVolumes);
    await eventually(() => young.counts().again).toBe(2);
    expect(await names()).toHaveLength(4);
    it.start((parts) => createNodeVolumes({ ...parts, clock: createFakeClock(Date.now() + 3_600_000) }));
    await eventually(names).toEqual(['by-hand', 'waits']);
  });

  test('that nobody claims is taken away when it is empty, and reported when it is not', async () => {
    const [one] = await twoNodes();
    // Two of claims whose volume is on the other node, and one of a claim that waits.
    for (const name of ['empty', 'full', 'waits']) await makeFor(name, one);
    writeFileSync(join(one.server.folder, 'disks', 'full', 'file'), 'x');
    mkdirSync(join(one.server.folder, 'disks', 'not-ours'));
    for (const name of ['empty', 'full']) {
      const csi = { driver: 'local.stowage.dev', volumeHandle: `sv1-other-${name}` };
      const claimRef = { namespace: 'shop', name, uid: `uid-of-${name}` };
      it.api.put(paths.volumes, { metadata: { name: `pvc-uid-of-${name}` }, spec: { csi, claimRef } });
    }
    it.api.put(paths.claims, aLocalClaim('waits'));
    lead();
    await eventually(async () => (await it.notes('OrphanedVolumes')).join()).toMatch(
      /On node node-1, 1 volumes .*: full\./,
    );
    expect((await one.volumes()).map(({ name }) => name as string).toSorted()).toEqual(['full', 'waits']);
  });
});
