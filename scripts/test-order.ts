import { statSync } from 'node:fs';
import { dirname, relative } from 'node:path';
import { BaseSequencer, type TestSpecification } from 'vitest/node';
import { slowFiles } from './slow-files.ts';

const repository = dirname(import.meta.dirname);

/** The assumed minimum duration of a quick file. It grows with the size of the file. */
const shortestSeconds = 2;
const bytesASecond = 3_000;

export interface TestFile {
  /** The path from the repository's root. */
  readonly path: string;
  readonly bytes: number;
}

/**
 * Workers take files from one queue. With this order, about half of the workers run slow files, which mostly wait,
 * while the others run quick files, which compute. The longest files come first, so that no worker is left with a long
 * one at the end.
 */
export function runOrder(
  files: readonly TestFile[],
  slow: Readonly<Record<string, number>>,
  workers: number,
): readonly TestFile[] {
  const half = Math.max(1, Math.round(workers / 2));
  const estimated = files.map((file) => ({
    file,
    isSlow: file.path in slow,
    seconds: slow[file.path] ?? shortestSeconds + file.bytes / bytesASecond,
  }));
  const { slow: waiting = [], quick = [] } = Object.groupBy(estimated, ({ isSlow }) => (isSlow ? 'slow' : 'quick'));
  return [...estimateStarts(waiting, half), ...estimateStarts(quick, half)]
    .toSorted((a, b) => a.beginsAt - b.beginsAt)
    .map(({ file }) => file);
}

interface Estimated {
  readonly file: TestFile;
  readonly seconds: number;
}

/** Estimates when each file starts if these workers run only these files. */
function estimateStarts(
  files: readonly Estimated[],
  workers: number,
): readonly { readonly file: TestFile; readonly beginsAt: number }[] {
  const ends = Array.from({ length: workers }, () => 0);
  const longestFirst = files.toSorted((a, b) => b.seconds - a.seconds || (a.file.path < b.file.path ? -1 : 1));
  return longestFirst.map(({ file, seconds }) => {
    const beginsAt = Math.min(...ends);
    ends[ends.indexOf(beginsAt)] = beginsAt + seconds;
    return { file, beginsAt };
  });
}

export class TestOrder extends BaseSequencer {
  override async sort(specifications: TestSpecification[]): Promise<TestSpecification[]> {
    const byProject = Map.groupBy(specifications, ({ project }) => project);
    return [...byProject].flatMap(([{ config }, ofProject]) => {
      const byPath = new Map(ofProject.map((one) => [relative(repository, one.moduleId), one]));
      const files = [...byPath].map(([path, { moduleId }]) => ({ path, bytes: statSync(moduleId).size }));
      return runOrder(files, slowFiles, Number(config.maxWorkers)).flatMap(({ path }) => byPath.get(path) ?? []);
    });
  }
}
