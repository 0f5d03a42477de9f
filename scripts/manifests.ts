// Generates files from the chart: its schema, the page about its values, and manifests for users without Helm.
//   node scripts/manifests.ts [HELM]
import { execFile } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { readValues, schemaText, valuesPage } from './manifests-values.ts';

const repository = join(import.meta.dirname, '..');
const folder = join(repository, 'deploy', 'kubernetes');
export const chart = join(folder, 'chart');
export const files = {
  schema: join(chart, 'values.schema.json'),
  page: join(repository, 'docs', 'reference', 'chart.md'),
  manifests: join(folder, 'stowage.yaml'),
};

const namespace = 'stowage-system';
/** The namespace must allow privileged agents if Pod Security admission is enabled. */
const head = `# Made by scripts/manifests.ts from the chart beside it, with its default values; do not edit. For users without Helm:
#
#   kubectl apply --server-side -f crds/stores.yaml
#   sed 's|image: stowage:|image: REGISTRY/stowage:|' stowage.yaml | kubectl apply --server-side -f -
apiVersion: v1
kind: Namespace
metadata:
  name: ${namespace}
  labels:
    pod-security.kubernetes.io/enforce: privileged
`;

export const chartValues = (): ReturnType<typeof readValues> =>
  readValues(readFileSync(join(chart, 'values.yaml'), 'utf8'));

/** Renders the manifests with a real Helm, which needs no cluster for that. */
export async function manifestsText(helm: string): Promise<string> {
  const words = ['template', 'stowage', chart, '--namespace', namespace, '--kube-version', '1.30.0'];
  const { stdout } = await promisify(execFile)(helm, words, { maxBuffer: 16 * 1024 * 1024, timeout: 60_000 });
  // Removes comments of the sources, and annotations that only Helm reads.
  const own = stdout
    .replaceAll(/^# Source: .*\n/gm, '')
    .replaceAll(/^ {2}annotations:\n {4}helm\.sh\/resource-policy: keep\n/gm, '');
  return `${head}${own}`;
}

if (process.argv[1] === import.meta.filename) {
  const values = chartValues();
  await writeFile(files.schema, schemaText(values));
  await writeFile(files.page, valuesPage(values));
  await writeFile(files.manifests, await manifestsText(process.argv[2] ?? 'helm'));
}
