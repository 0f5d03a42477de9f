import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { component } from '#testbed/components.ts';
import { startGanesha } from '#testbed/ganesha.ts';
import { lacks } from '#testbed/lacks.ts';
import { createScratchFolder } from '#testing/scratch-folder.ts';
import { run, startStowage } from './stowage.ts';

/**
 * The csi-sanity specs that this driver skips, with csi-sanity's reason. Any other skipped spec is a failure, and so is
 * a spec of this list that runs.
 */
const expectedSkips: Readonly<Record<string, string>> = {
  'Controller Publish, UnpublishVolume not supported': 'volumes of these drivers need no attachment',
  'ControllerPublishVolume not supported': 'volumes of these drivers need no attachment',
  'ControllerUnpublishVolume not supported': 'volumes of these drivers need no attachment',
  'Snapshot not supported': 'the drivers have no snapshots',
  'CreateSnapshot not supported': 'the drivers have no snapshots',
  'DeleteSnapshot not supported': 'the drivers have no snapshots',
  'GetSnapshot not supported': 'the drivers have no snapshots',
  'ListSnapshots not supported': 'the drivers have no snapshots',
  'GroupControllerService not supported': 'the drivers have no snapshots of several volumes',
  'Volume Cloning not supported': 'cloning needs snapshots',
  'Modify volume not supported': 'a VolumeAttributesClass can change no parameter of a volume',
  'Modify Volume not supported': 'a VolumeAttributesClass can change no parameter of a volume',
  'ControllerModifyVolume not supported': 'a VolumeAttributesClass can change no parameter of a volume',
};

interface Spec {
  readonly LeafNodeText: string;
  readonly ContainerHierarchyTexts: readonly string[] | null;
  readonly LeafNodeType: string;
  readonly State: string;
  readonly Failure?: { readonly Message: string };
}

const mib = 1 << 20;

interface TestedDriver {
  readonly driver: 'file' | 'local';
  /** The store's URI, as in stowage.yaml. */
  readonly uri: string;
  readonly access: 'mount' | 'block';
}

let folder: string;

async function runSanity({ driver, uri, access }: TestedDriver): Promise<readonly Spec[]> {
  const config = join(folder, 'stowage.yaml');
  writeFileSync(config, JSON.stringify({ version: 1, stores: { tested: uri } }));
  const parameters = join(folder, 'parameters.yaml');
  writeFileSync(parameters, 'store: tested\n');
  const sockets = join(folder, 'csi');
  const options = ['--plugins', 'none', '--csi', sockets];
  const stowage = await startStowage({ state: join(folder, 'state'), config, options });
  onTestFinished(() => stowage.stop());
  for (const name of ['targets', 'stages']) mkdirSync(join(folder, name));
  const report = join(folder, 'report.json');
  const { status, stdout } = await run(component('csi-sanity').tool?.() ?? '', [
    '--csi.endpoint',
    join(sockets, `${driver}.sock`),
    '--csi.testvolumeparameters',
    parameters,
    '--csi.mountdir',
    join(folder, 'targets', 'target'),
    '--csi.stagingdir',
    join(folder, 'stages', 'stage'),
    '--csi.testvolumesize',
    String(512 * mib),
    '--csi.testvolumeexpandsize',
    String(768 * mib),
    '--csi.testvolumeaccesstype',
    access,
    '--ginkgo.no-color',
    '--ginkgo.json-report',
    report,
  ]);
  expect(status, stdout).toBe(0);
  // csi-sanity left no volumes behind.
  const { body } = await stowage.api('GET', '/v1/volumes');
  expect(body['items']).toEqual([]);
  expect((await stowage.api('GET', '/v1/mounts')).body['items']).toEqual([]);
  const [suite] = JSON.parse(readFileSync(report, 'utf8')) as readonly { readonly SpecReports: readonly Spec[] }[];
  return suite?.SpecReports.filter(({ LeafNodeType }) => LeafNodeType === 'It') ?? [];
}

function expectOnlyKnownSkips(specs: readonly Spec[]): void {
  const specsIn = (state: string): readonly Spec[] => specs.filter(({ State }) => State === state);
  expect(specsIn('skipped').length + specsIn('passed').length + specsIn('pending').length).toBe(specs.length);
  expect([...new Set(specsIn('skipped').map(({ Failure }) => Failure?.Message))].toSorted()).toEqual(
    Object.keys(expectedSkips).toSorted(),
  );
  // csi-sanity's authors disabled this spec.
  expect(specsIn('pending').map(({ LeafNodeText }) => LeafNodeText)).toEqual([
    'pagination should detect volumes added between pages and accept tokens when the last volume from a page is deleted',
  ]);
  expect(specsIn('passed').length).toBeGreaterThanOrEqual(55);
}

beforeEach(() => {
  // This hook runs after the test's own hooks. It removes the mounts that a failed test left.
  const scratch = createScratchFolder('stowage-sanity-');
  onTestFinished(() => scratch[Symbol.dispose]());
  folder = scratch.folder;
});

const newFolder = (name: string): string => {
  const path = join(folder, name);
  mkdirSync(path);
  return path;
};

describe.skipIf(lacks('csi-sanity', 'mount'))('csi-sanity passes', () => {
  test('for local.stowage.dev with directory volumes', { timeout: 180_000 }, async () => {
    expectOnlyKnownSkips(await runSanity({ driver: 'local', uri: `local://${newFolder('store')}`, access: 'mount' }));
  });

  describe.skipIf(lacks('loop', 'xfs'))('for local.stowage.dev with image volumes', () => {
    test.each(['mount', 'block'] as const)('as %s', { timeout: 180_000 }, async (access) => {
      expectOnlyKnownSkips(
        await runSanity({ driver: 'local', uri: `local://${newFolder('store')}?layout=image`, access }),
      );
    });
  });

  describe.skipIf(lacks('ganesha', 'fuse', 'root'))('for file.stowage.dev', () => {
    test('with an NFS server and the built-in client', { timeout: 240_000 }, async () => {
      const { signal } = new AbortController();
      const exported = newFolder('export');
      const server = await startGanesha({ exports: [{ path: exported, tag: '/export', squash: 'none' }], signal });
      onTestFinished(() => server[Symbol.asyncDispose]());
      const uri = `nfs://${server.host}${exported}?port=${server.nfsPort}&mountport=${server.mountPort}`;
      expectOnlyKnownSkips(await runSanity({ driver: 'file', uri, access: 'mount' }));
    });
  });
});
