import { readFileSync } from 'node:fs';
import { glob, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { beforeAll, describe, expect, test } from 'vitest';
import { parseAllDocuments } from 'yaml';
import { agentAccount, agentUpgrade, audiences, leaderObjectNames, podPath, serverNames } from '#cluster/names.ts';
import { agentCalls } from '#cluster/tunnel/agent-calls.ts';
import { fileDriver, localDriver } from '#core/csi-drivers.ts';
import { nodeTopologyKey } from '#core/node-topology.ts';
import { storeDefinition } from '../../../scripts/crds.ts';
import { programSources } from '../../../scripts/docs/sources.ts';
import { literal, type Source, walk } from '../../../scripts/docs/syntax.ts';
import { chart, chartValues, files } from '../../../scripts/manifests.ts';
import type { ChartValue } from '../../../scripts/manifests-values.ts';
import { flat } from './flatten-schema.ts';
import { expectGolden } from './golden.ts';

let sources: readonly Source[];
beforeAll(async () => {
  sources = await programSources();
});

/** Every string literal in the sources. */
const textsIn = (those: readonly Source[]): readonly string[] =>
  those.flatMap(({ program }) => [...walk(program)].flatMap(([part]) => literal(part) ?? []));

test('objects of Kubernetes keep our labels, annotations, finalizers, groups, drivers and audiences', async () => {
  const qualified = /^(?:[a-z.-]+\.)?(?:stowage\.dev|kubernetes\.io|k8s\.io)(?:\/[A-Za-z0-9._:-]*)?$/;
  const names = textsIn(sources).filter((text) => qualified.test(text));
  for await (const path of glob('**/*.{yaml,tpl}', { cwd: chart })) {
    const text = await readFile(join(chart, path), 'utf8');
    for (const [name] of text.matchAll(/(?:[a-z.-]+\.)?stowage\.dev(?:\/[A-Za-z0-9-]+)*/g)) names.push(name);
  }
  expect(names).toContain('stowage.dev/volume');
  expectGolden('kubernetes-names', names);
});

test('Events and conditions keep their reasons, types and actions', () => {
  const those = sources.filter(({ path }) => /^src\/(controllers|front\/csi)\//.test(path));
  const words = textsIn(those).filter((text) => /^[A-Z][a-z]+(?:[A-Z][a-z]*)*$/.test(text));
  expect(words).toContain('ProvisioningSucceeded');
  expectGolden(
    'kubernetes-reasons',
    words.filter((word) => !kubernetesNames.has(word)),
  );
});

/** Names that Kubernetes defines. Removing or adding a use of one breaks nothing. */
const kubernetesNames = new Set([
  'AlreadyExists',
  'Conflict',
  'Forbidden',
  'NotFound',
  'Node',
  'PersistentVolume',
  'PersistentVolumeClaim',
  'Pod',
  'StorageClass',
  'Block',
  'Bound',
  'Delete',
  'Failed',
  'Filesystem',
  'Immediate',
  'In',
  'ReadWriteOnce',
  'Released',
  'Retain',
  'Succeeded',
  'WaitForFirstConsumer',
  'False',
  'True',
  'Unknown',
  'Normal',
  'Warning',
  // Names that never leave the program.
  'LeadershipLost',
  'Many',
]);

test('a Store keeps its fields, their validation rules and its kubectl columns', () => {
  const { metadata: _metadata, ...definition } = storeDefinition;
  expectGolden('kubernetes-store', flat(definition));
});

test('agents and controllers of different versions keep the names and calls that they share', () => {
  expectGolden('kubernetes-link', [
    ...agentCalls.map(
      ({ method, path, answerForgotten: forgotten }) => `call ${method} ${path}${forgotten ? ' (forgotten)' : ''}`,
    ),
    ...Object.entries(leaderObjectNames).map(([what, name]) => `${what}: ${name}`),
    `turning: ${agentUpgrade.path} to ${agentUpgrade.protocol}`,
    `pod: ${podPath.format('namespace', 'name')}`,
    ...Object.entries(audiences).map(([who, audience]) => `audience of ${who}: ${audience}`),
    `account: ${agentAccount('namespace')}`,
    ...serverNames('namespace').map((name) => `server: ${name}`),
    `driver on nodes: ${localDriver.name}`,
    `driver for all: ${fileDriver.name}`,
    `topology: ${nodeTopologyKey}`,
  ]);
});

describe('the chart', () => {
  test('keeps its values and their schema', () => {
    const schema = JSON.parse(readFileSync(files.schema, 'utf8')) as unknown;
    const paths = (values: readonly ChartValue[]): readonly string[] =>
      values.flatMap(({ path, inside, byDefault }) =>
        inside.length > 0 ? paths(inside) : [`default ${path.join('.')}: ${JSON.stringify(byDefault)}`],
      );
    expectGolden('chart-values', [...flat(schema), ...paths(chartValues())]);
  });

  test('keeps the names, labels, selectors and folders of the objects that it installs', () => {
    const objects = parseAllDocuments(readFileSync(files.manifests, 'utf8')).map((one) => one.toJS() as unknown);
    const lines = objects.flatMap((object) => {
      const { kind, metadata } = object as { kind: string; metadata: { name: string } };
      return [`${kind} ${metadata.name}`, ...namesKept(object, '').map((line) => `${kind} ${metadata.name} ${line}`)];
    });
    expect(lines.length).toBeGreaterThan(100);
    expectGolden('chart-objects', lines);
  });

  test('keeps the names of objects that only some values create', async () => {
    const names: string[] = [];
    for await (const path of glob('templates/*.yaml', { cwd: chart })) {
      const text = await readFile(join(chart, path), 'utf8');
      for (const [, name = ''] of text.matchAll(/^ {2}name: (?:"|')?(stowage[a-z0-9-]*)/gm)) names.push(name);
    }
    expect(names.length).toBeGreaterThan(10);
    expectGolden('chart-names', names);
  });
});

/** The labels, selectors, port names and host paths of an object, without its version. */
function namesKept(value: unknown, path: string): readonly string[] {
  if (Array.isArray(value)) return value.flatMap((one) => namesKept(one, path));
  if (typeof value !== 'object' || value === null) return [];
  return Object.entries(value).flatMap(([key, inner]) => {
    const at = path === '' ? key : `${path}.${key}`;
    if (/\.(?:labels|annotations)$/.test(`.${path}`)) {
      return key === 'app.kubernetes.io/version' ? [] : [`${at}=${String(inner)}`];
    }
    if (/\.(?:matchLabels|selector)$/.test(`.${path}`) && typeof inner === 'string') return [`${at}=${inner}`];
    if (path.endsWith('hostPath') && key === 'path') return [`${at}=${String(inner)}`];
    if (path.endsWith('ports') && key === 'name') return [`${at}=${String(inner)}`];
    return namesKept(inner, at);
  });
}
