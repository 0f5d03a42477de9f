import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { type ChartFixture, namespace } from './chart-fixture.ts';

/** A request that a test makes as a service account, as a dry run. */
export interface Attempt {
  /** Arguments of kubectl. */
  readonly words: readonly string[];
  /** Passed to kubectl as a file. */
  readonly object?: object;
  /** The denial message of the admission policy. Undefined: the policy allows the request. */
  readonly denial?: string;
}

const dryRun = (verb: string): readonly string[] => [verb, '--dry-run=server'];

/** The first kubectl arguments of an attempt. */
export const dryRuns = {
  create: dryRun('create'),
  replace: dryRun('replace'),
  remove: dryRun('delete'),
  patch: dryRun('patch'),
} as const;

export const merge = (body: object): readonly string[] => ['--type=merge', '--patch', JSON.stringify(body)];

const account = (name: string): string => `system:serviceaccount:${namespace}:stowage-${name}`;
const denied = /denied request: ([^\n]+)/;

/** The result of each attempt: `done`, the policy's denial, or another error. */
export async function runAttempts(
  { cluster }: ChartFixture,
  name: 'controller' | 'agent',
  attempts: Readonly<Record<string, Attempt>>,
): Promise<Readonly<Record<string, string>>> {
  const file = join(cluster.folder, 'attempt.json');
  const outcomes: Record<string, string> = {};
  for (const [what, { words, object }] of Object.entries(attempts)) {
    if (object !== undefined) await writeFile(file, JSON.stringify(object));
    const args = [...words, ...(object === undefined ? [] : ['--filename', file]), `--as=${account(name)}`];
    outcomes[what] = await cluster.kubectl(...args).then(
      () => 'done',
      (error: unknown) => denied.exec(String(error))?.[1] ?? String(error),
    );
  }
  return outcomes;
}

export const expectedOutcomes = (attempts: Readonly<Record<string, Attempt>>): Readonly<Record<string, string>> =>
  Object.fromEntries(Object.entries(attempts).map(([what, { denial }]) => [what, denial ?? 'done']));

/** Makes a service account cluster-admin until the returned object is disposed of. */
export async function grantAllRights(
  { cluster }: ChartFixture,
  name: 'controller' | 'agent',
): Promise<AsyncDisposable> {
  const binding = ['clusterrolebinding', `all-for-the-${name}`];
  const subject = `--serviceaccount=${namespace}:stowage-${name}`;
  await cluster.kubectl('create', ...binding, '--clusterrole=cluster-admin', subject);
  return {
    [Symbol.asyncDispose]: async () => {
      await cluster.kubectl('delete', ...binding);
    },
  };
}
