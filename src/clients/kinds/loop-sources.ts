import type { Client } from '#core/ports.ts';

/** What core needs to know about loop sources. Pure functions. */
export const loopSources: Required<Pick<Client<'loop'>, 'withMountOptions' | 'filesystemOf'>> = {
  // The device itself must be read-only: a read-only mount of its node would not prevent writes.
  withMountOptions: (source, { readOnly }) => (source.filesystem === undefined ? { ...source, readOnly } : source),
  filesystemOf: ({ filesystem }) => filesystem,
};
