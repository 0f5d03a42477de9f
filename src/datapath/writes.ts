import { Errno } from '#wire/fuse/errno.ts';
import type { Request } from '#wire/fuse/operations.ts';
import type { WriteResult } from '#wire/nfs3/procedures.ts';
import { stability } from '#wire/nfs3/structures.ts';
import { XdrError } from '#wire/xdr/reader.ts';
import { changing } from './attributes.ts';
import type { Context } from './context.ts';
import { writes as isForWriting, opener } from './open-files.ts';

/** What is written, and whether it is on the server's disk. */
export interface Writes {
  write(
    id: number,
    at: { readonly fh: number; readonly offset: number },
    data: Buffer,
    request: Request,
  ): Promise<number>;
  /** All of it is on the server's disk, or it throws what went wrong, once for each open file. */
  settle(id: number, fh: number, request: Request): Promise<void>;
  /** Undefined: the server has answered every write so far (of the range), and its attributes are right. */
  settled(id: number, range?: { readonly offset: number; readonly length: number }): Promise<void> | undefined;
  /** Where the file ends at least, by writes that the server may not have yet. */
  end(id: number): number;
  opened(id: number, fh: number): void;
  closed(fh: number): void;
  forget(id: number): void;
}

interface Written {
  /** Writes that the server took and may still lose, counted from the beginning; and those of them that it cannot. */
  taken: number;
  committed: number;
  /** Of the server that took the last. Another one: it has started anew. */
  verifier: bigint | undefined;
  /** How often data were lost that had been taken. */
  losses: number;
}

/** Data are not kept here: an application waits until the server has them, and is told when it lost them. */
export function createWrites(context: Context, maxWrite: number): Writes {
  const { nfs, server, attributes } = context;
  const files = new Map<number, Written>();
  /** Of which losses each open file knows. */
  const told = new Map<number, number>();

  function of(id: number): Written {
    const found = files.get(id);
    if (found !== undefined) return found;
    const made = { taken: 0, committed: 0, verifier: undefined, losses: 0 };
    files.set(id, made);
    return made;
  }

  function tellLosses(id: number, fh: number): void {
    const losses = files.get(id)?.losses ?? 0;
    if (losses <= (told.get(fh) ?? 0)) return;
    told.set(fh, losses);
    throw new Errno('EIO');
  }

  function taken(file: Written, { committed, verifier }: WriteResult): void {
    if (file.taken > file.committed && file.verifier !== verifier) lost(file);
    if (committed !== stability.unstable) return;
    file.verifier = verifier;
    file.taken++;
  }

  function lost(file: Written): void {
    file.committed = file.taken;
    file.losses++;
  }

  async function send(id: number, fh: number, offset: number, data: Buffer, request: Request): Promise<number> {
    const call = () =>
      server.on(
        request,
        id,
        (handle, options) => nfs.write(handle, offset, data, stability.unstable, options),
        opener(fh, request, attributes.last(id)),
      );
    const result = await changing(attributes, id, call, ({ change }) => change);
    if (result.count === 0) throw new XdrError('the server takes nothing');
    taken(of(id), result);
    return result.count;
  }

  async function commit(id: number, fh: number, file: Written, request: Request): Promise<void> {
    const { taken: upTo, verifier } = file;
    const call = () =>
      server.on(
        request,
        id,
        (handle, options) => nfs.commit(handle, 0, 0, options),
        opener(fh, request, attributes.last(id)),
      );
    const result = await changing(attributes, id, call, ({ change }) => change);
    // Otherwise somebody else has found out meanwhile.
    if (file.committed >= upTo) return;
    if (result.verifier === verifier) file.committed = upTo;
    else lost(file);
  }

  return {
    write: async (id, { fh, offset }, data, request) => {
      tellLosses(id, fh);
      let done = 0;
      while (done < data.length) {
        const part = data.subarray(done, done + maxWrite);
        done += await send(id, fh, offset + done, part, request).catch((cause: unknown) => {
          if (done === 0) throw cause;
          return data.length;
        });
      }
      const length = Math.min(done, data.length);
      attributes.grew(id, offset + length);
      return length;
    },
    settle: async (id, fh, request) => {
      const file = of(id);
      // What a predecessor wrote is not known: the server is asked all the same.
      if (file.taken > file.committed || (!told.has(fh) && isForWriting(fh))) await commit(id, fh, file, request);
      tellLosses(id, fh);
    },
    // Nothing is answered before the server has it.
    settled: () => undefined,
    end: () => 0,
    opened: (id, fh) => {
      told.set(fh, files.get(id)?.losses ?? 0);
    },
    closed: (fh) => {
      told.delete(fh);
    },
    forget: (id) => {
      files.delete(id);
    },
  };
}
