import { appendFileSync } from 'node:fs';
import { relative } from 'node:path';
import type { Reporter, TestModule, Vitest } from 'vitest/node';

/** One line of the file STOWAGE_MUTANT_EVENTS. */
export type MutantRunEvent =
  | { readonly kind: 'passed'; readonly file: string; readonly seconds: number }
  /** `file` is empty for an error outside of every file. */
  | { readonly kind: 'failed'; readonly file: string; readonly test: string };

/** Writes each event when it happens, so that the file says which tests passed even if the run hangs. */
export default function eventReporter(): Reporter {
  const log = process.env['STOWAGE_MUTANT_EVENTS'];
  const write = (event: MutantRunEvent): void => {
    if (log !== undefined) appendFileSync(log, `${JSON.stringify(event)}\n`);
  };
  let vitest: Vitest | undefined;
  const fileOf = ({ moduleId }: TestModule): string => relative(vitest?.config.root ?? '', moduleId);
  return {
    onInit: (context) => {
      vitest = context;
    },
    onTestCaseResult: (test) => {
      if (test.result().state === 'failed') write({ kind: 'failed', file: fileOf(test.module), test: test.fullName });
    },
    onTestModuleEnd: (module) => {
      if (module.ok()) write({ kind: 'passed', file: fileOf(module), seconds: secondsOf(module) });
      else write({ kind: 'failed', file: fileOf(module), test: 'the file itself' });
    },
    onTestRunEnd: (_, unhandled) => {
      for (const { message } of unhandled) write({ kind: 'failed', file: '', test: message });
    },
  };
}

function secondsOf(module: TestModule): number {
  const { prepareDuration, environmentSetupDuration, setupDuration, collectDuration, duration } = module.diagnostic();
  return (prepareDuration + environmentSetupDuration + setupDuration + collectDuration + duration) / 1000;
}
