import { availableParallelism } from 'node:os';
import { fileURLToPath } from 'node:url';
import { defineConfig } from 'vitest/config';
import { summaryReporter } from './scripts/reporter.ts';
import { filesThatShareProcesses } from './scripts/shared-process.ts';
import { TestOrder } from './scripts/test-order.ts';

const cores = availableParallelism();
const include = ['{src,e2e,scripts,bench}/**/*.test.ts'];
/** These tests need an earlier version: `npm run test:upgrade -- COMMIT`. */
const needEarlierVersion = process.env['STOWAGE_UPGRADE_FROM'] === undefined ? ['e2e/upgrade-from/**'] : [];
const shareProcesses = filesThatShareProcesses(import.meta.dirname);

export default defineConfig({
  test: {
    environment: 'node',
    // The quick files run first: they compute all the time, the others mostly wait.
    projects: [
      {
        extends: true,
        test: {
          name: 'quick',
          include: [...shareProcesses],
          isolate: false,
          maxWorkers: Math.min(6, cores + 2),
          sequence: { groupOrder: 0 },
        },
      },
      {
        extends: true,
        test: {
          name: 'own process',
          include,
          exclude: [...shareProcesses, ...needEarlierVersion],
          // Most of these wait for programs that start and stop, so a few more than there are cores keep them busy.
          maxWorkers: Math.min(6, cores + 2),
          sequence: { groupOrder: 1 },
        },
      },
    ],
    // Processes, not threads: tests change the working folder, the environment and signal handlers.
    pool: 'forks',
    // Vitest has one of its own for `--sequence.shuffle.files`.
    sequence: process.argv.some((word) => word.startsWith('--sequence.shuffle')) ? {} : { sequencer: TestOrder },
    execArgv: ['--disable-warning=ExperimentalWarning'],
    // By its whole path: `npm test` is tested with another root.
    setupFiles: [fileURLToPath(new URL('./src/testing/setup.ts', import.meta.url))],
    testTimeout: 180_000,
    hookTimeout: 180_000,
    teardownTimeout: 30_000,
    // A second, as usual, is little where others have the processor.
    expect: { poll: { timeout: 30_000 } },
    reporters: ['default', summaryReporter()],
  },
});
