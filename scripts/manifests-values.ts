import { type Document, isMap, isScalar, type Pair, parseDocument, type YAMLMap } from 'yaml';

/** A value of the chart and its explanation. */
export interface ChartValue {
  /** The path from the root of the values. */
  readonly path: readonly string[];
  readonly about: string;
  readonly byDefault: unknown;
  /** Nested values that have explanations of their own. */
  readonly inside: readonly ChartValue[];
}

/** Parses values.yaml. The comment before a key explains the key. */
export function readValues(text: string): readonly ChartValue[] {
  const document = parseDocument(text);
  if (!isMap(document.contents)) throw new Error('values.yaml is no map');
  return valuesIn(document.contents, [], document);
}

function valuesIn(map: YAMLMap, above: readonly string[], document: Document): readonly ChartValue[] {
  return map.items.map((pair, at) => {
    const { key, value } = pair as Pair;
    if (!isScalar(key)) throw new Error('a key of values.yaml is no word');
    const path = [...above, String(key.value)];
    // The YAML library attaches a comment before the first key to the map.
    const comment = key.commentBefore ?? (at === 0 ? map.commentBefore : undefined);
    // The comment before the first key also contains the explanation of the file, so only its last paragraph counts.
    const about = (comment ?? '').split(/\n\s*\n/).at(-1) ?? '';
    const isWritten = isMap(value) && value.flow !== true && value.items.length > 0;
    return {
      path,
      about: about
        .split('\n')
        .map((line) => line.trim())
        .join(' ')
        .trim(),
      byDefault: isWritten ? undefined : document.getIn(path, false) === undefined ? null : plain(document, path),
      inside: isWritten && isExplained(value) ? valuesIn(value, path, document) : [],
      ...(isWritten && !isExplained(value) ? { byDefault: plain(document, path) } : {}),
    };
  });
}

/** Resource requests and limits need no explanation. */
const isExplained = (map: YAMLMap): boolean =>
  map.commentBefore != null || map.items.some(({ key }) => isScalar(key) && key.commentBefore != null);

function plain(document: Document, path: readonly string[]): unknown {
  return path.reduce<unknown>((at, key) => (at as Record<string, unknown>)[key], document.toJS());
}

const words: Readonly<Record<string, readonly string[]>> = {
  'image.pullPolicy': ['Always', 'IfNotPresent', 'Never'],
  logLevel: ['debug', 'info', 'warn', 'error', 'silent'],
};
const more: Readonly<Record<string, object>> = {
  kubeletDir: { pattern: '^/' },
  'defaultStore.path': { pattern: '^/[^/]' },
  'controller.replicas': { minimum: 1 },
  'agent.maxUnavailable': { type: ['integer', 'string'] },
  stores: {
    items: {
      type: 'object',
      required: ['name', 'uri'],
      properties: { name: { type: 'string' }, uri: { type: 'string' } },
    },
  },
  'embeddedNFS.networks': { items: { type: 'string' } },
  'agent.hostPaths': { items: { type: 'string', pattern: '^/[^/]' } },
};

const typeOf = (value: unknown): string =>
  Array.isArray(value) ? 'array' : typeof value === 'number' ? 'integer' : typeof value;

function schemaOf({ path, about, byDefault, inside }: ChartValue): object {
  const name = path.join('.');
  if (inside.length > 0) return { description: about, ...objectOf(inside) };
  const known = words[name];
  return {
    description: about,
    type: typeOf(byDefault),
    ...(known === undefined ? {} : { enum: known }),
    ...more[name],
  };
}

const objectOf = (values: readonly ChartValue[]): object => ({
  type: 'object',
  // Rejects unknown keys, because Helm would silently ignore a typo.
  additionalProperties: false,
  properties: Object.fromEntries(values.map((value) => [value.path.at(-1), schemaOf(value)])),
});

/** `global` exists in every subchart. */
export function schemaText(values: readonly ChartValue[]): string {
  const whole = objectOf(values) as { readonly properties: object };
  const properties = { ...whole.properties, global: { type: 'object' } };
  const schema = { $schema: 'http://json-schema.org/draft-07/schema#', title: 'stowage', ...whole, properties };
  return `${JSON.stringify(schema, undefined, 2)}\n`;
}

const cell = (text: string): string => text.replaceAll('|', '\\|');
const shown = (value: unknown): string => `\`${JSON.stringify(value)}\``;

function rows(value: ChartValue): readonly string[] {
  if (value.inside.length > 0) return value.inside.flatMap(rows);
  return [`| \`${value.path.join('.')}\` | ${cell(shown(value.byDefault))} | ${cell(value.about)} |`];
}

export function valuesPage(values: readonly ChartValue[]): string {
  const head = ['| value | default | meaning |', '| --- | --- | --- |'];
  const top = values.filter(({ inside }) => inside.length === 0);
  const sections = values
    .filter(({ inside }) => inside.length > 0)
    .map((value) => [`## ${value.path.join('.')}`, value.about, [...head, ...rows(value)].join('\n')].join('\n\n'));
  return [
    '<!-- Made by `node scripts/manifests.ts` from deploy/kubernetes/chart/values.yaml. Do not edit. -->',
    '# The values of the chart',
    'All values are optional. How to install, upgrade and uninstall is described in [Installing on Kubernetes](../kubernetes-install.md).',
    [...head, ...top.flatMap(rows)].join('\n'),
    ...sections,
  ]
    .join('\n\n')
    .concat('\n');
}
