import { execFile } from 'node:child_process';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { glob, readFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { promisify } from 'node:util';
import { describe, expect, test } from 'vitest';
import { parseAllDocuments } from 'yaml';
import manifest from '../../package.json' with { type: 'json' };
import { chartValues, files } from '../manifests.ts';
import type { ChartValue } from '../manifests-values.ts';

const repository = dirname(dirname(import.meta.dirname));
const read = (path: string): string => readFileSync(join(repository, path), 'utf8');

interface Kubernetes {
  readonly kind: string;
  readonly metadata: { readonly name: string };
  readonly spec: {
    readonly storageClass?: { readonly name?: string };
    readonly storageClassName?: string;
    readonly volumes?: readonly { readonly persistentVolumeClaim?: { readonly claimName: string } }[];
    readonly template?: { readonly spec: { readonly containers: readonly { readonly image: string }[] } };
  };
}

function objectsIn(text: string): readonly Kubernetes[] {
  const documents = parseAllDocuments(text);
  expect(documents.flatMap(({ errors }) => errors)).toEqual([]);
  return documents.map((document) => document.toJS() as Kubernetes);
}

/** The lines of each code block of a section. */
function blocksIn(heading: string, path: string): readonly (readonly string[])[] {
  const [, after = ''] = read(path).split(`\n${heading}\n`);
  const [section = ''] = after.split('\n## ');
  return Array.from(section.matchAll(/```text\n(.*?)\n```/gs), ([, block = '']) => block.split('\n'));
}

const valuePaths = (values: readonly ChartValue[]): readonly string[] =>
  values.flatMap(({ path, inside, byDefault }) => [
    path.join('.'),
    ...valuePaths(inside),
    ...Object.keys(byDefault ?? {}).map((key) => [...path, key].join('.')),
  ]);
/** Keys of Secrets. They look like chart values. */
const notValues = ['tls.crt', 'tls.key'];

describe('the quick start on Kubernetes', () => {
  const [commands = [], [enable = ''] = [], shared = []] = blocksIn('## Quick start', 'docs/kubernetes.md');
  const whole = commands.join('\n');

  test('is five commands whose files exist, for this version', () => {
    expect(commands.map((line) => line.split(' ').slice(0, 2).join(' '))).toEqual([
      'docker build',
      'helm install',
      'kubectl apply',
      'kubectl wait',
      'kubectl logs',
    ]);
    const named = Array.from(whole.matchAll(/(?<=\s)deploy\/\S+/g), ([path]) => path);
    expect(named).toHaveLength(3);
    expect(named.filter((path) => !existsSync(join(repository, path)))).toEqual([]);
    const [built, pushed, installed] = Array.from(whole.matchAll(/REGISTRY\/(\S+)/g), ([, image]) => image);
    expect([built, pushed, `${installed}:${manifest.version}`]).toEqual(
      Array.from({ length: 3 }, () => `stowage:${manifest.version}`),
    );
  });

  test('ends with its example pod, whose claim uses a class that the chart creates by default', () => {
    const [, example = ''] = /kubectl apply -f (\S+)/.exec(whole) ?? [];
    const objects = objectsIn(read(example));
    const of = (kind: string): Kubernetes => objects.find((one) => one.kind === kind) ?? expect.fail(`no ${kind}`);
    const [claim, pod] = [of('PersistentVolumeClaim'), of('Pod')];
    expect(objects).toHaveLength(2);
    expect(pod.spec.volumes).toMatchObject([{ persistentVolumeClaim: { claimName: claim.metadata.name } }]);
    const made = objectsIn(readFileSync(files.manifests, 'utf8')).flatMap(({ kind, metadata, spec }) =>
      kind === 'Store' && spec.storageClass !== undefined ? (spec.storageClass.name ?? metadata.name) : [],
    );
    expect(made).toEqual([claim.spec.storageClassName]);
    expect(commands.at(3)).toContain(` pod/${pod.metadata.name} `);
    expect(commands.at(4)).toBe(`kubectl logs ${pod.metadata.name}`);
    expect(read('docs/kubernetes.md')).toContain(`of the class \`${claim.spec.storageClassName}\``);
  });

  test('continues with two pods that share a volume of the embedded NFS server’s class', () => {
    expect(enable).toContain(' --set embeddedNFS.enabled=true');
    const [apply = '', wait = '', logs = ''] = shared;
    const objects = objectsIn(read(apply.replace('kubectl apply -f ', '')));
    const [claim, ...pods] = objects;
    expect(objects.map(({ kind }) => kind)).toEqual(['PersistentVolumeClaim', 'Pod', 'Pod']);
    expect(claim?.spec).toMatchObject({ storageClassName: 'network', accessModes: ['ReadWriteMany'] });
    const name = claim?.metadata.name;
    for (const { spec } of pods) expect(spec.volumes).toMatchObject([{ persistentVolumeClaim: { claimName: name } }]);
    const names = pods.map(({ metadata }) => metadata.name);
    expect(wait).toContain(` ${names.map((pod) => `pod/${pod}`).join(' ')} `);
    expect(logs).toBe(`kubectl logs ${names.at(-1)}`);
  });

  test('uses every example file', () => {
    const used = [...commands, ...shared].flatMap((line) => /kubectl apply -f (\S+)/.exec(line)?.[1] ?? []);
    const examples = readdirSync(join(repository, 'deploy/kubernetes/examples'));
    expect(used.toSorted()).toEqual(examples.toSorted().map((file) => `deploy/kubernetes/examples/${file}`));
  });
});

test('without Helm, has a command that adds a registry to every image', async () => {
  const [[definitions = '', rest = ''] = []] = blocksIn('### Without Helm', 'docs/kubernetes-install.md');
  expect(existsSync(join(repository, definitions.split(' ').at(-1) ?? ''))).toBe(true);
  const [, program = '', path = ''] = /^sed '(.+)' (\S+) \| kubectl apply --server-side -f -$/.exec(rest) ?? [];
  const { stdout } = await promisify(execFile)('sed', [program, join(repository, path)], { maxBuffer: 1024 * 1024 });
  const images = objectsIn(stdout).flatMap(
    ({ spec }) => spec?.template?.spec.containers.map(({ image }) => image) ?? [],
  );
  expect(images).toEqual(Array.from({ length: 3 }, () => `REGISTRY/stowage:${manifest.version}`));
  // A comment in the manifests shows the same command.
  expect(readFileSync(files.manifests, 'utf8')).toContain(`#   sed '${program}' stowage.yaml | kubectl apply`);
});

test('names only chart values that exist', async () => {
  const known = new Set(valuePaths(chartValues()));
  const tops = new Set([...known].map((path) => path.split('.')[0]));
  const unknown: string[] = [];
  for await (const path of glob('docs/kubernetes*.md', { cwd: repository })) {
    const text = await readFile(join(repository, path), 'utf8');
    const set = Array.from(text.matchAll(/--set '?([\w.]+)=/g), ([, name = '']) => name);
    const named = Array.from(text.matchAll(/`([a-zA-Z]+(?:\.[a-zA-Z]+)+)(?:=[^`]*)?`/g), ([, name = '']) => name);
    const own = [...set, ...named.filter((name) => tops.has(name.split('.')[0] ?? ''))];
    const wrong = own.filter((name) => !known.has(name) && !notValues.includes(name));
    unknown.push(...wrong.map((name) => `${path}: ${name}`));
  }
  expect(unknown).toEqual([]);
});

describe('the guide for operating a cluster', () => {
  const page = read('docs/kubernetes-operations.md');

  test('names only metrics and labels that exist', () => {
    const reference = read('docs/reference/metrics.md');
    const named = Array.from(page.matchAll(/\b(stowage_[a-z_]+)(?:\{([a-z]+)[!=])?/g), ([, name = '', label]) => ({
      name,
      label,
    }));
    expect(named.length).toBeGreaterThan(5);
    const rows = reference.split('\n');
    const isKnown = ({ name, label = '' }: (typeof named)[number]): boolean =>
      rows.some((row) => row.startsWith(`| \`${name}\` `) && (label === '' || row.includes(`\`${label}\``)));
    expect(named.filter((one) => !isKnown(one))).toEqual([]);
  });

  test('names only commands that exist in a cluster', () => {
    const [, list = ''] =
      /It has the commands (.+?)\. Commands that only make sense on a host fail/.exec(read('docs/reference/cli.md')) ??
      [];
    const known = Array.from(list.matchAll(/`([a-z -]+)`/g), ([, name = '']) => name);
    const used = Array.from(page.matchAll(/kubectl stowage ([a-z][a-z -]*[a-z])/g), ([, words = '']) => words);
    expect(used.length).toBeGreaterThan(8);
    expect(used.filter((words) => !known.includes(words))).toEqual([]);
  });
});
