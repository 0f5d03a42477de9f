import { createHash } from 'node:crypto';
import { readFile, rename, writeFile } from 'node:fs/promises';
import { closureHash, type Graph } from './graph.ts';
import type { Budget, Verdict } from './judge.ts';
import type { Mutant } from './mutant.ts';

/** Verdicts by key, and the duration of each test file in seconds. */
export interface Cache {
  readonly verdicts: Map<string, Verdict>;
  readonly durations: Map<string, number>;
  save(): Promise<void>;
}

/** Without a file, the cache is not saved. A missing file is an empty cache. */
export async function openCache(file: string | undefined): Promise<Cache> {
  const text = file === undefined ? '' : await readFile(file, 'utf8').catch(() => '');
  const stored = text === '' ? { verdicts: {}, durations: {} } : JSON.parse(text);
  const verdicts = new Map<string, Verdict>(Object.entries(stored.verdicts));
  const durations = new Map<string, number>(Object.entries(stored.durations));
  return {
    verdicts,
    durations,
    save: async () => {
      if (file === undefined) return;
      const content = { verdicts: Object.fromEntries(verdicts), durations: Object.fromEntries(durations) };
      await writeFile(`${file}.new`, `${JSON.stringify(content, undefined, 1)}\n`);
      await rename(`${file}.new`, file);
    },
  };
}

/**
 * Equal keys mean the same change of the same file, the same tests with everything that they load, and the same budget.
 */
export function cacheKey(graph: Graph, mutant: Mutant, tests: readonly string[], budget: Budget): string {
  const { file, offset, original, replacement, context } = mutant;
  const source = closureHash(graph, [file, ...tests]);
  const content = JSON.stringify([file, offset, original, replacement, context, tests, source, budget]);
  return createHash('sha256').update(content).digest('hex');
}
