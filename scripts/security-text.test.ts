import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { parse, parseAllDocuments } from 'yaml';
import { files } from './manifests.ts';

const repository = join(import.meta.dirname, '..');
const read = (...path: readonly string[]): string => readFileSync(join(repository, ...path), 'utf8');

/** The table of the rights of containers in SECURITY.md. */
const rows = /^In containers:\n\n((?:\|.*\n)+)/m
  .exec(read('SECURITY.md'))?.[1]
  ?.split('\n')
  .map((line) => line.split('|').map((cell) => cell.trim()));
const rightsOf = (where: string): string =>
  rows?.find(([, first]) => first?.includes(where))?.[3] ??
  expect.fail(`SECURITY.md does not tell the rights of ${where}`);
const capabilitiesIn = (text: string): readonly string[] => text.match(/\b[A-Z]+(_[A-Z]+)*\b/g) ?? [];

test('SECURITY.md names the capabilities of the Docker containers', () => {
  const { services } = parse(read('deploy', 'compose.yaml'));
  expect(services.stowage).toMatchObject({ cap_drop: ['ALL'], user: '0:0' });
  expect(services.stowage).not.toHaveProperty('privileged');
  expect(capabilitiesIn(rightsOf('deploy/compose.yaml').split(';')[0] ?? '')).toEqual(services.stowage.cap_add);
  const { linux } = JSON.parse(read('deploy', 'plugin', 'config.json'));
  const named = capabilitiesIn(rightsOf('deploy/plugin/config.json')).map((name) => `CAP_${name}`);
  expect(named).toEqual(linux.capabilities);
});

test('SECURITY.md names the pods of the chart, and which of them are privileged', () => {
  interface Thing {
    readonly metadata: { readonly name: string };
    readonly spec?: {
      readonly template?: {
        readonly spec: {
          readonly containers: readonly { readonly securityContext: { readonly privileged?: boolean } }[];
        };
      };
    };
  }
  const pods = parseAllDocuments(readFileSync(files.manifests, 'utf8'))
    .map((document) => document.toJS() as Thing)
    .filter(({ spec }) => spec?.template !== undefined);
  expect(pods.length).toBe(3);
  for (const { metadata, spec } of pods) {
    const isPrivileged = spec?.template?.spec.containers.some(({ securityContext }) => securityContext.privileged);
    expect(rightsOf(`\`${metadata.name}\``).includes('**privileged**'), metadata.name).toBe(isPrivileged === true);
  }
});

test('SECURITY.md names the node folders of agents', () => {
  const agent = parseAllDocuments(readFileSync(files.manifests, 'utf8'))
    .map((document) => document.toJS())
    .find(({ kind, metadata }) => `${kind} ${metadata.name}` === 'DaemonSet stowage-agent');
  const paths: readonly string[] = agent.spec.template.spec.volumes.flatMap(
    ({ hostPath }: { readonly hostPath?: { readonly path: string } }) => hostPath?.path ?? [],
  );
  const named = ['/var/lib/kubelet', ...(rightsOf('`stowage-agent`').match(/(?<=`)\/[a-z/]+(?=`)/g) ?? [])];
  expect(paths.filter((path) => !path.endsWith('/stowage')).sort()).toEqual(named.sort());
});
