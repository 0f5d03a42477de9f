import type { Client } from '#core/ports.ts';

/** What core asks about sources of images. Pure functions. */
export const loopSources: Required<Pick<Client<'loop'>, 'withMountOptions' | 'filesystemOf'>> = {
  // The device itself must refuse writing: a read-only mount of its node would not.
  withMountOptions: (source, { readOnly }) => (source.filesystem === undefined ? { ...source, readOnly } : source),
  filesystemOf: ({ filesystem }) => filesystem,
};
