import { execFile } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { describe, expect, test } from 'vitest';
import { parseAllDocuments } from 'yaml';
import { lacks, toolPath } from '#testbed/lacks.ts';
import { allRoutes } from '#testing/routes.ts';
import { chart, files as manifestFiles } from './manifests.ts';
import { chartText, files, pageText } from './rbac.ts';
import { roles } from './rbac-rules.ts';

test('the chart’s roles agree with the rules; if not: node scripts/rbac.ts', () => {
  expect(readFileSync(files.chart, 'utf8')).toBe(chartText());
});

test('the reference of rights agrees with the rules; if not: node scripts/rbac.ts', () => {
  expect(readFileSync(files.page, 'utf8')).toBe(pageText());
});

test('no role has a right twice, or a wildcard', () => {
  for (const { name, where, rules } of roles) {
    const rights = rules.flatMap(({ group, resource, names = [''], verbs }) =>
      verbs.flatMap((verb) => names.map((one) => [name, where, group, resource, one, verb].join(' '))),
    );
    expect(rights).toEqual([...new Set(rights)]);
    expect(rights.join('\n')).not.toContain('*');
  }
});

test('every role is covered by a test that removes its rights', () => {
  // Covered by e2e/kubernetes/chart-rbac.test.ts.
  const working = ['stowage-controller', 'stowage-controller', 'stowage-agent', 'stowage-agent'];
  // Covered by e2e/kubernetes/kubectl-stowage.test.ts.
  const using = ['stowage-viewer', 'stowage-adopter', 'stowage-viewers', 'stowage-stores-view'];
  expect(roles.map(({ name }) => name)).toEqual([...working, ...using]);
});

const controllerRules = roles
  .filter(({ account }) => account === 'stowage-controller')
  .flatMap(({ rules }) => rules.filter((rule) => rule.when !== 'certificateGiven'));

test('the admission policy of the controller allows the objects that its roles name', () => {
  const policy = readFileSync(join(chart, 'templates', 'admission-policies.yaml'), 'utf8');
  const expressionOf = (resource: string): string =>
    policy.split('- expression:').find((text) => text.includes(`variables.is != '${resource}'`)) ?? '';
  for (const resource of ['secrets', 'configmaps', 'endpoints', 'endpointslices']) {
    const named = controllerRules.filter((rule) => rule.resource === resource).flatMap(({ names = [] }) => names);
    expect(expressionOf(resource).match(/(?<=')stowage(-[a-z]+)?(?=')/g)).toEqual(named);
  }
});

test('the admission policy of the controller restricts all objects that its roles may change', () => {
  // With these resources, the controller can't change foreign objects, or the change has no effect.
  const harmless = [
    'events',
    'leases',
    'csistoragecapacities',
    'stores/status',
    'tokenreviews',
    'subjectaccessreviews',
  ];
  interface Policy {
    readonly kind: string;
    readonly metadata: { readonly name: string };
    readonly spec: {
      readonly matchConstraints: {
        readonly resourceRules: readonly {
          readonly apiGroups: readonly string[];
          readonly resources: readonly string[];
        }[];
      };
    };
  }
  const policies = parseAllDocuments(readFileSync(manifestFiles.manifests, 'utf8'))
    .map((document) => document.toJS() as Policy)
    .filter(({ kind, metadata }) => `${kind} ${metadata.name}` === 'ValidatingAdmissionPolicy stowage-controller');
  expect(policies.length).toBe(1);
  const resourceRules = policies.flatMap(({ spec }) => spec.matchConstraints.resourceRules);
  const restricted = resourceRules.flatMap(({ apiGroups, resources }) =>
    resources.flatMap((resource) => apiGroups.map((group) => `${group} ${resource}`)),
  );
  const changed = controllerRules
    .filter(({ verbs }) => verbs.some((verb) => !['get', 'list', 'watch'].includes(verb)))
    .filter(({ resource }) => !harmless.includes(resource))
    .map(({ group, resource }) => `${group} ${resource}`);
  expect([...new Set(changed)].sort()).toEqual(restricted.toSorted());
});

test('agents have only read rights', () => {
  const verbs = roles
    .filter(({ account }) => account === 'stowage-agent')
    .flatMap(({ rules }) => rules)
    .flatMap((rule) => rule.verbs);
  expect(verbs.filter((verb) => !['get', 'list', 'watch'].includes(verb))).toEqual([]);
});

test('the viewer roles have exactly the rights that routes require', () => {
  const asked = allRoutes.flatMap(({ access }) => ('resource' in access ? [`${access.verb} ${access.resource}`] : []));
  // The list of routes does not contain the event stream.
  const known = new Set([...asked, 'watch events']);
  const looking = [...known].filter((right) => /^(get|list|watch) /.test(right)).sort();
  const rightsOf = (account: string): readonly string[] =>
    roles
      .filter((role) => role.account === account)
      .flatMap(({ rules }) => rules.flatMap(({ resource, verbs }) => verbs.map((verb) => `${verb} ${resource}`)))
      .sort();
  expect(rightsOf('stowage-viewer')).toEqual(looking);
  expect(rightsOf('stowage-adopter').filter((right) => !known.has(right))).toEqual([]);
});

describe.skipIf(lacks('helm'))('the controller’s roles, rendered by Helm,', () => {
  interface Rule {
    readonly resources: readonly string[];
    readonly resourceNames?: readonly string[];
    readonly verbs: readonly string[];
  }
  const secretRules = async (...words: readonly string[]): Promise<readonly string[]> => {
    const all = [
      'template',
      'stowage',
      chart,
      '--kube-version',
      '1.30.0',
      '--show-only',
      'templates/rbac.yaml',
      ...words,
    ];
    const { stdout } = await promisify(execFile)(toolPath('helm'), all);
    return parseAllDocuments(stdout)
      .map((document) => document.toJS() as { kind: string; metadata: { name: string }; rules?: readonly Rule[] })
      .flatMap(({ kind, metadata, rules = [] }) =>
        rules
          .filter(({ resources }) => resources.includes('secrets'))
          .map(({ resourceNames = [], verbs }) => [kind, metadata.name, ...resourceNames, ':', ...verbs].join(' ')),
      );
  };

  test('includes its own Secret, or only the Secret that the values name', async () => {
    expect(await secretRules()).toEqual([
      'Role stowage-controller : create',
      'Role stowage-controller stowage-tls : list watch update delete',
    ]);
    expect(await secretRules('--set', 'tls.secretName=mine')).toEqual(['Role stowage-controller mine : list watch']);
  });
});
