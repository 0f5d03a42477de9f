import type { AnyCluster } from './cluster.ts';

/** The argument of each test. */
export interface TestContext {
  readonly cluster: AnyCluster;
  /** A namespace that only these tests use. */
  readonly namespace: string;
  /** A part of the names of cluster-scoped objects. */
  readonly unique: string;
  /** An image with a shell. */
  readonly shell: string;
  /** The names of nodes that can run pods. */
  readonly nodes: readonly string[];
  /** The names of a class and its store. Undefined: the cluster has no class of that kind. */
  readonly shared: ClassOfStore | undefined;
  readonly local: ClassOfStore | undefined;
  readonly images: ClassOfStore | undefined;
}

export interface ClassOfStore {
  readonly name: string;
  readonly store: string;
  readonly driver: string;
}

export interface PortableTest {
  readonly name: string;
  /** Returns why the test can't run on this cluster, or undefined. */
  readonly skipReason?: (context: TestContext) => string | undefined;
  run(context: TestContext): Promise<void>;
}

export interface Tally {
  readonly passed: number;
  readonly failed: number;
  readonly skipped: number;
}

export async function runAll(
  tests: readonly PortableTest[],
  context: TestContext,
  print: (line: string) => void,
): Promise<Tally> {
  const tally = { passed: 0, failed: 0, skipped: 0 };
  for (const test of tests) {
    const why = test.skipReason?.(context);
    if (why !== undefined) {
      tally.skipped++;
      print(`skipped  ${test.name}: ${why}`);
      continue;
    }
    const began = performance.now();
    try {
      await test.run(context);
      tally.passed++;
      print(`passed   ${test.name} (${((performance.now() - began) / 1000).toFixed(1)} s)`);
    } catch (thrown) {
      tally.failed++;
      print(`FAILED   ${test.name}: ${thrown instanceof Error ? thrown.message : String(thrown)}`);
    }
  }
  return tally;
}

export const summaryOf = ({ passed, failed, skipped }: Tally): string =>
  `${passed} passed, ${failed} failed, ${skipped} skipped`;
