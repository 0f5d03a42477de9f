import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readdirSync, readFileSync, statSync } from 'node:fs';
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import process from 'node:process';
import { createInterface } from 'node:readline';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import { repository } from '#testbed/component.ts';
import { buildImage } from '#testbed/image.ts';
import { binaries } from '#testbed/kubernetes/build.ts';
import { importBusybox } from '#testbed/kubernetes/images.ts';
import { addresses } from '#testbed/kubernetes/network.ts';
import { lacks, toolPath } from '#testbed/lacks.ts';
import {
  type ForeignDriver,
  foreignClaim,
  foreignClass,
  foreignClasses,
  foreignDirectory,
  foreignVolume,
} from '#testing/foreign-volumes.ts';
import type { PersistentVolume, PersistentVolumeClaim } from '#wire/kube/types.ts';
import { type Filer, startFiler } from './agent-filer.ts';
import { podWithVolume } from './agent-objects.ts';
import { type ChartFixture, claim, startChartFixture } from './chart-fixture.ts';

const { signal } = new AbortController();
const pollOptions = { interval: 250, timeout: 90_000 };
const longTimeoutMs = 400_000;
const components = ['root', 'mount', 'netns', 'firewall', 'kubernetes', 'busybox', 'helm', 'ganesha', 'fuse'] as const;
const page = readFileSync(join(repository, 'docs', 'kubernetes.md'), 'utf8');

const sectionOf = (title: string): string => page.split(`\n## ${title}\n`)[1]?.split('\n## ')[0] ?? '';

/** The commands of a section as written, grouped by code block. */
function commandsIn(title: string): readonly (readonly string[])[] {
  const blocks = sectionOf(title).matchAll(/^ *```text\n(.*?)^ *```/gms);
  return [...blocks].map(([, body = '']) =>
    body.split('\n').flatMap((line) => /^ *(?:\$ )?((?:kubectl|helm|docker) .*)$/.exec(line)?.[1] ?? []),
  );
}

