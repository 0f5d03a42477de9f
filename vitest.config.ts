import { availableParallelism } from 'node:os';
import { fileURLToPath } from 'node:url';
import { defineConfig } from 'vitest/config';
import { summaryReporter } from './scripts/reporter.ts';
import { TestOrder } from './scripts/test-order.ts';

export default defineConfig({
  test: {
    environment: 'node',
    include: ['{src,e2e,scripts,bench}/**/*.test.ts'],
    // Processes, not threads: tests change the working folder, the environment and signal handlers.
    pool: 'forks',
    // Most of the long tests wait for programs that start and stop, so one more than there are cores keeps them busy.
    maxWorkers: Math.min(6, availableParallelism() + 1),
    // Vitest has one of its own for `--sequence.shuffle.files`.
    sequence: process.argv.some((word) => word.startsWith('--sequence.shuffle')) ? {} : { sequencer: TestOrder },
    execArgv: ['--disable-warning=ExperimentalWarning'],
    // By its whole path: `npm test` is tested with another root.
    setupFiles: [fileURLToPath(new URL('./src/testing/setup.ts', import.meta.url))],
    testTimeout: 60_000,
    hookTimeout: 120_000,
    teardownTimeout: 30_000,
    // A second, as usual, is little where others have the processor.
    expect: { poll: { timeout: 10_000 } },
    reporters: ['default', summaryReporter()],
  },
});
