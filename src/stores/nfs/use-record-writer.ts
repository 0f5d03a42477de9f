import { type Clock, DeadlineExceeded } from '#base/clock.ts';
import { isErrno } from '#base/errno.ts';
import type { NodeName, Use, VolumeId, VolumeRef } from '#core/model.ts';
import { writtenElsewhere } from '#core/mount-errors.ts';
import { isDefiniteFailure } from '../file-store/files.ts';
import type { HoldLimit } from '../file-store/held-scope.ts';
import type { NfsStoreRoot } from './open-store-root.ts';
import { undefinedIfAbsent } from './use-record-reader.ts';

/** Retries while other hosts remove the folder. */
const maxAttempts = 16;
const maxPauseMs = 20;

/** Creates the files in `.stowage/users/<volume id>`. Call it with the volume locked. */
export interface UseRecordWriter {
  create(id: VolumeId, path: string, text: string, limit: HoldLimit, signal: AbortSignal): Promise<void>;
  /** Makes the host the only writer. Throws if another host is. */
  takeWriter(ref: VolumeRef, host: string, limit: HoldLimit, signal: AbortSignal): Promise<void>;
  dropWriter(id: VolumeId, host: string, limit: HoldLimit): Promise<void>;
}

export function createUseRecordWriter(storeRoot: NfsStoreRoot, clock: Clock): UseRecordWriter {
  const { files } = storeRoot;
  const { folderOf, writerOf, writer, removeFolder, list } = storeRoot.uses;

  /** Creates the folder and retries: a host that stops using the volume may remove the folder that another has just found or created. */
  async function inFolder(id: VolumeId, signal: AbortSignal, work: () => Promise<unknown>): Promise<void> {
    for (let attempt = 1; ; attempt++) {
      let hasFolder = false;
      try {
        await files.makeFolder(folderOf(id));
        hasFolder = true;
        await work();
        return;
      } catch (cause) {
        const isRemoved = isErrno(cause, 'ENOENT', 'ESTALE') || (!hasFolder && isErrno(cause, 'EEXIST'));
        if (attempt >= maxAttempts || !isRemoved) throw cause;
      }
      await clock.sleep(Math.random() * maxPauseMs, signal);
    }
  }

  /** The host's record, which it may not have written yet. */
  async function useBy(id: VolumeId, host: string): Promise<Use> {
    const uses = await list(id).catch((): readonly Use[] => []);
    return uses.find((use) => use.host === host) ?? { host, node: host as NodeName, users: [] };
  }

  return {
    create: async (id, path, text, limit, signal) => {
      const fresh = storeRoot.scratchPath();
      await files.writeNew(fresh, text);
      try {
        await inFolder(id, signal, async () => {
          limit.check();
          if (!(await files.rename(fresh, path))) throw new Error(`${fresh} was removed by another program`);
        });
      } catch (cause) {
        // If the server did not answer, the rename may have happened.
        if (isDefiniteFailure(cause) || cause instanceof DeadlineExceeded) await files.unlink(fresh).catch(() => false);
        throw cause;
      }
    },
    takeWriter: async ({ id, name }, host, limit, signal) => {
      // Under the lock no other host writes it, so a crash left this empty file.
      if ((await writer(id)) === '') {
        limit.check();
        await files.unlink(writerOf(id));
      }
      try {
        await inFolder(id, signal, () => {
          limit.check();
          return files.writeNew(writerOf(id), host);
        });
      } catch (cause) {
        if (!isErrno(cause, 'EEXIST')) throw cause;
        const writerHost = (await writer(id)) ?? 'HOST';
        if (writerHost !== host) throw writtenElsewhere(storeRoot.store, name, await useBy(id, writerHost));
      }
    },
    dropWriter: async (id, host, limit) => {
      const isWriter = (await writer(id)) === host;
      limit.check();
      if (isWriter) await undefinedIfAbsent(files.unlink(writerOf(id)));
      await removeFolder(id);
    },
  };
}
