import { execFile } from 'node:child_process';
import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { createCredential } from '#cluster/leader/certificate.ts';
import { serverNames } from '#cluster/names.ts';
import { lacks } from '#testbed/lacks.ts';
import {
  type AccountController,
  accountConfig,
  controllerPort,
  startControllerAsAccount,
} from './account-controller.ts';
import { type Filer, startFiler } from './agent-filer.ts';
import {
  type ChartFixture,
  chart,
  claim,
  deployment,
  killKeeperAndAgent,
  namespace,
  startChartFixture,
} from './chart-fixture.ts';
import { type Right, refusalOf, rightsOf, roleWithout, titleOf } from './chart-rights.ts';
import { freeLease } from './controller-process.ts';

const { signal } = new AbortController();
const pollOptions = { interval: 100, timeout: 150_000 };
const components = ['root', 'mount', 'netns', 'firewall', 'kubernetes', 'busybox', 'helm', 'ganesha', 'fuse'] as const;

/** Rights that other tests cover, because their use takes too long here. */
const testedElsewhere = {
  // Needed for an Event that repeats within five minutes: src/controllers/machinery/events.test.ts
  controller: ['patch events'],
};

/**
 * Rights that can be removed together, because each missing one causes an error of its own, and the actions that use
 * them.
 */
interface Round {
  readonly rights: readonly string[];
  /** Runs before the controller starts. */
  readonly before?: () => Promise<unknown>;
  /** Runs while the controller runs. */
  readonly meanwhile?: (controller: AccountController) => Promise<unknown>;
}

