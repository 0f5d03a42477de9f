import { vi } from 'vitest';

/** A second, as usual, is little where others have the processor or the disk. */
const patienceMs = 10_000;
const { waitFor } = vi;

/** For every test: the configuration has a place for this only where `expect.poll` waits. */
vi.waitFor = (look, options = {}) =>
  waitFor(look, { timeout: patienceMs, ...(typeof options === 'number' ? { timeout: options } : options) });
