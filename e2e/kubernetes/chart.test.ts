import { X509Certificate } from 'node:crypto';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { parseAllDocuments } from 'yaml';
import { type ControllerRegistry, readRegistry, registryAnnotation } from '#app/controller-registry.ts';
import { lacks } from '#testbed/lacks.ts';
import type { Lease } from '#wire/kube/types.ts';
import { type Filer, startFiler } from './agent-filer.ts';
import { podWithVolume } from './agent-objects.ts';
import { expectedOutcomes, grantAllRights, runAttempts } from './chart-accounts.ts';
import { agentWithAllRights, controllerAttempts, controllerWithAllRights, foreignObjects } from './chart-attempts.ts';
import {
  type ChartFixture,
  chart,
  claim,
  killContainer,
  namespace,
  serviceMonitors,
  startChartFixture,
} from './chart-fixture.ts';
import { type EmbeddedServer, embeddedServer } from './embedded-nfs-server.ts';
import { appendLines, type LineWriters, lineWriters } from './line-writers.ts';
import { type PrivateFiler, startPrivateFiler } from './private-filer.ts';
import { type CheckOutcome, checkerAccount, checkFrom, idlePod } from './store-check.ts';

const { signal } = new AbortController();
const pollOptions = { interval: 250, timeout: 90_000 };
const longTimeoutMs = 600_000;
const components = ['root', 'mount', 'netns', 'firewall', 'kubernetes', 'busybox', 'helm', 'ganesha', 'fuse'] as const;

