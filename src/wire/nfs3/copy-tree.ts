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
  attributes: Attributes,
  to: { readonly directory: FileHandle; readonly name: Text },
  options: CopyOptions,
): Promise<FileHandle> {
  const set = { ...copiedAttributes(attributes, options.keepOwner ?? false), size: 0 };
  const { handle } = await client.create(to.directory, to.name, { mode: 'unchecked', set }, options);
  const writer = createFileWriter(client, handle, options);
  let offset = 0;
  for await (const data of readFile(client, from, options)) {
    await writer.write(offset, data);
    offset += data.length;
  }
  await writer.flush();
  await client.setattr(handle, copiedTimes(attributes), options);
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
  const copiesByHandle = new Map<string, Promise<FileHandle>>([[keyOf(from), Promise.resolve(to)]]);
  const copiesByFileId = new Map<bigint, Promise<FileHandle>>();
  const finishedDirectories: { readonly handle: Promise<FileHandle>; readonly attributes: Attributes }[] = [];

  await walkTree(
    client,
    from,
    async ({ entry, attributes, handle, parent }) => {
      const directory = await (copiesByHandle.get(keyOf(parent)) ?? Promise.resolve(to));
      const name = nameOf(entry);
      const set = copiedAttributes(attributes, keepOwner);
      const target = { directory, name };
      if (attributes.type === fileType.directory) {
        // Keep the directory writable until it is complete.
        const made = ensureDirectory(client, directory, name, { ...set, mode: (set.mode ?? 0) | 0o700 }, options);
        copiesByHandle.set(keyOf(handle), made);
        finishedDirectories.push({ handle: made, attributes: attributes });
        await made;
      } else if (attributes.type === fileType.regular) {
        const existingCopy = copiesByFileId.get(attributes.fileId);
        if (existingCopy !== undefined) return await client.link(await existingCopy, target, options);
        const copy = copyFile(client, handle, attributes, target, options);
        if (attributes.links > 1) copiesByFileId.set(attributes.fileId, copy);
        await copy;
      } else if (attributes.type === fileType.link) {
        await client.symlink(directory, name, await client.readlink(handle, options), {}, options);
      } else {
        await client.mknod(
          { ...target, type: attributes.type, set, major: attributes.major, minor: attributes.minor },
          options,
        );
      }
    },
    options,
  );
  for (const { handle, attributes: about } of finishedDirectories.toReversed())
    await client.setattr(await handle, { ...copiedAttributes(about, keepOwner), ...copiedTimes(about) }, options);
}