describe.skipIf(lacks(...components))('every right of Stowage’s accounts', () => {
  let fixture: ChartFixture;
  let filer: Filer;
  let config: string;
  let suffix = 0;

  beforeAll(async () => {
    fixture = await startChartFixture(signal);
    filer = await startFiler(fixture.cluster, signal);
    // The test runs the controller as a process instead of a pod, because a process starts and stops faster.
    const values = 'image.tag=testbed,controller.nodeSelector.nowhere=true';
    await fixture.helm('install', 'stowage', chart, '--create-namespace', '--set-string', values);
    config = await accountConfig(fixture.cluster, 'stowage-controller');
    const { uri, options } = filer.spec;
    for (const name of ['silver', 'gold']) await mkdir(join(filer.exported, name));
    await fixture.cluster.apply(
      ...['silver', 'gold'].map((name) => ({
        apiVersion: 'stowage.dev/v1',
        kind: 'Store',
        metadata: { name },
        spec: { uri: `${uri}/${name}`, options, storageClass: {} },
      })),
    );
    await using _ = await startControllerAsAccount(fixture.cluster, config);
    await fixture.cluster.apply(...['grows', 'goes-1', 'goes-2', 'goes-3'].map((name) => silverClaim(name)));
    await waitUntilBound('grows', 'goes-1', 'goes-2', 'goes-3');
  }, 400_000);
  afterAll(async () => {
    await filer?.[Symbol.asyncDispose]();
    await fixture?.[Symbol.asyncDispose]();
  }, 60_000);

  const silverClaim = (name: string): object => claim({ name, storageClassName: 'silver', mode: 'ReadWriteMany' });
  const waitUntilBound = (...names: readonly string[]): Promise<string> =>
    fixture.cluster.kubectl(
      'wait',
      '--for=jsonpath={.status.phase}=Bound',
      '--timeout=90s',
      ...names.map((name) => `pvc/${name}`),
    );
  const { kubectl, ownKubectl, apply } = {
    kubectl: (...words: readonly string[]) => fixture.cluster.kubectl(...words),
    ownKubectl: (...words: readonly string[]) => fixture.namespacedKubectl(...words),
    apply: (...objects: readonly object[]) => fixture.cluster.apply(...objects),
  };
  const remove = (...what: readonly string[]): Promise<string> => ownKubectl('delete', ...what, '--ignore-not-found');
  const merge = (what: readonly string[], body: object): Promise<string> =>
    kubectl('patch', ...what, '--type=merge', '--patch', JSON.stringify(body));
  const expandClaim = (): Promise<string> =>
    merge(['pvc', 'grows'], { spec: { resources: { requests: { storage: `${64 + ++suffix}Mi` } } } });
  const deleteClaim = (which: number): Promise<string> => kubectl('delete', 'pvc', `goes-${which}`, '--wait=false');
  const createClaim = (): Promise<string> => apply(silverClaim(`comes-${++suffix}`));
  const slice = (addressType: 'IPv4' | 'IPv6', address: string): object => ({
    apiVersion: 'discovery.k8s.io/v1',
    kind: 'EndpointSlice',
    addressType,
    metadata: { name: 'stowage-leader', namespace, labels: { 'kubernetes.io/service-name': 'stowage' } },
    endpoints: [{ addresses: [address] }],
    ports: [{ name: 'https', port: 8443, protocol: 'TCP' }],
  });
  const foreignEndpoints = {
    apiVersion: 'v1',
    kind: 'Endpoints',
    metadata: { name: 'stowage', namespace },
    subsets: [{ addresses: [{ ip: '10.1.2.3' }], ports: [{ name: 'https', port: 8443 }] }],
  };
  const secret = (type: string, data: object): object => ({
    apiVersion: 'v1',
    kind: 'Secret',
    metadata: { name: 'stowage-tls', namespace },
    type,
    data,
  });
  const invalidPem = Buffer.from('nothing').toString('base64');
  const capacity = (storageClassName: string): object => ({
    apiVersion: 'storage.k8s.io/v1',
    kind: 'CSIStorageCapacity',
    storageClassName,
    capacity: '1Ki',
    metadata: { name: 'left', namespace, labels: { 'app.kubernetes.io/managed-by': 'stowage' } },
    nodeTopology: {},
  });
  const ghost = {
    apiVersion: 'v1',
    kind: 'Node',
    metadata: { name: 'ghost' },
    spec: { taints: [{ key: 'node.kubernetes.io/out-of-service', effect: 'NoExecute' }] },
  };
  /** A local volume of a node that does not exist. */
  const volumeOfMissingNode = (): object => {
    const { metadata, ...rest } = claim({
      name: `astray-${++suffix}`,
      storageClassName: 'local',
      mode: 'ReadWriteOnce',
    }) as { readonly metadata: object };
    return { ...rest, metadata: { ...metadata, annotations: { 'volume.kubernetes.io/selected-node': 'nowhere' } } };
  };
  /** Calls the API with the rights of a viewer. */
  const asViewer = async (path: string): Promise<string> => {
    const account = ['create', 'token', 'stowage-viewer', '--namespace', namespace, '--audience=stowage.dev'];
    const [first, ...inside] = fixture.cluster.network.inside;
    const fetchScript = `const { status } = await fetch(process.argv[1], { headers: { authorization: process.argv[2] } }); console.log(status)`;
    const node = [process.execPath, '--input-type=module', '--eval', fetchScript];
    const url = `https://${controllerPort.host}:${controllerPort.port}${path}`;
    const env = { ...process.env, NODE_TLS_REJECT_UNAUTHORIZED: '0' };
    const words = [...inside, ...node, url, `Bearer ${await kubectl(...account)}`];
    return (await promisify(execFile)(first, words, { env, signal, timeout: 30_000 })).stdout.trim();
  };
  /** Creates an application whose claim allows Stowage to evict the pod. */
  async function createEvictableApplication(): Promise<void> {
    const name = `used-${++suffix}`;
    const annotations = { 'stowage.dev/restart-consumers': 'true' };
    const { metadata, ...rest } = silverClaim(name) as { readonly metadata: object };
    await kubectl('cordon', fixture.cluster.nodes[1]?.name ?? '');
    await apply({ ...rest, metadata: { ...metadata, annotations } });
    await using _ = await startControllerAsAccount(fixture.cluster, config);
    await apply(deployment(name, fixture.busybox));
    await kubectl('rollout', 'status', `deployment/${name}`, '--timeout=90s');
  }
  /** Kills the agent and the keeper of a node together, so that the mounts of its pods must be replaced. */
  const loseMount = (): Promise<void> => killKeeperAndAgent(fixture, 0);
  const listedResources = ['persistentvolumeclaims', 'persistentvolumes', 'storageclasses', 'stores', 'nodes'];
  const watchedResources = [...listedResources, 'csistoragecapacities', 'secrets stowage-tls', 'configmaps stowage-ca'];

  const rounds: readonly Round[] = [
    { rights: watchedResources.map((what) => `list ${what}`) },
    {
      rights: [...watchedResources, 'endpointslices stowage-leader', 'endpoints stowage'].map(
        (what) => `watch ${what}`,
      ),
    },
    { rights: ['get leases stowage-controller'] },
    { rights: ['create leases'], before: () => remove('lease', 'stowage-controller') },
    { rights: ['update leases stowage-controller'] },
    { rights: ['get namespaces kube-system'] },
    {
      rights: [
        'create secrets',
        'create storageclasses',
        'patch stores/status',
        'create persistentvolumes',
        'get nodes',
        'get configmaps stowage-nodes',
      ],
      before: async () => {
        await remove('secret', 'stowage-tls');
        await kubectl('delete', 'storageclass', 'gold');
        await merge(['store', 'silver', '--subresource=status'], { status: null });
        await apply(ghost);
        await createClaim();
      },
    },
    {
      rights: [
        'create configmaps',
        'delete storageclasses',
        'get persistentvolumes',
        'patch persistentvolumeclaims/status',
        'patch persistentvolumeclaims',
        // The claim of the previous round gets its volume now, and an Event that reports it.
        'get csidrivers file.stowage.dev,local.stowage.dev',
        'create events',
      ],
      before: async () => {
        await remove('configmap', 'stowage-ca');
        await remove('csistoragecapacity', '--all');
        await merge(['store', 'local'], { spec: { storageClass: { reclaimPolicy: 'Retain' } } });
        await deleteClaim(1);
        await expandClaim();
        await apply(volumeOfMissingNode());
      },
    },
    {
      rights: ['create endpointslices', 'create endpoints', 'patch persistentvolumes', 'create csistoragecapacities'],
      before: async () => {
        await remove('endpointslice/stowage-leader', 'endpoints/stowage');
        await remove('csistoragecapacity', '--all');
        await deleteClaim(2);
      },
    },
    {
      rights: ['update secrets stowage-tls', 'delete persistentvolumes', 'delete csistoragecapacities'],
      before: async () => {
        await remove('secret', 'stowage-tls');
        await apply(
          secret('kubernetes.io/tls', { 'tls.crt': invalidPem, 'tls.key': invalidPem }),
          capacity('none-such'),
        );
        await deleteClaim(3);
      },
    },
    {
      rights: ['delete secrets stowage-tls', 'get persistentvolumeclaims', 'create persistentvolumes'],
      before: async () => {
        await remove('secret', 'stowage-tls');
        await apply(secret('Opaque', { more: invalidPem }), silverClaim('abandoned'));
      },
      meanwhile: async (controller) => {
        // The volume exists, and the claim is deleted before the controller has written the PV.
        await expect.poll(controller.output, pollOptions).toMatch(/cannot create resource \\"persistentvolumes\\"/);
        await kubectl('delete', 'pvc', 'abandoned', '--wait=false');
      },
    },
    {
      rights: ['update configmaps stowage-ca', 'patch csistoragecapacities'],
      before: async () => {
        await remove('secret', 'stowage-tls');
        const [name = ''] = (await ownKubectl('get', 'csistoragecapacity', '--output=name')).split('\n');
        await ownKubectl('patch', name, '--type=merge', '--patch', JSON.stringify({ capacity: '1Ki' }));
      },
    },
    {
      rights: ['update endpointslices stowage-leader', 'update endpoints stowage'],
      before: async () => {
        await remove('endpointslice/stowage-leader', 'endpoints/stowage');
        await apply(slice('IPv4', '10.1.2.3'), foreignEndpoints);
      },
    },
    {
      rights: ['delete endpointslices stowage-leader', 'delete endpoints stowage'],
      before: async () => {
        await remove('endpointslice', 'stowage-leader');
        await apply(slice('IPv6', 'fd00::1'));
      },
      meanwhile: async (controller) => {
        await expect.poll(controller.output, pollOptions).toMatch(/cannot delete resource \\"endpointslices\\"/);
        await controller.stop();
      },
    },
    { rights: ['list endpointslices stowage-leader', 'list endpoints stowage'] },
    {
      rights: ['get endpointslices stowage-leader', 'get endpoints stowage'],
      meanwhile: async (controller) => {
        await expect.poll(controller.output, pollOptions).toContain('the Service points to this process');
        await controller.stop();
      },
    },
    { rights: ['create tokenreviews'] },
    {
      rights: ['create subjectaccessreviews', 'patch configmaps stowage-nodes'],
      before: () => remove('configmap/stowage-nodes', 'endpointslice/stowage-leader'),
      meanwhile: async (controller) => {
        await expect.poll(controller.output, pollOptions).toContain('the Service points to this process');
        await asViewer('/v1/stores');
      },
    },
    { rights: ['get pods'], before: createEvictableApplication, meanwhile: loseMount },
    { rights: ['create pods/eviction'], before: createEvictableApplication, meanwhile: loseMount },
  ];

  const controllerRights = rightsOf('stowage-controller');
  const find = (title: string): Right => {
    const found = controllerRights.find((right) => titleOf(right) === title);
    if (found === undefined) throw new Error(`there is no right '${title}'`);
    return found;
  };

  test('is removed in a test of this file or in another test', () => {
    const testedRights = [...rounds.flatMap(({ rights }) => rights), ...testedElsewhere.controller];
    expect([...new Set(testedRights)].sort()).toEqual(controllerRights.map(titleOf).sort());
  });

  test.each(rounds.map((round) => [round.rights.join(', '), round] as const))(
    'is needed by the controller: %s',
    async (_, { rights: titles, before, meanwhile }) => {
      const rights = titles.map(find);
      await freeLease(fixture.cluster, namespace);
      await before?.();
      await using _taken = await roleWithout(fixture.cluster, rights);
      await using controller = await startControllerAsAccount(fixture.cluster, config);
      const rightsWithoutError = (): readonly string[] =>
        rights.filter((right) => !controller.output().includes(refusalOf(right))).map(titleOf);
      await meanwhile?.(controller);
      await expect.poll(rightsWithoutError, pollOptions).toEqual([]);
    },
    400_000,
  );

  test.each(['list', 'watch'])(
    'is needed by agents: %s',
    async (verb) => {
      const rights = rightsOf('stowage-agent').filter((right) => right.verb === verb);
      expect(rights.length).toBe(3);
      await using _taken = await roleWithout(fixture.cluster, rights);
      const agents = ['--selector=app.kubernetes.io/component=agent', '--field-selector=spec.nodeName=node-2'];
      await ownKubectl('delete', 'pod', ...agents, '--wait');
      const output = (): Promise<string> =>
        ownKubectl('logs', ...agents.slice(0, 1), '--tail=-1', '--prefix').catch(String);
      const rightsWithoutError = async (): Promise<readonly string[]> => {
        const log = await output();
        return rights.filter((right) => !log.includes(refusalOf(right))).map(titleOf);
      };
      await expect.poll(rightsWithoutError, pollOptions).toEqual([]);
    },
    90_000,
  );

  test('is list or watch for agents', () => {
    expect([...new Set(rightsOf('stowage-agent').map(({ verb }) => verb))].sort()).toEqual(['list', 'watch']);
  });

  test('is needed to read a Secret with the administrator’s certificate', async () => {
    const { cert, key } = createCredential(serverNames(namespace), Date.now());
    const [crt, secretKey] = [cert, key].map((text) => Buffer.from(text).toString('base64'));
    await apply({
      apiVersion: 'v1',
      kind: 'Secret',
      metadata: { name: 'given', namespace },
      type: 'kubernetes.io/tls',
      data: { 'tls.crt': crt, 'tls.key': secretKey },
    });
    await fixture.helm('upgrade', 'stowage', chart, '--reuse-values', '--set', 'tls.secretName=given');
    const start = async () => {
      await ownKubectl('delete', 'lease/stowage-controller', 'endpointslice/stowage-leader', '--ignore-not-found');
      return await startControllerAsAccount(fixture.cluster, config, '--tls-secret', 'given');
    };
    const right = { role: 'stowage-controller', where: 'own', resource: 'secrets', names: 'given' } as const;
    for (const verb of ['list', 'watch']) {
      await using _taken = await roleWithout(fixture.cluster, [{ ...right, verb }]);
      await using controller = await start();
      await expect.poll(controller.output, pollOptions).toContain(refusalOf({ ...right, verb }));
    }
    await using controller = await start();
    await expect.poll(controller.output, pollOptions).toContain('the Service points to this process');
    expect(controller.output()).not.toMatch(/cannot \w+ resource \\"secrets/);
  }, 200_000);
});