describe.skipIf(lacks(...components))('the chart on a real cluster', () => {
  let fixture: ChartFixture;
  let filer: Filer;
  let privateFiler: PrivateFiler;
  let kubectl: ChartFixture['cluster']['kubectl'];
  let values: string;
  let writers: LineWriters;
  let server: EmbeddedServer;
  let certificates: Awaited<ReturnType<EmbeddedServer['certificates']>>;

  beforeAll(async () => {
    fixture = await startChartFixture(signal);
    ({ kubectl } = fixture.cluster);
    server = embeddedServer(fixture);
    writers = lineWriters(fixture);
    filer = await startFiler(fixture.cluster, signal);
    privateFiler = await startPrivateFiler(fixture.cluster, signal);
    values = join(fixture.cluster.folder, 'values.json');
    const silver = { name: 'silver', ...filer.spec, storageClass: {} };
    const embeddedNFS = { enabled: true, tls: { enabled: true }, volume: { size: '1Gi' } };
    const stores = [silver, { name: 'private', ...privateFiler.spec, storageClass: {} }];
    const monitoring = { enabled: true };
    await writeFile(
      values,
      JSON.stringify({ embeddedNFS, monitoring, stores, storeSecrets: [privateFiler.secretName] }),
    );
    await fixture.cluster.apply(serviceMonitors);
    await kubectl('wait', '--for=condition=Established', 'crd/servicemonitors.monitoring.coreos.com', '--timeout=30s');
  }, 400_000);
  afterAll(async () => {
    await filer?.[Symbol.asyncDispose]();
    await privateFiler?.[Symbol.asyncDispose]();
    await fixture?.[Symbol.asyncDispose]();
  }, 60_000);

  const withTag = (tag: string): readonly string[] => ['--values', values, '--set', `image.tag=${tag}`];
  const waitForRollouts = async (): Promise<void> => {
    const workloads = ['deployment/stowage-controller', 'daemonset/stowage-agent', 'daemonset/stowage-keeper'];
    for (const workload of [...workloads, 'statefulset/stowage-nfs'])
      await fixture.namespacedKubectl('rollout', 'status', workload, '--timeout=120s');
  };
  const pod = (name: string, node: number, volume: string, script = 'sleep 100000'): object =>
    podWithVolume({ name, volume, script, node: fixture.cluster.nodes[node]?.name ?? '', image: fixture.busybox });
  const waitUntilReady = (...names: readonly string[]): Promise<string> =>
    kubectl('wait', '--for=condition=Ready', '--timeout=120s', ...names.map((name) => `pod/${name}`));
  const exec = (name: string, script: string): Promise<string> => kubectl('exec', name, '--', 'sh', '-c', script);
  const runningImages = (): Promise<string> =>
    fixture.namespacedKubectl(
      'get',
      'pods',
      '--field-selector=status.phase=Running',
      '--output=jsonpath={.items[*].spec.containers[*].image}',
    );

  test(
    'is installed, and all pods become ready',
    async () => {
      await kubectl('create', 'namespace', namespace);
      await fixture.cluster.apply(privateFiler.secret(namespace));
      await fixture.helm('install', 'stowage', chart, ...withTag('testbed'));
      await fixture.registerInDns();
      await waitForRollouts();
      certificates = await server.certificates();
      const status = (): Promise<string> =>
        kubectl(
          'get',
          'stores',
          '--output=jsonpath={range .items[*]}{.metadata.name}={.status.conditions[?(@.type=="Ready")].status} {end}',
        );
      await expect.poll(status, pollOptions).toBe('local=True network=True private=True silver=True');
      const classes = await kubectl(
        'get',
        'storageclasses',
        '--output=jsonpath={range .items[*]}{.metadata.name}={.provisioner},{.volumeBindingMode} {end}',
      );
      expect(classes).toBe(
        'local=local.stowage.dev,WaitForFirstConsumer network=file.stowage.dev,Immediate private=file.stowage.dev,Immediate silver=file.stowage.dev,Immediate stowage-nfs=local.stowage.dev,WaitForFirstConsumer',
      );
      const objectNames = await fixture.namespacedKubectl(
        'get',
        'servicemonitors,networkpolicies,poddisruptionbudgets',
        '--output=name',
      );
      for (const kind of ['servicemonitor', 'networkpolicy', 'poddisruptionbudget'])
        expect(objectNames).toContain(kind);
    },
    longTimeoutMs,
  );

  test('serves metrics where the ServiceMonitors point to', async () => {
    for (const component of ['controller', 'agent']) {
      const monitor = ['get', 'servicemonitor', `stowage-${component}`];
      const part =
        '--output=jsonpath={.spec.selector.matchLabels.app\\.kubernetes\\.io/component} {.spec.endpoints[0].port}';
      const [chosen, port] = (await fixture.namespacedKubectl(...monitor, part)).split(' ');
      const options = [
        '--selector',
        `app.kubernetes.io/component=${chosen}`,
        '--output=jsonpath={.items[*].metadata.name}',
      ];
      const services = await fixture.namespacedKubectl('get', 'services', ...options);
      expect(services).toBe(`stowage-${component}-metrics`);
      const path = `/api/v1/namespaces/${namespace}/services/${services}:${port}/proxy/metrics`;
      expect(await kubectl('get', '--raw', path)).toContain('stowage_info');
    }
  });

  test(
    'elects another leader when the leader’s container is killed, and the new leader knows that the old process is dead',
    async () => {
      const lease = async (): Promise<Lease> =>
        JSON.parse(await fixture.namespacedKubectl('get', 'lease/stowage-controller', '--output=json'));
      const processes = async (): Promise<ControllerRegistry> =>
        readRegistry((await lease()).metadata.annotations?.[registryAnnotation]);
      const [leader] = (await processes()).processes;
      expect((await lease()).spec?.holderIdentity).toContain(leader?.pod?.name);
      await killContainer(fixture, leader?.pod?.name ?? '');
      // The next process in that container reports it.
      await expect.poll(async () => (await processes()).dead, pollOptions).toContain(leader?.mark);
      const leaderPod = async (): Promise<string | undefined> => (await processes()).processes[0]?.pod?.name;
      await expect
        .poll(async () => (await lease()).spec?.holderIdentity?.startsWith(`${await leaderPod()}_`), pollOptions)
        .toBe(true);
      await waitForRollouts();
    },
    longTimeoutMs,
  );

  test(
    'provides a local volume without configuration, and a volume of a store from the values',
    async () => {
      await fixture.cluster.apply(
        claim({ name: 'own', storageClassName: 'local', mode: 'ReadWriteOnce' }),
        claim({ name: 'remote', storageClassName: 'silver', mode: 'ReadWriteMany' }),
        pod('own', 0, 'own', appendLines),
        pod('remote', 1, 'remote', appendLines),
      );
      await waitUntilReady('own', 'remote');
      await writers.expectProgress('own', 'remote');
    },
    longTimeoutMs,
  );

  test(
    'gives pods on two nodes the same volume, from the embedded NFS server',
    async () => {
      await fixture.cluster.apply(
        claim({ name: 'shared', storageClassName: 'network', mode: 'ReadWriteMany' }),
        pod('writer', 0, 'shared', appendLines),
        pod('reader', 1, 'shared'),
      );
      await waitUntilReady('writer', 'reader');
      await expect.poll(() => writers.lines('reader'), pollOptions).toBeGreaterThan(3);
      await exec('reader', 'echo back >/data/back && sync');
      await expect.poll(() => exec('writer', 'cat /data/back').catch(String), pollOptions).toBe('back');
    },
    longTimeoutMs,
  );

  test(
    'has an embedded NFS server that requires certificates, and the certificate for mounts can’t open a directory by path',
    async () => {
      const paths = ['/export', '/export/.stowage'];
      const forEachPath = (outcome: unknown) => Object.fromEntries(paths.map((path) => [path, outcome]));
      expect(await server.mountPaths('client', ...paths)).toEqual(forEachPath('mounted'));
      expect(await server.mountPaths('mount', ...paths)).toEqual(forEachPath('ACCES'));
      expect(await server.mountPaths('plain', ...paths)).toEqual(forEachPath('denied'));
      expect(await server.mountPaths('nothing', ...paths)).toEqual(forEachPath('tls'));
    },
    longTimeoutMs,
  );

  test('renews the certificate of the embedded NFS server for a new address, and keeps the clients’ certificates', async () => {
    const words = ['template', 'stowage', chart, '--dry-run=server', '--kube-version=1.30.0'];
    const templateOptions = ['--show-only=templates/nfs.yaml', '--set', 'embeddedNFS.clusterIP=10.96.7.7'];
    const text = await fixture.helm(...words, ...withTag('testbed'), ...templateOptions);
    const objects = parseAllDocuments(text).map((document) => document.toJS());
    const data: Readonly<Record<string, string>> = objects.find(({ kind }) => kind === 'Secret').data;
    const texts = Object.entries(data).map(([key, value]) => [key, Buffer.from(value, 'base64').toString()] as const);
    const changed = texts.filter(([key, value]) => certificates[key] !== value).map(([key]) => key);
    expect(changed.sort()).toEqual(['host', 'server.crt', 'server.key']);
    const certificate = new X509Certificate(Object.fromEntries(texts)['server.crt'] ?? '');
    expect(certificate.checkIP('10.96.7.7')).toBe('10.96.7.7');
    expect(certificate.verify(new X509Certificate(certificates['ca.crt'] ?? '').publicKey)).toBe(true);
  });

  test('refuses a Secret for the embedded NFS server without a certificate for mounts', async () => {
    const names = ['ca.crt', 'server.crt', 'server.key', 'client.crt', 'client.key', 'mount.key'];
    const stringData = Object.fromEntries(names.map((name) => [name, certificates[name] ?? '']));
    const secret = { apiVersion: 'v1', kind: 'Secret', metadata: { name: 'half-nfs-tls', namespace }, stringData };
    await fixture.cluster.apply(secret);
    const words = ['template', 'stowage', chart, '--dry-run=server', '--kube-version=1.30.0'];
    const secretOptions = ['--set', 'embeddedNFS.tls.secretName=half-nfs-tls'];
    await expect(fixture.helm(...words, ...withTag('testbed'), ...secretOptions)).rejects.toThrow(
      'the Secret half-nfs-tls (embeddedNFS.tls.secretName) lacks mount.crt.',
    );
    await fixture.cluster.apply({ ...secret, stringData: { ...stringData, 'mount.crt': certificates['mount.crt'] } });
    await fixture.helm(...words, ...withTag('testbed'), ...secretOptions);
    await fixture.namespacedKubectl('delete', 'secret', 'half-nfs-tls');
  });

  test(
    'uses a server that requires certificates, which only a Secret contains',
    async () => {
      await fixture.cluster.apply(
        claim({ name: 'private', storageClassName: 'private', mode: 'ReadWriteMany' }),
        pod('private', 0, 'private'),
      );
      await waitUntilReady('private');
      expect(await exec('private', 'echo text >/data/file && cat /data/file')).toBe('text');
      expect(await privateFiler.contentsOf('file')).toEqual(['text\n']);
      const logs = await Promise.all([
        kubectl('get', 'stores,persistentvolumes,pods,daemonsets,deployments', '--all-namespaces', '--output=yaml'),
        fixture.namespacedKubectl('logs', '--selector=app.kubernetes.io/name=stowage', '--tail=-1'),
      ]);
      for (const text of logs) expect(text).not.toContain(privateFiler.keyFragment);
      await kubectl('delete', 'pod/private', 'pvc/private', '--timeout=60s');
      await expect.poll(() => privateFiler.contentsOf('file'), pollOptions).toEqual([]);
    },
    longTimeoutMs,
  );

  test(
    'refuses pods with user namespaces, and the error says so',
    async () => {
      const node = fixture.cluster.nodes[0]?.name ?? '';
      const options = { name: 'own-users', volume: 'shared', script: 'sleep 100000', node, image: fixture.busybox };
      await fixture.cluster.apply(podWithVolume({ ...options, more: { hostUsers: false } }));
      const events = (): Promise<string> =>
        kubectl(
          'get',
          'events',
          '--field-selector=involvedObject.name=own-users,reason=FailedMount',
          '--output=jsonpath={.items[*].message}',
        );
      await expect.poll(events, pollOptions).toContain("pod 'default/own-users' has a user namespace");
      await kubectl('delete', 'pod', 'own-users', '--timeout=60s');
    },
    longTimeoutMs,
  );

  test(
    'checks a store from the network of a pod, on the pod’s node',
    async () => {
      const [first, second] = fixture.cluster.nodes;
      await fixture.cluster.apply(
        ...(await checkerAccount()),
        ...[first, second].map((node, at) => idlePod(`idle-${at}`, node?.name ?? '', fixture.busybox)),
      );
      await waitUntilReady('idle-0', 'idle-1');
      const check = async (from: string): Promise<CheckOutcome> => await checkFrom(fixture, 'silver', from);
      // On a busy machine, the check may exceed its own deadlines.
      for (const name of ['idle-0', 'idle-1'])
        await expect
          .poll(() => check(`pod:default/${name}`), pollOptions)
          .toMatchObject({ status: 0, body: { ok: true, from: `pod:default/${name}` } });
      // A pod with hostNetwork.
      const agent = await fixture.namespacedKubectl(
        'get',
        'pods',
        '--selector=app.kubernetes.io/component=agent',
        '--output=jsonpath={.items[0].metadata.name}',
      );
      await expect
        .poll(() => check(`pod:${namespace}/${agent}`), pollOptions)
        .toMatchObject({ status: 0, body: { ok: true } });
      // Blocks the outgoing traffic of this pod only.
      const address = await kubectl('get', 'pod', 'idle-1', '--output=jsonpath={.status.podIP}');
      await second?.inside(
        'sh',
        '-c',
        `for at in /run/netns/*; do if nsenter --net=$at ip -o address | grep -q ' ${address}/'; then nsenter --net=$at ip route del default; fi; done`,
      );
      const failedStep = async (): Promise<string | undefined> =>
        (await check('pod:default/idle-1')).body.steps?.find(({ ok }) => !ok)?.step;
      await expect.poll(failedStep, pollOptions).toBe('connect');
      expect(await check('pod:default/idle-1')).toMatchObject({ status: 1, body: { ok: false } });
      await expect.poll(() => check('pod:default/idle-0'), pollOptions).toMatchObject({ status: 0 });
      expect(await check('pod:default/nobody')).toMatchObject({
        stderr: expect.stringContaining("pod 'default/nobody' not found, or you are not allowed to read it"),
      });
      // Without the right to get pods, the error doesn't reveal whether a pod exists.
      await kubectl('patch', 'clusterrole', 'checker', '--type=json', '--patch=[{"op":"remove","path":"/rules/2"}]');
      await expect
        .poll(() => check('pod:default/idle-0'), pollOptions)
        .toMatchObject({
          stderr: expect.stringContaining("pod 'default/idle-0' not found, or you are not allowed to read it"),
        });
      expect(await check('container:web')).toMatchObject({ stderr: expect.stringContaining('only from pods') });
      await kubectl('delete', 'pod', 'idle-0', 'idle-1', '--timeout=60s');
    },
    longTimeoutMs,
  );

  test(
    'limits each account to its own objects',
    async () => {
      await expect
        .poll(() => fixture.namespacedKubectl('get', 'configmaps', '--output=name'), pollOptions)
        .toContain('stowage-nodes');
      await using _ = await foreignObjects(fixture);
      const attempts = await controllerAttempts(fixture);
      expect(await runAttempts(fixture, 'controller', attempts)).toEqual(expectedOutcomes(attempts));
      const agent = `--as=system:serviceaccount:${namespace}:stowage-agent`;
      await expect(kubectl('get', 'secrets', '--all-namespaces', agent)).rejects.toThrow('forbidden');
      // The policy applies even to an account with all rights.
      for (const [name, more] of [
        ['controller', controllerWithAllRights] as const,
        ['agent', agentWithAllRights] as const,
      ]) {
        await using _all = await grantAllRights(fixture, name);
        await expect.poll(() => runAttempts(fixture, name, more), pollOptions).toEqual(expectedOutcomes(more));
      }
    },
    longTimeoutMs,
  );

  test('says what to do when the Store CRD is too old', async () => {
    await kubectl('annotate', 'crd', 'stores.stowage.dev', 'stowage.dev/schema=0', '--overwrite');
    const error = await fixture.helm('upgrade', 'stowage', chart, ...withTag('testbed')).catch(String);
    expect(error).toContain('helm show crds CHART | kubectl apply --server-side --force-conflicts -f -');
    const definitions = ['--server-side', '--force-conflicts', '--filename', join(chart, 'crds')];
    await kubectl('apply', ...definitions);
  });

  test(
    'is upgraded and rolled back while pods write without errors',
    async () => {
      await fixture.helm('upgrade', 'stowage', chart, ...withTag('next'), '--set', 'logLevel=debug');
      await waitForRollouts();
      expect(await server.certificates()).toEqual(certificates);
      await expect
        .poll(async () => new Set((await runningImages()).split(' ')), pollOptions)
        .toEqual(new Set(['stowage:next']));
      await writers.expectProgress('own', 'remote', 'writer');
      await fixture.helm('rollback', 'stowage');
      await waitForRollouts();
      await expect
        .poll(async () => new Set((await runningImages()).split(' ')), pollOptions)
        .toEqual(new Set(['stowage:testbed']));
      await writers.expectRunning('own', 'remote', 'writer', 'reader');
      await writers.expectProgress('own', 'remote', 'writer');
      await writers.expectWholeLogs('own', 'remote', 'writer');
      await writers.expectRunning('own', 'remote', 'writer', 'reader');
    },
    longTimeoutMs,
  );

  test(
    'leaves volumes, stores and mounts alone when it is uninstalled, and uses them again when it is reinstalled',
    async () => {
      await fixture.helm('uninstall', 'stowage');
      await expect
        .poll(
          () =>
            fixture.namespacedKubectl(
              'get',
              'pods',
              '--selector=app.kubernetes.io/component in (controller, agent)',
              '--output=name',
            ),
          pollOptions,
        )
        .toBe('');
      expect(await kubectl('get', 'stores', '--output=jsonpath={.items[*].metadata.name}')).toBe(
        'local network private silver',
      );
      const phases = await kubectl('get', 'pv', '--output=jsonpath={.items[*].status.phase}');
      expect(phases).toBe('Bound Bound Bound Bound');
      await writers.expectProgress('own', 'remote', 'writer');
      await fixture.helm('install', 'stowage', chart, ...withTag('testbed'));
      await fixture.registerInDns();
      await waitForRollouts();
      expect(await server.certificates()).toEqual(certificates);
      await writers.expectRunning('own', 'remote', 'writer', 'reader');
      await writers.expectProgress('own', 'remote', 'writer');
      await writers.expectWholeLogs('own', 'remote', 'writer');
      await writers.expectRunning('own', 'remote', 'writer', 'reader');
      // The old keepers have ended, because new ones took over.
      await expect
        .poll(
          () =>
            fixture.namespacedKubectl(
              'get',
              'pods',
              '--selector=app.kubernetes.io/component=keeper',
              '--output=jsonpath={.items[*].metadata.deletionTimestamp}',
            ),
          pollOptions,
        )
        .toBe('');
    },
    longTimeoutMs,
  );

  test(
    'leaves nothing behind when pods and their claims are deleted',
    async () => {
      await kubectl('delete', 'pod', 'own', 'remote', 'writer', 'reader', '--timeout=90s');
      await kubectl('delete', 'pvc', 'own', 'remote', 'shared', '--timeout=60s');
      await expect
        .poll(() => kubectl('get', 'pv', '--output=jsonpath={.items[*].spec.claimRef.name}'), pollOptions)
        .toBe('stowage-nfs');
    },
    longTimeoutMs,
  );

  test(
    'keeps the disk of the embedded NFS server when its claim is deleted',
    async () => {
      await fixture.namespacedKubectl('delete', 'statefulset/stowage-nfs', 'pvc/stowage-nfs', '--timeout=90s');
      const disk = (about: string): Promise<string> => kubectl('get', 'pv', `--output=jsonpath={.items[*].${about}}`);
      await expect.poll(() => disk('status.phase'), pollOptions).toBe('Released');
      const name = await disk('metadata.name');
      const listScript = `ls -d /var/lib/stowage/stores/local/${name}/export 2>/dev/null || :`;
      const found = await Promise.all(fixture.cluster.nodes.map(({ inside }) => inside('sh', '-c', listScript)));
      expect(found.join('')).toContain('/export');
    },
    longTimeoutMs,
  );
});
