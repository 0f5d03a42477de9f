import { vi } from 'vitest';

// For every test, and for the programs that it starts.

/** A second, as usual, is little where others have the processor or the disk. */
const patienceMs = 10_000;
const { waitFor } = vi;

/** The configuration has a place for this only where `expect.poll` waits. */
vi.waitFor = (look, options = {}) =>
  waitFor(look, { timeout: patienceMs, ...(typeof options === 'number' ? { timeout: options } : options) });

/** Files and folders that tests make are for everybody to read, whatever the user has who runs them. */
process.umask(0o022);
