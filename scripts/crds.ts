// Generates the CRDs from the store kinds of the program: node scripts/crds.ts
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { stringify } from 'yaml';
import { policyOptions } from '#core/store-uri.ts';
import { storeKinds } from './store-kinds.ts';

const folder = join(import.meta.dirname, '..', 'deploy', 'kubernetes');
/** One for Helm, and one for users without Helm: the CRD must exist before any store. */
export const storesFiles = [join(folder, 'chart', 'crds', 'stores.yaml'), join(folder, 'crds', 'stores.yaml')];

/** Increased when a field is added. A chart that needs the field reports a cluster with an older CRD. */
const schema = 2;

const text = (description: string, more: object = {}): object => ({ type: 'string', description, ...more });
const isTrue = (description: string): object => ({ type: 'boolean', description });
const list = (words: readonly string[]): string => `[${words.map((word) => `'${word}'`).join(', ')}]`;

/** Each kind of store allows only its own options. */
const optionRules = storeKinds.map(({ scheme, options }) => {
  const known = [...Object.keys(policyOptions), ...Object.keys(options)].sort();
  return {
    rule: `!self.uri.startsWith('${scheme}:') || !has(self.options) || self.options.all(key, key in ${list(known)})`,
    message: `the options of a store of ${scheme}:// are ${known.join(', ')}`,
    fieldPath: '.options',
  };
});

const schemes = storeKinds.map(({ scheme }) => `${scheme}://`);

const storageClass = {
  type: 'object',
  description: 'A StorageClass that the controller creates for this store and keeps in this state. Default: none.',
  properties: {
    name: text('The name of the class. Default: the name of the store.', {
      maxLength: 253,
      pattern: '^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$',
    }),
    default: isTrue('Whether claims that name no class use this one.'),
    reclaimPolicy: text('What happens to a volume when its claim is deleted.', { enum: ['Delete', 'Retain'] }),
    volumeBindingMode: text('When volumes are created: at once, or when the first pod that uses them is scheduled.', {
      enum: ['Immediate', 'WaitForFirstConsumer'],
    }),
    allowVolumeExpansion: isTrue('Whether claims can be expanded (the default).'),
    nameTemplate: text(
      'The name of volumes, from {namespace}, {name}, {uid}, {label:KEY} and {annotation:KEY} of the claim. Default: pvc-{uid}.',
      { maxLength: 256 },
    ),
    enforce: isTrue('Whether the sizes of volumes are enforced.'),
  },
};

const condition = {
  type: 'object',
  required: ['type', 'status', 'reason', 'message', 'lastTransitionTime'],
  properties: {
    type: text('Ready, Reachable, MountsHealthy or StorageClass.'),
    reason: text('The reason, as one word.'),
    message: text('The details, and what to do.'),
    status: { type: 'string', enum: ['True', 'False', 'Unknown'] },
    observedGeneration: { type: 'integer', format: 'int64' },
    lastTransitionTime: { type: 'string', format: 'date-time' },
  },
};

const quantity = (description: string): object => ({
  description,
  anyOf: [{ type: 'integer' }, { type: 'string' }],
  'x-kubernetes-int-or-string': true,
});

export const storeDefinition = {
  apiVersion: 'apiextensions.k8s.io/v1',
  kind: 'CustomResourceDefinition',
  metadata: { name: 'stores.stowage.dev', annotations: { 'stowage.dev/schema': `${schema}` } },
  spec: {
    group: 'stowage.dev',
    scope: 'Cluster',
    names: { kind: 'Store', listKind: 'StoreList', plural: 'stores', singular: 'store' },
    versions: [
      {
        name: 'v1',
        served: true,
        storage: true,
        subresources: { status: {} },
        additionalPrinterColumns: [
          { name: 'Kind', type: 'string', jsonPath: '.status.kind' },
          { name: 'Ready', type: 'string', jsonPath: '.status.conditions[?(@.type=="Ready")].status' },
          { name: 'Capacity', type: 'string', jsonPath: '.status.capacity.total' },
          { name: 'Volumes', type: 'integer', jsonPath: '.status.volumes' },
          { name: 'Age', type: 'date', jsonPath: '.metadata.creationTimestamp' },
          { name: 'URI', type: 'string', jsonPath: '.spec.uri', priority: 1 },
          { name: 'Why', type: 'string', jsonPath: '.status.conditions[?(@.type=="Ready")].message', priority: 1 },
        ],
        schema: {
          openAPIV3Schema: {
            type: 'object',
            description: 'A location of volumes.',
            required: ['spec'],
            'x-kubernetes-validations': [
              {
                rule: "self.metadata.name.size() <= 63 && !self.metadata.name.endsWith('.meta')",
                message: "the name of a store has at most 63 characters and does not end in '.meta'",
              },
            ],
            properties: {
              apiVersion: { type: 'string' },
              kind: { type: 'string' },
              metadata: { type: 'object' },
              spec: {
                type: 'object',
                required: ['uri'],
                'x-kubernetes-validations': optionRules,
                properties: {
                  uri: text('Scheme and location, such as nfs://server/export. Options are in the field options.', {
                    maxLength: 2048,
                    'x-kubernetes-validations': [
                      {
                        rule: schemes.map((scheme) => `self.startsWith('${scheme}')`).join(' || '),
                        message: `a store is one of ${schemes.join(', ')}`,
                      },
                      { rule: "!self.contains('?')", message: 'options are given in spec.options' },
                      { rule: "!self.contains('@')", message: 'a store URI must not contain a user or password' },
                      {
                        rule: 'self == oldSelf',
                        message: 'a store cannot be moved: its volumes are where they are. Make another store',
                      },
                    ],
                  }),
                  options: {
                    type: 'object',
                    description: 'The options, as in stowage.yaml.',
                    maxProperties: 64,
                    additionalProperties: { type: 'string', maxLength: 1024 },
                  },
                  storageClass,
                },
              },
              status: {
                type: 'object',
                properties: {
                  observedGeneration: { type: 'integer', format: 'int64' },
                  kind: text('The scheme of the URI.'),
                  conditions: {
                    type: 'array',
                    items: condition,
                    'x-kubernetes-list-type': 'map',
                    'x-kubernetes-list-map-keys': ['type'],
                  },
                  capacity: {
                    type: 'object',
                    properties: { total: quantity('The total space.'), free: quantity('The approximate free space.') },
                  },
                  volumes: { type: 'integer', format: 'int64' },
                  unhealthyNodes: {
                    type: 'array',
                    items: { type: 'string' },
                    description:
                      'The nodes on which mounts of the store are unhealthy; the message of MountsHealthy names some of them. * means any node.',
                  },
                },
              },
            },
          },
        },
      },
    ],
  },
};

export const storesYaml = (): string =>
  `# Generated by scripts/crds.ts from the store kinds of the program; do not edit.\n${stringify(storeDefinition, { lineWidth: 0 })}`;

if (process.argv[1] === import.meta.filename) for (const file of storesFiles) await writeFile(file, storesYaml());
