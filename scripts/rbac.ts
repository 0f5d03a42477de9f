// Defines the rights of each part in a cluster, with reasons: node scripts/rbac.ts
// Generates the chart's roles and docs/reference/rbac.md.
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { stringify } from 'yaml';
import { conditions, ownNamespace, type RbacRole, type RbacRule } from './rbac-role.ts';
import { roles } from './rbac-rules.ts';

const repository = join(import.meta.dirname, '..');
export const files = {
  chart: join(repository, 'deploy', 'kubernetes', 'chart', 'templates', 'rbac.yaml'),
  page: join(repository, 'docs', 'reference', 'rbac.md'),
};

const group = 'rbac.authorization.k8s.io';
const labels = '{{- include "stowage.labels" . | nindent 4 }}';
/** A Helm expression, which no YAML library would write. */
const namespace = '{{ .Release.Namespace }}';

const ruleObject = ({ group: apiGroup, resource, names, verbs }: RbacRule): object => ({
  apiGroups: [apiGroup],
  resources: [resource],
  ...(names === undefined ? {} : { resourceNames: names }),
  verbs,
});

const indented = (value: unknown, by: number): string =>
  stringify(value, { lineWidth: 0 })
    .trimEnd()
    .split('\n')
    .map((line) => `${' '.repeat(by)}${line}`)
    .join('\n');

function head(kind: string, { name, where, extraLabels = {} }: RbacRole): string {
  return [
    `apiVersion: ${group}/v1`,
    `kind: ${kind}`,
    'metadata:',
    `  name: ${name}`,
    ...(where === ownNamespace ? [`  namespace: ${namespace}`] : []),
    '  labels:',
    `    ${labels}`,
    ...Object.entries(extraLabels).map(([key, value]) => `    ${key}: ${JSON.stringify(value)}`),
  ].join('\n');
}

function ruleText(rule: RbacRule): string {
  const text = `  # ${rule.why}\n${indented([ruleObject(rule)], 2)}`;
  return rule.when === undefined ? text : `  {{- if ${conditions[rule.when].helm} }}\n${text}\n  {{- end }}`;
}

const rulesOf = ({ rules }: RbacRole): string => ['rules:', ...rules.map(ruleText)].join('\n');

function roleText(role: RbacRole): string {
  const [kind, bindingKind] =
    role.where === ownNamespace ? ['Role', 'RoleBinding'] : ['ClusterRole', 'ClusterRoleBinding'];
  const binding = (subjects: string): string =>
    [
      head(bindingKind, role),
      `roleRef: {apiGroup: ${group}, kind: ${kind}, name: ${role.name}}`,
      'subjects:',
      subjects,
    ].join('\n');
  const itself = `${head(kind, role)}\n${rulesOf(role)}`;
  if (role.account === undefined && role.value === undefined) return itself;
  if (role.account !== undefined) {
    const subject = `  - {kind: ServiceAccount, name: ${role.account}, namespace: ${namespace}}`;
    return `${itself}\n---\n${binding(subject)}`;
  }
  const given = `  {{- toYaml .Values.${role.value} | nindent 2 }}`;
  return `${itself}\n{{- if .Values.${role.value} }}\n---\n${binding(given)}\n{{- end }}`;
}

export const chartText = (): string =>
  `# Made by scripts/rbac.ts; do not edit. The reasons of the rights are in docs/reference/rbac.md\n${roles.map(roleText).join('\n---\n')}\n`;

/** The name of the chart's value. */
const shownName = (name: string): string => /^\{\{ \.Values\.(.+) \}\}$/.exec(name)?.[1] ?? name;
const shownWhy = ({ why, when }: RbacRule): string => (when === undefined ? why : `${why} ${conditions[when].text}`);

const shownResource = ({ group: apiGroup, resource, names }: RbacRule): string => {
  const whole = apiGroup === '' ? resource : `${resource}.${apiGroup}`;
  return names === undefined
    ? `\`${whole}\``
    : `\`${whole}\`: ${names.map((name) => `\`${shownName(name)}\``).join(', ')}`;
};

function section(role: RbacRole): string {
  const rows = role.rules.map((rule) => `| ${shownResource(rule)} | ${rule.verbs.join(', ')} | ${shownWhy(rule)} |`);
  const where = role.where === ownNamespace ? "in Stowage's own namespace" : 'in the whole cluster';
  return [
    `## ${role.title}`,
    `\`${role.name}\`, ${where}. ${role.about}`,
    ['| Resource | Verbs | Reason |', '| --- | --- | --- |', ...rows].join('\n'),
  ].join('\n\n');
}

export const pageText = (): string =>
  `${[
    '<!-- Made by `node scripts/rbac.ts` from the sources. Do not edit. -->',
    '# Rights of each part in a cluster',
    'This page gives the reason of every right. Tests (`chart-rbac.test.ts` and `kubectl-stowage.test.ts` in `e2e/kubernetes`) remove each right and check that something fails without it. Stowage has no other rights than these. Keepers and the embedded NFS server have no rights, and no token.',
    'In addition, the API server restricts the accounts to less than their roles allow (ValidatingAdmissionPolicy, value `admissionPolicy.enabled`). The controller may create and change only PersistentVolumes and StorageClasses of `file.stowage.dev` and `local.stowage.dev`, without references to Secrets; of a claim, only its status and the node that the scheduler chose; only the Secret `stowage-tls`, of type `kubernetes.io/tls`; only the ConfigMaps `stowage-ca` and `stowage-nodes`; and only the Endpoints and EndpointSlice of its own Service, with one address and its own port. It may evict pods only by their uid and with their own grace period, and none in `kube-system`, `kube-public`, `kube-node-lease` and its own namespace. Agents may change nothing.',
    ...roles.map(section),
  ].join('\n\n')}\n`;

if (process.argv[1] === import.meta.filename) {
  await writeFile(files.chart, chartText());
  await writeFile(files.page, pageText());
}
