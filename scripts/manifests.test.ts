import { execFile } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { promisify } from 'node:util';
import { describe, expect, test } from 'vitest';
import { parse, parseAllDocuments } from 'yaml';
import { drivers } from '#core/csi-drivers.ts';
import { lacks, toolPath } from '#testbed/lacks.ts';
import manifest from '../package.json' with { type: 'json' };
import { chart, chartValues, files, manifestsText } from './manifests.ts';
import { type ChartValue, readValues, schemaText, valuesPage } from './manifests-values.ts';

const read = (path: string): string => readFileSync(path, 'utf8');
const all = (values: readonly ChartValue[]): readonly ChartValue[] =>
  values.flatMap((value) => [value, ...all(value.inside)]);

describe('the chart', () => {
  test('explains each of its values', () => {
    const values = all(chartValues());
    expect(values.length).toBeGreaterThan(60);
    expect(values.filter(({ about }) => !about.endsWith('.')).map(({ path }) => path.join('.'))).toEqual([]);
  });

  test('has a current schema and page of values; if not: node scripts/manifests.ts HELM', () => {
    expect(read(files.schema)).toBe(schemaText(chartValues()));
    expect(read(files.page)).toBe(valuesPage(chartValues()));
  });

  test('has the version of the program', () => {
    const { version, appVersion } = parse(read(`${chart}/Chart.yaml`));
    expect([version, appVersion]).toEqual([manifest.version, manifest.version]);
  });

  test('explains each value by the comment before it, also the first value of a map', () => {
    const [top, other] = readValues(
      '# About the file.\n\n# First.\na:\n  # Inner,\n  # in two lines.\n  b: 1\n# Last.\nc: []\n',
    );
    expect(top?.about).toBe('First.');
    expect(top?.inside).toEqual([{ path: ['a', 'b'], about: 'Inner, in two lines.', byDefault: 1, inside: [] }]);
    expect(other).toEqual({ path: ['c'], about: 'Last.', byDefault: [], inside: [] });
  });
});

describe('the CSI drivers of the chart', () => {
  // A test below checks that the chart renders these objects.
  const objects = parseAllDocuments(read(files.manifests)).map((document) => document.toJS());
  const of = (kind: string) => objects.filter((one) => one.kind === kind);
  const names = drivers.map(({ name }) => name);

  test('are the drivers of the program', () => {
    const rows = drivers.map((driver) => {
      const { name, attachRequired, podInfoOnMount, fsGroupPolicy, storageCapacity, volumeLifecycleModes } = driver;
      return [name, { attachRequired, podInfoOnMount, fsGroupPolicy, storageCapacity, volumeLifecycleModes }];
    });
    expect(of('CSIDriver').map(({ metadata, spec }) => [metadata.name, spec])).toEqual(rows);
  });

  test('are named in its roles', () => {
    const rules = [...of('ClusterRole'), ...of('Role')].flatMap((role) => role.rules);
    const ofDrivers = rules.filter(({ resources }) => resources?.includes('csidrivers'));
    expect(ofDrivers.map(({ resourceNames }) => resourceNames)).toEqual([names]);
  });

  test('are allowed by its admission policy', () => {
    const variables = of('ValidatingAdmissionPolicy').flatMap(({ spec }) => spec.variables ?? []);
    const lists = variables.filter(({ name }) => name === 'drivers').map(({ expression }) => expression);
    expect(lists).toEqual([`[${names.map((name) => `'${name}'`).join(', ')}]`]);
  });
});

