import { writeFileSync } from 'node:fs';
import { dirname, relative } from 'node:path';
import type { Reporter, TestModule, TestSuite, Vitest } from 'vitest/node';
import type { Outcome } from './summary.ts';

const repository = dirname(import.meta.dirname);

/** Writes the results to the file STOWAGE_OUTCOME. `npm test` prints them at the end. */
export function summaryReporter(file = process.env['STOWAGE_OUTCOME']): Reporter {
  let vitest: Vitest | undefined;
  return {
    onInit: (context) => {
      vitest = context;
    },
    onTestRunEnd: (modules, unhandled) => {
      if (file === undefined || file === '' || vitest === undefined) return;
      const chosen = vitest.config.testNamePattern;
      const found = modules.map((module) => outcomeOf(module, chosen));
      const skipped = found.flatMap(({ skipped: n }, i) => (n === 0 ? [] : [[nameOf(modules[i]), n] as const]));
      const outcome: Outcome = {
        passed: found.reduce((n, each) => n + each.passed, 0),
        failed: found.reduce((n, each) => n + each.failed, unhandled.length),
        skipped: Object.fromEntries(skipped),
        milliseconds: Object.fromEntries(modules.map((module) => [nameOf(module), millisecondsOf(module)])),
      };
      writeFileSync(file, JSON.stringify(outcome));
    },
  };
}

const nameOf = (module: TestModule | undefined): string =>
  module === undefined ? '' : relative(repository, module.moduleId);

function millisecondsOf(module: TestModule): number {
  const { prepareDuration, environmentSetupDuration, setupDuration, collectDuration, duration } = module.diagnostic();
  return prepareDuration + environmentSetupDuration + setupDuration + collectDuration + duration;
}

function outcomeOf(
  module: TestModule,
  chosen: RegExp | undefined,
): { passed: number; failed: number; skipped: number } {
  const outcome = { passed: 0, failed: 0, skipped: 0 };
  const tests = [...module.children.allTests()];
  // A file that did not load has no tests, so it counts itself. After a failed hook, the tests that did not run count.
  if (module.errors().length > 0 && tests.length === 0) outcome.failed += 1;
  for (const test of tests) {
    const { state } = test.result();
    if (state === 'passed') outcome.passed += 1;
    else if (state === 'failed' || underFailure(test.parent)) outcome.failed += 1;
    // With `-t`, all other tests are skipped, too. The user did not request them, so they do not count.
    else if (chosen === undefined || chosen.test(test.fullName.replaceAll(' > ', ' '))) outcome.skipped += 1;
  }
  return outcome;
}

function underFailure(parent: TestSuite | TestModule): boolean {
  return parent.errors().length > 0 || (parent.type === 'suite' && underFailure(parent.parent));
}
