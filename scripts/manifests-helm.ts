import { execFile } from 'node:child_process';
import { cp, mkdtempDisposable, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { toolPath } from '#testbed/lacks.ts';
import { chart } from './manifests.ts';

/** Renders a chart with a real Helm. `values` maps paths to JSON values. */
async function template(folder: string, values: Readonly<Record<string, unknown>>): Promise<string> {
  const given = Object.entries(values).flatMap(([path, value]) => ['--set-json', `${path}=${JSON.stringify(value)}`]);
  const words = ['template', 'stowage', folder, '--kube-version', '1.30.0', ...given];
  return (await promisify(execFile)(toolPath('helm'), words, { maxBuffer: 16 * 1024 * 1024 })).stdout;
}

export const rendered = (values: Readonly<Record<string, unknown>> = {}): Promise<string> => template(chart, values);

/**
 * The notes that Helm prints after an installation. Helm renders them for a cluster only, so this adds them to the
 * chart as a template.
 */
export async function notes(values: Readonly<Record<string, unknown>> = {}): Promise<string> {
  await using folder = await mkdtempDisposable(join(tmpdir(), 'stowage-notes-'));
  await cp(chart, folder.path, { recursive: true });
  await cp(join(chart, 'templates', 'NOTES.txt'), join(folder.path, 'notes.txt'));
  const shown = join(folder.path, 'templates', 'shown.yaml');
  await writeFile(shown, 'kind: Shown\nnotes: {{ tpl (.Files.Get "notes.txt") . | toJson }}\n');
  const [, line = ''] = /^notes: (.*)$/m.exec(await template(folder.path, values)) ?? [];
  return JSON.parse(line) as string;
}
