/**
 * Runs end-to-end tests on any cluster:
 *
 *   npm run e2e -- --kubeconfig FILE --image IMAGE [--shell-image busybox] [--helm PROGRAM] [--set VALUE …] [--only WORDS]
 *
 * Installs Stowage if it is absent, and removes it again. Does nothing if the cluster contains only remains of another
 * installation. All objects that the tests create have unique names and are removed.
 */
import { randomBytes } from 'node:crypto';
import { parseArgs } from 'node:util';
import { kubeAccess } from '#app/kube-access.ts';
import { systemClock } from '#base/clock.ts';
import { createKubeClient } from '#wire/kube/client.ts';
import { type AnyCluster, type AnyObject, createAnyCluster } from './cluster.ts';
import { helmOnPath, install } from './install.ts';
import { type ClassOfStore, runAll, summaryOf, type TestContext } from './test-runner.ts';
import { deleteAndCheck, tests } from './tests.ts';

const usage =
  'npm run e2e -- --kubeconfig FILE --image IMAGE [--shell-image busybox] [--helm PROGRAM, or none] [--set VALUE …] [--only WORDS of a test]';

async function main(): Promise<number> {
  const { values } = parseArgs({
    options: {
      kubeconfig: { type: 'string' },
      image: { type: 'string' },
      helm: { type: 'string' },
      'shell-image': { type: 'string', default: 'busybox' },
      set: { type: 'string', multiple: true },
      only: { type: 'string', default: '' },
    },
  });
  const { kubeconfig, image } = values;
  if (kubeconfig === undefined || image === undefined) {
    console.error(usage);
    return 2;
  }
  const stop = new AbortController();
  for (const name of ['SIGINT', 'SIGTERM'] as const)
    process.once(name, () => stop.abort(new Error(`stopped by ${name}`)));
  const clock = systemClock();
  const access = await kubeAccess({ kubeconfig, env: process.env, clock });
  using client = createKubeClient({ access, clock, userAgent: 'stowage-e2e' });
  const cluster = createAnyCluster(client, stop.signal);
  // An interrupt ends the tests, but not the clean-up.
  const after = createAnyCluster(client, new AbortController().signal);
  const helm = values.helm === 'none' ? '' : (values.helm ?? helmOnPath());
  const selectedTests = tests.filter(({ name }) => name.includes(values.only));
  if (selectedTests.length === 0) {
    console.error(`no test is called '${values.only}'. There are:\n${tests.map(({ name }) => `  ${name}`).join('\n')}`);
    return 2;
  }
  const installed = await install(
    { cluster, cleanupCluster: after },
    { kubeconfig, image, helm, values: values.set ?? [] },
  );
  if ('why' in installed) {
    console.error(installed.why);
    return 1;
  }
  console.log(`Stowage: ${installed.description}`);
  const unique = `e2e-${randomBytes(4).toString('hex')}`;
  const testNamespace = { apiVersion: 'v1', kind: 'Namespace', metadata: { name: `stowage-${unique}` } };
  const images = imageStore(unique);
  try {
    await cluster.apply(testNamespace);
    await cluster.apply(images);
    const shell = values['shell-image'];
    const context = await createTestContext(cluster, { namespace: testNamespace.metadata.name, unique, shell });
    const tally = await runAll(selectedTests, context, (line) => console.log(line));
    await deleteAndCheck({ ...context, cluster: after });
    console.log(summaryOf(tally));
    return tally.failed === 0 ? 0 : 1;
  } finally {
    await after.remove(images);
    await after.remove(testNamespace);
    await after.waitFor(
      'the deletion of the objects of the tests',
      async () => [await after.find(testNamespace), await after.find(images)],
      (left) => left.every((object) => object === undefined),
    );
    await installed.uninstall();
  }
}

/** A store for block volumes, because the cluster may have none. It leaves an empty folder on each node. */
const imageStore = (unique: string): object => ({
  apiVersion: 'stowage.dev/v1',
  kind: 'Store',
  metadata: { name: `${unique}-images` },
  spec: {
    uri: `local:///var/lib/stowage/stores/${unique}-images`,
    options: { layout: 'image' },
    storageClass: {},
  },
});

async function createTestContext(
  cluster: AnyCluster,
  about: Pick<TestContext, 'namespace' | 'unique' | 'shell'>,
): Promise<TestContext> {
  const imageStoreName = `${about.unique}-images`;
  const listClasses = async (): Promise<readonly (ClassOfStore & { readonly isMine: boolean })[]> =>
    (await cluster.list('storage.k8s.io/v1', 'StorageClass')).map((object) => {
      const { parameters, provisioner } = object as AnyObject & Readonly<Record<string, unknown>>;
      const store = (parameters as Readonly<Record<string, string>> | undefined)?.['store'] ?? '';
      return { name: object.metadata.name ?? '', driver: String(provisioner), store, isMine: store === imageStoreName };
    });
  const classes = await cluster.waitFor('the class of images', listClasses, (seen) =>
    seen.some(({ isMine }) => isMine),
  );
  const classOf = (driver: string, isMine: boolean): ClassOfStore | undefined =>
    classes.find((candidate) => candidate.driver === driver && candidate.isMine === isMine && candidate.store !== '');
  const nodes = (await cluster.list('v1', 'Node')).filter(
    ({ spec }) => spec?.['unschedulable'] !== true && spec?.['taints'] === undefined,
  );
  return {
    ...about,
    cluster,
    nodes: nodes.map(({ metadata }) => metadata.labels?.['kubernetes.io/hostname'] ?? metadata.name ?? ''),
    shared: classOf('file.stowage.dev', false),
    local: classOf('local.stowage.dev', false),
    images: classOf('local.stowage.dev', true),
  };
}

process.exitCode = await main();
