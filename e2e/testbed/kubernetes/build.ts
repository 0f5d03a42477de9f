import { readFileSync } from 'node:fs';
import { mkdir, rename, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { type CachedBuild, type Component, cachedBuild, missingPrograms, type Run } from '../component.ts';
import { digest } from '../rootfs.ts';
import { cniPlugins } from './node-config.ts';

const version = '1.35.4';
const [major, minor] = version.split('.');

/** A folder with the go.mod and go.sum of unmodified programs. */
interface Module {
  readonly folder: string;
  readonly key: string;
}

function goModule(...path: readonly string[]): Module {
  const folder = join(import.meta.dirname, ...path);
  return { folder, key: digest(...['go.mod', 'go.sum'].map((name) => readFileSync(join(folder, name), 'utf8'))) };
}

const kubernetesModule = goModule();
const sanityModule = goModule('csi-sanity');
const helmModule = goModule('helm');
const cachedBuilds = {
  kubernetes: cachedBuild('kubernetes', `${version}-${kubernetesModule.key}`, 'kubectl'),
  suite: cachedBuild('k8s-e2e', `${version}-${kubernetesModule.key}`, 'e2e.test'),
  sanity: cachedBuild('csi-sanity', `5.6.0-${sanityModule.key}`, 'csi-sanity'),
  helm: cachedBuild('helm', `3.20.2-${helmModule.key}`, 'helm'),
  // The version in go.mod, which the end-to-end tests require.
  ginkgo: cachedBuild('ginkgo', `2.27.2-${kubernetesModule.key}`, 'ginkgo'),
};

const versionFlags = ['k8s.io/component-base/version', 'k8s.io/client-go/pkg/version'].flatMap((name) => [
  `-X ${name}.gitVersion=v${version}`,
  `-X ${name}.gitMajor=${major}`,
  `-X ${name}.gitMinor=${minor}`,
]);
// Statically linked, so that the programs also run in images.
const flags = ['-mod=readonly', '-buildvcs=false', '-trimpath', '-ldflags', ['-s', '-w', ...versionFlags].join(' ')];

const programs = ['kube-apiserver', 'kube-controller-manager', 'kube-scheduler', 'kubelet', 'kube-proxy', 'kubectl'];
const nodePrograms = ['containerd', 'ctr', 'runc', 'iptables', 'ip', 'nsenter', 'unshare', 'mount', 'openssl'];

/** All programs of a cluster: Debian's for nodes, and the others from the Go module proxy. */
export const kubernetes: Component = {
  ...builtByGo(cachedBuilds.kubernetes, () => missingPrograms(...nodePrograms) ?? missingPlugins()),
  what: `Kubernetes ${version}, whose clusters tests start for themselves`,
  packages: () => [
    ...(missingPlugins() === undefined ? [] : ['containernetworking-plugins']),
    ...(missingPrograms(...nodePrograms) === undefined
      ? []
      : ['containerd', 'runc', 'iptables', 'iproute2', 'util-linux', 'mount', 'openssl']),
  ],
  make: (run) =>
    makeBuild(cachedBuilds.kubernetes, async (folder) => {
      const names = [...programs.map((name) => `k8s.io/kubernetes/cmd/${name}`), 'go.etcd.io/etcd/server/v3'];
      await runGo(run, kubernetesModule, ['build', ...flags, '-o', `${folder}/`, ...names]);
      await rename(join(folder, 'server'), join(folder, 'etcd'));
    }),
};

/** The CSI authors' conformance tests for CSI drivers. */
export const csiSanity: Component = {
  ...builtByGo(cachedBuilds.sanity),
  what: 'csi-sanity 5.6.0, the test suite for CSI drivers',
  make: (run) =>
    makeBuild(cachedBuilds.sanity, (folder) =>
      runGo(run, sanityModule, [
        'build',
        ...flags,
        '-o',
        `${folder}/`,
        'github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity',
      ]),
    ),
};

export const helm: Component = {
  ...builtByGo(cachedBuilds.helm),
  what: 'Helm 3.20.2, which installs charts',
  make: (run) =>
    makeBuild(cachedBuilds.helm, (folder) =>
      runGo(run, helmModule, ['build', ...flags, '-o', `${folder}/`, 'helm.sh/helm/v3/cmd/helm']),
    ),
};

/** Kubernetes' own end-to-end tests, and the program that most of their pods run. */
export const kubernetesSuite: Component = {
  ...builtByGo(cachedBuilds.suite),
  what: `the end-to-end tests of Kubernetes ${version}`,
  make: (run) =>
    makeBuild(cachedBuilds.suite, async (folder) => {
      await runGo(run, kubernetesModule, [
        'build',
        ...flags,
        '-o',
        `${folder}/`,
        'k8s.io/kubernetes/test/images/agnhost',
      ]);
      const tests = 'k8s.io/kubernetes/test/e2e';
      await runGo(run, kubernetesModule, ['test', '-c', ...flags, '-o', join(folder, 'e2e.test'), tests]);
    }),
};

/** Runs several end-to-end tests in parallel. */
export const ginkgo: Component = {
  ...builtByGo(cachedBuilds.ginkgo),
  what: 'Ginkgo 2.27.2, which runs the end-to-end tests of Kubernetes in parallel',
  make: (run) =>
    makeBuild(cachedBuilds.ginkgo, (folder) =>
      runGo(run, kubernetesModule, ['build', ...flags, '-o', `${folder}/`, 'github.com/onsi/ginkgo/v2/ginkgo']),
    ),
};

/** The folder with the programs of the cluster. */
export const binaries = (): string => cachedBuilds.kubernetes.folder();
/** The program of the image that the end-to-end tests use most. */
export const agnhost = (): string => join(cachedBuilds.suite.folder(), 'agnhost');

function builtByGo(
  build: CachedBuild,
  alsoMissing: () => string | undefined = () => undefined,
): Pick<Component, 'probe' | 'tool' | 'command'> {
  return {
    probe: () => {
      const why = build.probe();
      const lacking = missingPrograms('go');
      return (
        alsoMissing() ?? (why === undefined || lacking === undefined ? why : `${why}, and to build it: ${lacking}`)
      );
    },
    tool: build.tool,
    // Debian's Go is too old.
    command: 'install Go 1.25 or newer, then npm run testbed, as root',
  };
}

function missingPlugins(): string | undefined {
  return cniPlugins() === undefined ? 'not found: the network plugins for containers' : undefined;
}

async function makeBuild(cached: CachedBuild, build: (folder: string) => Promise<void>): Promise<void> {
  await rm(cached.folder(), { recursive: true, force: true });
  await mkdir(cached.folder(), { recursive: true });
  await build(cached.folder());
  await writeFile(cached.marker(), '');
}

async function runGo(run: Run, { folder }: Module, words: readonly string[]): Promise<void> {
  await run('env', ['CGO_ENABLED=0', 'go', ...words], { cwd: folder });
}
