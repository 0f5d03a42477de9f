import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { type ChartFixture, namespace } from './chart-fixture.ts';

/** Something that an account tries. What the API server would let it do is not done. */
export interface Attempt {
  /** Of kubectl. */
  readonly words: readonly string[];
  /** Is given to kubectl as a file. */
  readonly object?: object;
  /** What the policy says to it; left out: it may. */
  readonly refused?: string;
}

const dryRun = (verb: string): readonly string[] => [verb, '--dry-run=server'];

/** The first words of an attempt. */
export const dryRuns = {
  create: dryRun('create'),
  replace: dryRun('replace'),
  remove: dryRun('delete'),
  patch: dryRun('patch'),
} as const;

export const merge = (body: object): readonly string[] => ['--type=merge', '--patch', JSON.stringify(body)];

const account = (name: string): string => `system:serviceaccount:${namespace}:stowage-${name}`;
const denied = /denied request: ([^\n]+)/;

/** What came of each: `done`, what the policy said, or what else was said. */
export async function outcomesOf(
  { cluster }: ChartFixture,
  name: 'controller' | 'agent',
  attempts: Readonly<Record<string, Attempt>>,
): Promise<Readonly<Record<string, string>>> {
  const file = join(cluster.folder, 'attempt.json');
  const outcomes: Record<string, string> = {};
  for (const [what, { words, object }] of Object.entries(attempts)) {
    if (object !== undefined) await writeFile(file, JSON.stringify(object));
    const all = [...words, ...(object === undefined ? [] : ['--filename', file]), `--as=${account(name)}`];
    outcomes[what] = await cluster.kubectl(...all).then(
      () => 'done',
      (error: unknown) => denied.exec(String(error))?.[1] ?? String(error),
    );
  }
  return outcomes;
}

export const expectedOf = (attempts: Readonly<Record<string, Attempt>>): Readonly<Record<string, string>> =>
  Object.fromEntries(Object.entries(attempts).map(([what, { refused }]) => [what, refused ?? 'done']));

/** An account may do everything, for as long as it is held. */
export async function withAllRights({ cluster }: ChartFixture, name: 'controller' | 'agent'): Promise<AsyncDisposable> {
  const binding = ['clusterrolebinding', `all-for-the-${name}`];
  const subject = `--serviceaccount=${namespace}:stowage-${name}`;
  await cluster.kubectl('create', ...binding, '--clusterrole=cluster-admin', subject);
  return {
    [Symbol.asyncDispose]: async () => {
      await cluster.kubectl('delete', ...binding);
    },
  };
}
