import { DeadlineExceeded } from '#base/clock.ts';
import { isErrno } from '#base/errno.ts';
import type { Scope } from '#base/log.ts';
import { StowageError } from '#core/errors.ts';
import type { NodeName, Use, VolumeId, VolumeRef } from '#core/model.ts';
import { writtenElsewhere } from '#core/mount-errors.ts';
import { quoted } from '#core/names.ts';
import type { Uses } from '#core/ports.ts';
import { notFound } from '../file-store/errors.ts';
import { isDefiniteFailure } from '../file-store/files.ts';
import { finishInterrupted } from '../file-store/finish-interrupted.ts';
import { usableDataPath } from '../file-store/read-verbs.ts';
import type { HoldLimit, VerbContext } from '../file-store/verb-context.ts';
import type { NfsStoreRoot } from './open-store-root.ts';
import { undefinedIfAbsent } from './use-record-reader.ts';
import { encode, isHostId, recordLimit } from './uses-format.ts';

/** How often the folder can vanish under us. */
const maxAttempts = 16;
const pauseMs = 20;

/** Use records: a file per volume and host, rewritten while there are users there. */
export function createUses(parts: VerbContext, storeRoot: NfsStoreRoot): Uses {
  const { runVerb, clock } = parts;
  const { files } = storeRoot;
  const { folderOf, writerOf, writer, removeFolder } = storeRoot.uses;

  function recordOf(id: VolumeId, host: string): string {
    if (!isHostId(host)) throw badHost(host);
    return `${folderOf(id)}/${host}`;
  }

  /** A host that leaves may remove the folder that another has just found or made. */
  async function inFolder(id: VolumeId, signal: AbortSignal, work: () => Promise<unknown>): Promise<void> {
    for (let again = 1; ; again++) {
      let isThere = false;
      try {
        await files.makeFolder(folderOf(id));
        isThere = true;
        await work();
        return;
      } catch (cause) {
        const isRemoved = isErrno(cause, 'ENOENT', 'ESTALE') || (!isThere && isErrno(cause, 'EEXIST'));
        if (again >= maxAttempts || !isRemoved) throw cause;
      }
      await clock.sleep(Math.random() * pauseMs, signal);
    }
  }

  /**
   * With a volume that is there, held: whoever wants to be rid of it looks for uses while holding it, so it finds this
   * one, or the volume is gone before this begins.
   */
  const withExistingVolume = (doing: string, ref: VolumeRef, scope: Scope, work: (limit: HoldLimit) => Promise<void>) =>
    runVerb(doing, [ref.name, ref.id], scope, async (held) => {
      const meta = await parts.findRenamed(ref, held);
      // A deletion may have got no further than the data: it is finished then.
      if (meta === undefined || (await finishInterrupted(parts, meta, held))) throw notFound(ref.name, storeRoot.store);
      await usableDataPath(parts, meta);
      await work(held.limit);
    });

  async function createRecord(
    id: VolumeId,
    path: string,
    text: string,
    limit: HoldLimit,
    signal: AbortSignal,
  ): Promise<void> {
    const fresh = storeRoot.scratchPath();
    await files.writeNew(fresh, text);
    try {
      await inFolder(id, signal, async () => {
        limit.check();
        if (!(await files.rename(fresh, path))) throw new Error(`${fresh} was removed by somebody else`);
      });
    } catch (cause) {
      // Where the server did not answer, the record may be in its place already.
      if (isDefiniteFailure(cause) || cause instanceof DeadlineExceeded) await files.unlink(fresh).catch(() => false);
      throw cause;
    }
  }

  const dropWriter: Uses['dropWriter'] = (id, host, scope) =>
    runVerb(`giving up writing to ${id}`, [id], scope, async ({ limit }) => {
      const isWriter = (await writer(id)) === host;
      limit.check();
      if (isWriter) await undefinedIfAbsent(files.unlink(writerOf(id)));
      await removeFolder(id);
    });

  /** As that host says; it may not have said it yet. */
  async function useBy(id: VolumeId, host: string): Promise<Use> {
    const uses = await storeRoot.uses.list(id).catch((): readonly Use[] => []);
    return uses.find((use) => use.host === host) ?? { host, node: host as NodeName, users: [] };
  }

  return {
    put: async (ref, use, scope) => {
      const doing = `recording that ${use.node} uses ${quoted(ref.name)}`;
      const path = recordOf(ref.id, use.host);
      const text = encode(use);
      // Renewing, which is done every half minute, holds nothing: while the record is there nobody deletes the volume,
      // and writing to a file cannot bring it back once it is removed, as renaming another one to its place could. What
      // a renewal writes are the same bytes; of others a reader may for a moment see a part, and that still counts.
      if (await runVerb(doing, [], scope, () => files.overwrite(path, text, recordLimit))) return;
      await withExistingVolume(doing, ref, scope, (limit) => createRecord(ref.id, path, text, limit, scope.signal));
    },
    remove: async (id, host, scope) => {
      const path = recordOf(id, host);
      const isWriter = await runVerb(`recording that ${host} no longer uses ${id}`, [], scope, async () => {
        await undefinedIfAbsent(files.unlink(path));
        if ((await writer(id)) === host) return true;
        await removeFolder(id);
        return false;
      });
      // Held: another may become the writer at this moment, and its note must not be taken for this one.
      if (isWriter) await dropWriter(id, host, scope);
    },
    list: (id, scope) => runVerb(`looking who uses ${id}`, [], scope, () => storeRoot.uses.list(id)),
    takeWriter: async (ref, host, scope) => {
      recordOf(ref.id, host);
      await withExistingVolume(`becoming the one who writes to ${quoted(ref.name)}`, ref, scope, async (limit) => {
        const { id } = ref;
        // Nobody else is at work on it, so an empty one was left by a crash.
        if ((await writer(id)) === '') {
          limit.check();
          await files.unlink(writerOf(id));
        }
        try {
          await inFolder(id, scope.signal, () => {
            limit.check();
            return files.writeNew(writerOf(id), host);
          });
        } catch (cause) {
          if (!isErrno(cause, 'EEXIST')) throw cause;
          const holder = (await writer(id)) ?? 'HOST';
          if (holder !== host) throw writtenElsewhere(storeRoot.store, ref.name, await useBy(id, holder));
        }
      });
    },
    dropWriter,
  };
}

function badHost(host: string): StowageError {
  return new StowageError(`${quoted(host)} is not the id of a host`, {
    code: 'invalid',
    reason: 'host-id-invalid',
    action: 'Use the id that stowage volume show gives.',
  });
}