describe.skipIf(lacks('helm'))('the chart, rendered by Helm,', () => {
  const template = async (...words: readonly string[]): Promise<string> => {
    const all = ['template', 'stowage', chart, '--namespace', 'elsewhere', '--kube-version', '1.30.0', ...words];
    return (await promisify(execFile)(toolPath('helm'), all, { maxBuffer: 16 * 1024 * 1024 })).stdout;
  };
  const objects = async (...words: readonly string[]): Promise<readonly Kubernetes[]> =>
    parseAllDocuments(await template(...words)).map((document) => document.toJS() as Kubernetes);
  interface Kubernetes {
    readonly kind: string;
    readonly metadata: {
      readonly name: string;
      readonly namespace?: string;
      readonly annotations?: Readonly<Record<string, string>>;
    };
    readonly spec: {
      readonly uri?: string;
      readonly template?: {
        readonly spec: {
          readonly containers: readonly {
            readonly image: string;
            readonly securityContext: { readonly privileged?: boolean };
          }[];
        };
      };
    };
  }
  const everything = [
    '--set',
    'embeddedNFS.enabled=true,embeddedNFS.tls.enabled=true,monitoring.enabled=true,criticalPodsQuota.enabled=true',
    '--set',
    'viewers[0].kind=User,viewers[0].name=me',
  ];

  test('renders the committed manifests; if not: node scripts/manifests.ts HELM', async () => {
    expect(read(files.manifests)).toBe(await manifestsText(toolPath('helm')));
  });

  test('can be installed in any namespace', async () => {
    const text = await template(...everything);
    expect(text).toContain('namespace: elsewhere');
    expect(text).not.toContain('stowage-system');
  });

  test('has one privileged pod', async () => {
    const pods = (await objects(...everything)).filter(({ spec }) => spec?.template !== undefined);
    const privileged = pods.filter(({ spec }) =>
      spec.template?.spec.containers.some(({ securityContext }) => securityContext.privileged === true),
    );
    expect(pods.map(({ metadata }) => metadata.name).sort()).toEqual([
      'stowage-agent',
      'stowage-controller',
      'stowage-keeper',
      'stowage-nfs',
    ]);
    expect(privileged.map(({ metadata }) => metadata.name)).toEqual(['stowage-agent']);
  });

  test('keeps every object at uninstall whose loss could lose data', async () => {
    const kept = (await objects(...everything)).filter(
      ({ metadata }) => metadata.annotations?.['helm.sh/resource-policy'] === 'keep',
    );
    const volumes = ['CSIDriver file.stowage.dev', 'CSIDriver local.stowage.dev', 'Store local', 'Store network'];
    const server = [
      'NetworkPolicy',
      'PersistentVolumeClaim',
      'Service',
      'ServiceAccount',
      'StatefulSet',
      'StorageClass',
    ];
    expect(kept.map(({ kind, metadata: { name } }) => `${kind} ${name}`).sort()).toEqual(
      [...volumes, ...server.map((kind) => `${kind} stowage-nfs`), 'Secret stowage-nfs-tls'].sort(),
    );
  });

  test('takes an image by digest, or by the tag of its own version', async () => {
    const images = async (...words: readonly string[]): Promise<readonly string[]> =>
      (await objects(...words)).flatMap(({ spec }) => spec?.template?.spec.containers.map(({ image }) => image) ?? []);
    expect(new Set(await images())).toEqual(new Set([`stowage:${manifest.version}`]));
    expect(new Set(await images('--set', 'image.repository=r/s,image.digest=sha256:ab'))).toEqual(
      new Set(['r/s@sha256:ab']),
    );
  });

  test.each([
    ['an unknown value', 'controler.replicas=3', "'controler' not allowed"],
    ['an unknown image policy', 'image.pullPolicy=Sometimes', 'value must be one of'],
    ['two stores with the same name', 'embeddedNFS.enabled=true,embeddedNFS.name=local', 'two stores are called local'],
    ['an NFS server without a disk', 'defaultStore.enabled=false,embeddedNFS.enabled=true', 'embeddedNFS needs a disk'],
    ['a store without a URI', 'stores[0].name=silver', 'uri'],
  ])('refuses %s', async (_, set, why) => {
    await expect(template('--set', set)).rejects.toThrow(why);
  });
});