describe.skipIf(lacks(...components))('the documentation page about Kubernetes', () => {
  let fixture: ChartFixture;
  let filer: Filer;
  let kubectl: ChartFixture['cluster']['kubectl'];
  let exportLocation: { readonly server: string; readonly path: string };
  let env: Readonly<Record<string, string>>;

  beforeAll(async () => {
    fixture = await startChartFixture(signal);
    const { cluster } = fixture;
    ({ kubectl } = cluster);
    filer = await startFiler(cluster, signal);
    exportLocation = { server: addresses.controlPlane, path: filer.exported };
    // Readers of the page have this image in a registry.
    await cluster.importImage(await buildImage(signal), 'docker.io/library/stowage:0.1.0');
    const importer = { importImage: (tar: string) => cluster.importImage(tar, 'docker.io/library/busybox:latest') };
    await importBusybox(importer, signal);
    const paths = [join(repository, 'bin'), binaries(), dirname(toolPath('helm')), process.env['PATH']];
    env = { PATH: paths.join(':'), HOME: cluster.folder, KUBECONFIG: cluster.kubeconfig };
  }, 400_000);
  afterAll(async () => {
    await filer?.[Symbol.asyncDispose]();
    await fixture?.[Symbol.asyncDispose]();
  }, 60_000);

  /** Runs a command as written in the page, in a clone of the repository. */
  const shell = async (command: string): Promise<string> =>
    (await promisify(execFile)('bash', ['-c', command], { cwd: repository, env, signal, timeout: 330_000 })).stdout;
  const runAll = async (commands: readonly string[]): Promise<void> => {
    for (const command of commands) await shell(command);
  };
  const read = async <T>(...what: readonly string[]): Promise<T> =>
    JSON.parse(await kubectl('get', ...what, '--output=json')) as T;
  const claimOf = (name: string): Promise<PersistentVolumeClaim> => read('pvc', name, '--namespace=shop');
  const volumeOf = (name: string): Promise<PersistentVolume> => read('pv', name);
  const volumes = async (): Promise<readonly string[]> =>
    (await kubectl('get', 'pv', '--output=jsonpath={.items[*].metadata.name}')).split(' ');

  /** The upgrade gives the controller and agents certificates, so Kubernetes replaces their pods. */
  async function untilReplaced(): Promise<void> {
    for (const what of ['deployment/stowage-controller', 'daemonset/stowage-agent'])
      await fixture.namespacedKubectl('rollout', 'status', what, '--timeout=180s');
    const ending = '--output=jsonpath={.items[*].metadata.deletionTimestamp}';
    await expect.poll(() => fixture.namespacedKubectl('get', 'pods', ending), pollOptions).toBe('');
    // No controller answers until the new one leads.
    await expect.poll(() => shell('kubectl stowage status').then(() => 'reached', String), pollOptions).toBe('reached');
  }

  test(
    'has a quick start that works',
    async () => {
      const [install = [], upgrade = []] = commandsIn('Quick start');
      expect(install).toHaveLength(5);
      const [build = '', ...rest] = install;
      expect(build).toContain(':0.1.0');
      await runAll(rest.slice(0, -1).map((command) => command.replaceAll('REGISTRY', 'docker.io/library')));
      await expect.poll(() => shell(rest.at(-1) ?? ''), pollOptions).toMatch(/^\w+ .* UTC \d{4}\n$/);
      expect(await kubectl('get', 'stores')).toMatch(/^NAME +KIND +READY +CAPACITY +VOLUMES +AGE\nlocal +local +True /);
      await runAll(upgrade);
      await untilReplaced();
      // The controller creates the class after it has opened the new store.
      const getClass = () => kubectl('get', 'storageclass', 'network', '--output=name').catch(String);
      await expect.poll(getClass, pollOptions).toBe('storageclass.storage.k8s.io/network');
    },
    longTimeoutMs,
  );

  test(
    'shows only kubectl stowage commands that exist',
    async () => {
      const [shown = []] = commandsIn('kubectl stowage');
      expect(shown.length).toBeGreaterThan(4);
      await runAll(shown);
    },
    longTimeoutMs,
  );

  test(
    'shows how two pods on two nodes share a volume',
    async () => {
      const [, , share = []] = commandsIn('Quick start');
      const [apply = '', ready = '', logs = ''] = share;
      await fixture.registerInDns();
      await shell(apply);
      await shell(ready).catch(async (cause: Error) => {
        const objects = ['describe', 'store/network', 'pvc/board', 'pod/board-writer', 'pod/board-reader'];
        throw new Error(
          `${cause.message}\n${await kubectl(...objects)}\n${await fixture.namespacedKubectl('get', 'pods,pvc')}`,
          {
            cause,
          },
        );
      });
      await expect.poll(() => shell(logs), pollOptions).toMatch(/^\w+ .* UTC \d{4}\n$/);
      const nodePath = '--output=jsonpath={.items[*].spec.nodeName}';
      const nodes = await kubectl('get', 'pods', 'board-writer', 'board-reader', nodePath);
      expect(new Set(nodes.split(' ')).size).toBe(2);
      await shell(`${apply.replace(' apply ', ' delete ')} --timeout=120s`);
    },
    longTimeoutMs,
  );

  test(
    'lists mistakes whose errors say what is wrong and what to do',
    async () => {
      const [host, path] = [new URL('nfs://filer.exmaple.invalid/export'), new URL(filer.spec.uri)];
      path.pathname += '-other';
      const { options } = filer.spec;
      const store = (name: string, uri: string, more: object = {}): object => ({
        apiVersion: 'stowage.dev/v1',
        kind: 'Store',
        metadata: { name },
        spec: { uri, options, ...more },
      });
      const parameters = { store: 'small', onDelete: 'archive' };
      await mkdir(`${filer.exported}/small`);
      await fixture.cluster.apply(
        store('wrong-host', host.href),
        store('wrong-path', path.href),
        store('small', `${filer.spec.uri}/small`, { options: { ...options, maxBytes: '1G' }, storageClass: {} }),
        {
          apiVersion: 'storage.k8s.io/v1',
          kind: 'StorageClass',
          metadata: { name: 'odd' },
          provisioner: 'file.stowage.dev',
          parameters,
        },
        claim({ name: 'odd', storageClassName: 'odd', mode: 'ReadWriteMany' }),
        { ...foreignClaim('csi', 'default', 'large'), spec: { ...largeClaim, storageClassName: 'small' } },
      );
      const describeObject = async (what: string): Promise<string> => {
        const messagePath = '--output=jsonpath={.status.conditions[?(@.type=="Ready")].message}';
        return what.startsWith('store/') ? await kubectl('get', what, messagePath) : await kubectl('describe', what);
      };
      await expect
        .poll(() => describeObject('store/wrong-host'), pollOptions)
        .toMatch(/the host name filer\.exmaple\.invalid does not resolve\. Check the name in the store's URI/);
      await expect
        .poll(() => describeObject('store/wrong-path'), pollOptions)
        .toMatch(/-other and does not list it: .*; it exports .*\. Correct the path in the store's URI/);
      await expect
        .poll(() => describeObject('pvc/odd'), pollOptions)
        .toMatch(/has the unknown parameter 'onDelete'.*Allowed are: /);
      await expect
        .poll(() => describeObject('pvc/large'), pollOptions)
        .toMatch(/1GiB of 1GiB are left\. .* ask the administrator to raise/);
      await kubectl('delete', 'pvc', 'odd', 'large');
      await kubectl('delete', 'store', 'wrong-host', 'wrong-path', 'small');
    },
    longTimeoutMs,
  );

  /** Creates a claim with a volume of another driver, in Kubernetes and on the server. */
  async function provision(
    kind: ForeignDriver,
    name: string,
  ): Promise<{ readonly volume: string; readonly folder: string }> {
    const pendingClaim = await expect
      .poll(() => claimOf(name), pollOptions)
      .toBeDefined()
      .then(() => claimOf(name));
    const folder = join(filer.exported, foreignDirectory(kind, pendingClaim));
    await mkdir(folder, { mode: 0o777 });
    await writeFile(join(folder, 'old'), `of ${name}\n`);
    const made = foreignVolume(kind, pendingClaim, exportLocation);
    await fixture.cluster.apply(made);
    await expect.poll(async () => (await claimOf(name)).status?.phase, pollOptions).toBe('Bound');
    return { volume: made.metadata.name ?? '', folder };
  }

  const [listCommands = [], takeOverCommands = [], undoCommands = [], finishCommands = [], renameCommands = []] =
    commandsIn('Take over from csi-driver-nfs or nfs-subdir-external-provisioner');
  let dbVolume: { readonly volume: string; readonly folder: string };
  let filmsVolume: { readonly volume: string; readonly folder: string };
  let inodes: readonly number[];
  const inodesOf = (folder: string): readonly number[] =>
    [folder, join(folder, 'old')].map((path) => statSync(path).ino);

  test(
    'has a command that finds claims of other drivers and the pods that use them',
    async () => {
      await fixture.cluster.apply(
        { apiVersion: 'v1', kind: 'Namespace', metadata: { name: 'shop' } },
        foreignClass('csi', exportLocation),
        foreignClass('subdir', exportLocation),
        foreignClaim('csi', 'shop', 'films'),
        statefulSet(fixture.busybox),
      );
      dbVolume = await provision('subdir', 'data-db-0');
      filmsVolume = await provision('csi', 'films');
      await mkdir(join(filer.exported, 'films'), { mode: 0o777 });
      await writeFile(join(filer.exported, 'films', 'old'), 'by hand\n');
      inodes = inodesOf(dbVolume.folder);
      // After the directories exist, because the server caches a listing of a directory for a while.
      const store = { apiVersion: 'stowage.dev/v1', kind: 'Store', metadata: { name: 'silver' }, spec: filer.spec };
      await fixture.cluster.apply(store);
      await kubectl('wait', '--for=condition=Ready', 'store/silver', '--timeout=90s');
      const found = await shell(listCommands.join('\n'));
      expect(found).toMatch(
        new RegExp(`shop/data-db-0 +used +${dbVolume.volume} +shop-data-db-0-${dbVolume.volume} +used by pod db-0`),
      );
      expect(found).toMatch(new RegExp(`shop/films +ready +${filmsVolume.volume} +${filmsVolume.volume} `));
      const refused = await shell('kubectl stowage take-over silver shop/data-db-0 || echo "status $?"');
      expect(refused).toMatch(/^skipped shop\/data-db-0: used by pod db-0: .*\nstatus 1\n$/);
      expect((await claimOf('data-db-0')).spec.volumeName).toBe(dbVolume.volume);
    },
    longTimeoutMs,
  );

  test(
    'describes how to turn a directory into a volume by hand',
    async () => {
      const section = sectionOf('Use existing directories');
      const [adopt = []] = commandsIn('Use existing directories');
      expect(adopt).toHaveLength(1);
      await runAll(adopt);
      const objects = /^```yaml\n(.*?)^```/ms.exec(section)?.[1] ?? '';
      const file = join(fixture.cluster.folder, 'films.yaml');
      await writeFile(file, objects);
      await fixture.cluster.apply({ apiVersion: 'v1', kind: 'Namespace', metadata: { name: 'video' } });
      await shell(`kubectl apply -f ${file}`);
      const script = 'cat /data/old && exec sleep 100000';
      const node = fixture.cluster.nodes[0]?.name ?? '';
      const pod = podWithVolume({ name: 'films', volume: 'films', script, node, image: fixture.busybox });
      await fixture.cluster.apply({ ...pod, metadata: { name: 'films', namespace: 'video' } });
      const options = ['--namespace=video', '--timeout=90s'];
      await kubectl('wait', '--for=condition=Ready', 'pod/films', ...options);
      expect(await kubectl('logs', 'films', '--namespace=video')).toBe('by hand');
      await kubectl('delete', 'pod/films', 'pvc/films', ...options);
      await kubectl('delete', 'pv', 'films');
      expect(readdirSync(join(filer.exported, 'films'))).toEqual(['old']);
    },
    longTimeoutMs,
  );

  const expectTakenOver = async (): Promise<void> => {
    expect(await claimOf('data-db-0')).toMatchObject({
      metadata: { labels: { app: 'db' } },
      spec: { volumeName: `${dbVolume.volume}-stowage`, storageClassName: 'nfs-client' },
      status: { phase: 'Bound' },
    });
    for (const name of [dbVolume.volume, `${dbVolume.volume}-stowage`])
      expect((await volumeOf(name)).spec.persistentVolumeReclaimPolicy).toBe('Retain');
    await kubectl('wait', '--for=condition=Ready', 'pod/db-0', '--namespace=shop', '--timeout=120s');
    expect(await kubectl('exec', 'db-0', '--namespace=shop', '--', 'cat', '/data/old')).toBe('of data-db-0');
    await kubectl('exec', 'db-0', '--namespace=shop', '--', 'sh', '-c', 'date >>/data/new && sync /data/new');
    // The pod's files are in the same directory as before.
    expect(readdirSync(dbVolume.folder).sort()).toEqual(['new', 'old']);
    expect(inodesOf(dbVolume.folder)).toEqual(inodes);
  };

  test(
    'has commands that take over a claim, and the claim’s pod keeps its data',
    async () => {
      expect(takeOverCommands).toHaveLength(5);
      await runAll(takeOverCommands);
      await expectTakenOver();
      // A second run changes nothing.
      const uid = (await claimOf('data-db-0')).metadata.uid;
      expect(await shell('kubectl stowage take-over silver shop/data-db-0')).toBe('');
      expect((await claimOf('data-db-0')).metadata.uid).toBe(uid);
    },
    longTimeoutMs,
  );

  test(
    'has commands that give the claim back, after which it can be taken over again',
    async () => {
      const wrote = await readFile(join(dbVolume.folder, 'new'), 'utf8');
      expect(undoCommands).toHaveLength(3);
      await runAll(undoCommands);
      expect(await claimOf('data-db-0')).toMatchObject({
        spec: { volumeName: dbVolume.volume },
        status: { phase: 'Bound' },
      });
      expect(await volumeOf(dbVolume.volume)).toMatchObject({
        spec: { persistentVolumeReclaimPolicy: 'Delete', nfs: { path: dbVolume.folder } },
        status: { phase: 'Bound' },
      });
      expect(await volumes()).not.toContain(`${dbVolume.volume}-stowage`);
      expect(await readFile(join(dbVolume.folder, 'new'), 'utf8')).toBe(wrote);
      expect(inodesOf(dbVolume.folder)).toEqual(inodes);
      await runAll(takeOverCommands);
      await expectTakenOver();
    },
    longTimeoutMs,
  );

  test(
    'has a command that continues a take-over that was killed',
    async () => {
      // A watch, because polling would be too slow: Kubernetes takes the next step within some tenths of a second.
      const watch = spawn('kubectl', ['get', 'pv', '--watch', '--output=name'], {
        env,
        stdio: ['ignore', 'pipe', 'ignore'],
      });
      onTestFinished(() => void watch.kill('SIGKILL'));
      const lines = createInterface({ input: watch.stdout, signal: AbortSignal.timeout(60_000) });
      const lineIterator = lines[Symbol.asyncIterator]();
      await lineIterator.next();
      const takeOver = spawn('kubectl-stowage', ['take-over', 'silver', '--all'], {
        detached: true,
        env,
        stdio: 'ignore',
      });
      const ended = once(takeOver, 'exit');
      for (
        let line = await lineIterator.next();
        line.value !== `persistentvolume/${filmsVolume.volume}-stowage`;
        line = await lineIterator.next()
      )
        expect(line.done).not.toBe(true);
      killGroup(takeOver);
      expect(await ended).toEqual([null, 'SIGKILL']);
      for (const name of [filmsVolume.volume, `${filmsVolume.volume}-stowage`])
        expect((await volumeOf(name)).spec.persistentVolumeReclaimPolicy).toBe('Retain');
      await shell('kubectl stowage take-over silver --all');
      expect(await claimOf('films')).toMatchObject({
        spec: { volumeName: `${filmsVolume.volume}-stowage` },
        status: { phase: 'Bound' },
      });
      expect(readFileSync(join(filmsVolume.folder, 'old'), 'utf8')).toBe('of films\n');
    },
    longTimeoutMs,
  );

  test(
    'has commands that make a taken-over claim like one that Stowage created',
    async () => {
      await runAll(finishCommands);
      // The old provisioner sees that the PV has the policy Retain, and removes its finalizer.
      await kubectl('patch', 'pv', filmsVolume.volume, '--type=merge', '--patch', '{"metadata":{"finalizers":null}}');
      await expect.poll(volumes, pollOptions).not.toContain(filmsVolume.volume);
      await expect.poll(volumes, pollOptions).not.toContain(dbVolume.volume);
      expect(await kubectl('exec', 'db-0', '--namespace=shop', '--', 'cat', '/data/old')).toBe('of data-db-0');
      await runAll(renameCommands);
      const fresh = claim({ name: 'fresh', storageClassName: foreignClasses.subdir, mode: 'ReadWriteMany' });
      await fixture.cluster.apply(fresh);
      await kubectl('wait', '--for=jsonpath={.status.phase}=Bound', 'pvc/fresh', '--timeout=90s');
      expect(existsSync(filmsVolume.folder)).toBe(true);
      // No program knows what csi-driver-nfs would have done, so the data stay until an administrator decides
      // otherwise.
      const deletePolicy = '{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}';
      await kubectl('patch', 'pv', `${filmsVolume.volume}-stowage`, '--type=merge', '-p', deletePolicy);
      await kubectl('delete', 'pvc', 'films', '--namespace=shop');
      await expect.poll(() => existsSync(filmsVolume.folder), pollOptions).toBe(false);
      await expect.poll(volumes, pollOptions).not.toContain(`${filmsVolume.volume}-stowage`);
      expect(inodesOf(dbVolume.folder)).toEqual(inodes);
    },
    longTimeoutMs,
  );
});

function killGroup({ pid }: ChildProcess): void {
  if (pid !== undefined) process.kill(-pid, 'SIGKILL');
}

const largeClaim = { accessModes: ['ReadWriteMany'], resources: { requests: { storage: '5Ti' } } };

/** An application with volumeClaimTemplates. */
const statefulSet = (image: string): object => ({
  apiVersion: 'apps/v1',
  kind: 'StatefulSet',
  metadata: { name: 'db', namespace: 'shop' },
  spec: {
    replicas: 1,
    serviceName: 'db',
    selector: { matchLabels: { app: 'db' } },
    template: {
      metadata: { labels: { app: 'db' } },
      spec: {
        terminationGracePeriodSeconds: 0,
        containers: [
          {
            name: 'main',
            image,
            imagePullPolicy: 'IfNotPresent',
            command: ['sh', '-c', 'sleep 1000000'],
            volumeMounts: [{ name: 'data', mountPath: '/data' }],
          },
        ],
      },
    },
    volumeClaimTemplates: [
      {
        metadata: { name: 'data', labels: { app: 'db' } },
        spec: foreignClaim('subdir', 'shop', 'data').spec,
      },
    ],
  },
});
