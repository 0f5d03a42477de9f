import { open, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { isErrno } from '#base/errno.ts';

/** What we were told there is, by the answers we got. */
export interface KnownVolume {
  readonly id: string;
  readonly store: string;
  readonly layout: 'directory' | 'image';
  readonly access: 'filesystem' | 'block';
  name: string;
  bytes: bigint | undefined;
  /** Written into the volume when it was mounted; must be there ever after. */
  marker: string | undefined;
  mountedAt: string | undefined;
}

/** Some pages of it, so that a lost one is noticed. */
export const contents = (marker: string): string => `${marker}\n`.repeat(2_000);

const pathOf = ({ access, mountedAt = '' }: KnownVolume): string =>
  access === 'block' ? mountedAt : join(mountedAt, 'marker');

export async function writeContents(volume: KnownVolume): Promise<void> {
  await using file = await open(pathOf(volume), volume.access === 'block' ? 'r+' : 'w');
  await file.writeFile(contents(volume.marker ?? ''));
  await file.sync();
}

/** Of a mounted volume; of one in which nothing was written, nothing can be said. */
export async function checkContents(volume: KnownVolume): Promise<void> {
  if (volume.marker === undefined) return;
  const wanted = contents(volume.marker);
  await using file = await open(pathOf(volume), 'r');
  const { buffer, bytesRead } = await file.read(Buffer.alloc(wanted.length), 0, wanted.length, 0);
  const found = buffer.toString('utf8', 0, bytesRead);
  if (found !== wanted) throw new Error(`volume ${volume.name} holds '${found.slice(0, 100)}', not '${volume.marker}'`);
}

export async function expectReadOnly(target: string): Promise<void> {
  const thrown: unknown = await writeFile(join(target, 'marker'), '').catch((cause: unknown) => cause);
  if (!isErrno(thrown, 'EROFS')) throw new Error(`${target} is read-only, but writing gave ${thrown}`);
}

/** Where a directory volume lies on its store. */
export async function checkOnStore(root: string, volume: KnownVolume): Promise<void> {
  const found = await readFile(join(root, volume.name, 'marker'), 'utf8');
  if (found !== contents(volume.marker ?? '')) throw new Error(`${root}/${volume.name} holds '${found.slice(0, 100)}'`);
}
