import type { Created, NfsClient } from '#wire/nfs3/client.ts';
import { isNfsError } from '#wire/nfs3/status.ts';
import { type FileHandle, fileType } from '#wire/nfs3/structures.ts';
import type { CallOptions } from '#wire/rpc/client.ts';
import { type CreationMark, verifierOf } from './creation-marks.ts';

/** Creates an object with a time by which it is recognized. */
export type CreateCall = (directory: FileHandle, mark: CreationMark, options: CallOptions) => Promise<Created>;

export interface NewObject {
  readonly parent: number;
  readonly name: Buffer;
  /** One of `fileType`. */
  readonly type: number;
  readonly create: CreateCall;
  /** Used if the server may not keep the time, or if the object may already have been created. */
  readonly createExclusively?: CreateCall | undefined;
  /** For a symbolic link: servers do not keep our time for it, so it is recognized by its target. */
  readonly target?: Buffer;
}

type RegularFile = (parent: number, name: Buffer, bits: number, isExclusive: boolean) => NewObject;

export function createRegularFile(nfs: NfsClient): RegularFile {
  /** False once the server has refused EXCLUSIVE. */
  let supportsExclusive = true;

  return (parent, name, bits, isExclusive) => {
    const mode = bits & 0o7777;
    const create: CreateCall = (directory, { set }, options) =>
      nfs.create(directory, name, { mode: 'guarded', set: { ...set, mode } }, options);
    /** With EXCLUSIVE, the server recognizes a repeated call until the file's times are set. */
    const createExclusively: CreateCall = async (directory, mark, options) => {
      if (!supportsExclusive) return await create(directory, mark, options);
      try {
        const made = await nfs.create(directory, name, { mode: 'exclusive', verifier: verifierOf(mark.time) }, options);
        const { after } = await nfs.setattr(made.handle, { atime: 'now', mtime: 'now', ...mark.set, mode }, options);
        return { ...made, attributes: after };
      } catch (cause) {
        if (!isNfsError(cause, 'NOTSUPP')) throw cause;
        supportsExclusive = false;
        return await create(directory, mark, options);
      }
    };
    return {
      parent,
      name,
      type: fileType.regular,
      create,
      createExclusively: isExclusive ? createExclusively : undefined,
    };
  };
}
