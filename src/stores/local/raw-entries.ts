import { opendir } from 'node:fs/promises';

export interface RawEntry {
  readonly name: Buffer;
  isDirectory(): boolean;
}

/** Lists names as bytes: as strings, names that are not UTF-8 could be neither read nor removed. */
export async function openRawDirectory(directory: Buffer): Promise<AsyncIterable<RawEntry>> {
  // The types know only text encodings; Node takes 'buffer' here as it does for readdir.
  const options = { encoding: 'buffer', bufferSize: 256 } as unknown as { bufferSize: number };
  return (await opendir(directory, options)) as unknown as AsyncIterable<RawEntry>;
}
