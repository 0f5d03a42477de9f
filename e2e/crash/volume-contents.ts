import { open, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { isErrno } from '#base/errno.ts';

/** A volume according to the server's answers. */
export interface KnownVolume {
  readonly id: string;
  readonly store: string;
  readonly layout: 'directory' | 'image';
  readonly access: 'filesystem' | 'block';
  name: string;
  bytes: bigint | undefined;
  /** The text that was written into the volume when it was mounted. It must stay readable. */
  marker: string | undefined;
  mountedAt: string | undefined;
}

/** Several pages long, so that the loss of a single page is noticed. */
export const contents = (marker: string): string => `${marker}\n`.repeat(2_000);

const pathOf = ({ access, mountedAt = '' }: KnownVolume): string =>
  access === 'block' ? mountedAt : join(mountedAt, 'marker');

export async function writeContents(volume: KnownVolume): Promise<void> {
  await using file = await open(pathOf(volume), volume.access === 'block' ? 'r+' : 'w');
  await file.writeFile(contents(volume.marker ?? ''));
  await file.sync();
}

/** Reads the marker of a mounted volume. Does nothing for a volume without one. */
export async function checkContents(volume: KnownVolume): Promise<void> {
  if (volume.marker === undefined) return;
  const expected = contents(volume.marker);
  await using file = await open(pathOf(volume), 'r');
  const { buffer, bytesRead } = await file.read(Buffer.alloc(expected.length), 0, expected.length, 0);
  const found = buffer.toString('utf8', 0, bytesRead);
  if (found !== expected)
    throw new Error(`volume ${volume.name} holds '${found.slice(0, 100)}', not '${volume.marker}'`);
}

export async function expectReadOnly(target: string): Promise<void> {
  const thrown: unknown = await writeFile(join(target, 'marker'), '').catch((cause: unknown) => cause);
  if (!isErrno(thrown, 'EROFS')) throw new Error(`${target} is read-only, but writing gave ${thrown}`);
}

/** Reads the marker of a directory volume in the store's own directory. */
export async function checkContentsOnStore(root: string, volume: KnownVolume): Promise<void> {
  const found = await readFile(join(root, volume.name, 'marker'), 'utf8');
  if (found !== contents(volume.marker ?? '')) throw new Error(`${root}/${volume.name} holds '${found.slice(0, 100)}'`);
}
