import type { Text } from '../xdr/writer.ts';
import type { NfsClient } from './client.ts';
import { readFile } from './file-reader.ts';
import { createFileWriter } from './file-writer.ts';
import { isNfsError } from './status.ts';
import { type Attributes, type FileHandle, fileType, nameOf, type SetAttributes } from './structures.ts';
import { type TreeOptions, walkTree } from './walk-tree.ts';

export interface CopyOptions extends TreeOptions {
  /** Whether to copy owner and group; only root may set them. */
  readonly keepOwner?: boolean;
}

const copiedAttributes = ({ mode, uid, gid }: Attributes, keepOwner: boolean): SetAttributes => ({
  mode: mode & 0o7777,
  ...(keepOwner ? { uid, gid } : {}),
});

const copiedTimes = (a: Attributes): SetAttributes => ({
  atime: { seconds: a.atime, nanoseconds: a.atimeNs },
  mtime: { seconds: a.mtime, nanoseconds: a.mtimeNs },
});

/** Creates a directory, or finds it, so that an interrupted copy can continue. */
async function ensureDirectory(
  client: NfsClient,
  parent: FileHandle,
  name: Text,
  set: SetAttributes,
  options: CopyOptions,
) {
  try {
    return (await client.mkdir(parent, name, set, options)).handle;
  } catch (cause) {
    if (!isNfsError(cause, 'EXIST')) throw cause;
    return (await client.lookup(parent, name, options)).handle;
  }
}

async function copyFile(
  client: NfsClient,
  from: FileHandle,
  about: Attributes,
  to: { readonly directory: FileHandle; readonly name: Text },
  options: CopyOptions,
): Promise<FileHandle> {
  const set = { ...copiedAttributes(about, options.keepOwner ?? false), size: 0 };
  const { handle } = await client.create(to.directory, to.name, { mode: 'unchecked', set }, options);
  const writer = createFileWriter(client, handle, options);
  let at = 0;
  for await (const data of readFile(client, from, options)) {
    await writer.write(at, data);
    at += data.length;
  }
  await writer.flush();
  await client.setattr(handle, copiedTimes(about), options);
  return handle;
}

/**
 * Copies the contents of one directory into another on the same server: files (holes become zeros), symbolic links, hard links,
 * modes and times. Devices, sockets and FIFOs are created where the server supports it.
 */
export async function copyTree(
  client: NfsClient,
  from: FileHandle,
  to: FileHandle,
  options: CopyOptions = {},
): Promise<void> {
  const keepOwner = options.keepOwner ?? false;
  const keyOf = (handle: FileHandle): string => Buffer.from(handle).toString('latin1');
  /** The copy of each directory; parents are visited before their children. */
  const folders = new Map<string, Promise<FileHandle>>([[keyOf(from), Promise.resolve(to)]]);
  const linked = new Map<bigint, Promise<FileHandle>>();
  const finishedDirectories: { readonly handle: Promise<FileHandle>; readonly about: Attributes }[] = [];

  await walkTree(
    client,
    from,
    async ({ entry, attributes, handle, parent }) => {
      const directory = await (folders.get(keyOf(parent)) ?? Promise.resolve(to));
      const name = nameOf(entry);
      const set = copiedAttributes(attributes, keepOwner);
      const place = { directory, name };
      if (attributes.type === fileType.directory) {
        // Keep the directory writable until it is complete.
        const made = ensureDirectory(client, directory, name, { ...set, mode: (set.mode ?? 0) | 0o700 }, options);
        folders.set(keyOf(handle), made);
        finishedDirectories.push({ handle: made, about: attributes });
        await made;
      } else if (attributes.type === fileType.regular) {
        const first = linked.get(attributes.fileId);
        if (first !== undefined) return await client.link(await first, place, options);
        const copied = copyFile(client, handle, attributes, place, options);
        if (attributes.links > 1) linked.set(attributes.fileId, copied);
        await copied;
      } else if (attributes.type === fileType.link) {
        await client.symlink(directory, name, await client.readlink(handle, options), {}, options);
      } else {
        await client.mknod(
          { ...place, type: attributes.type, set, major: attributes.major, minor: attributes.minor },
          options,
        );
      }
    },
    options,
  );
  for (const { handle, about } of finishedDirectories.toReversed())
    await client.setattr(await handle, { ...copiedAttributes(about, keepOwner), ...copiedTimes(about) }, options);
}
