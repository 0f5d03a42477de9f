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

/** Retries while other hosts remove the folder. */
const maxAttempts = 16;
const pauseMs = 20;

/** Use records: one file for each volume and host. The host rewrites it while it uses the volume. */
export function createUses(parts: VerbContext, storeRoot: NfsStoreRoot): Uses {
  const { runVerb, clock } = parts;
  const { files } = storeRoot;
  const { folderOf, writerOf, writer, removeFolder } = storeRoot.uses;

  function recordOf(id: VolumeId, host: string): string {
    if (!isHostId(host)) throw badHost(host);
    return `${folderOf(id)}/${host}`;
  }

  /** Creates the folder and retries: a host that stops using the volume may remove the folder that another has just found or created. */
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
   * Runs the work with the volume locked, if it exists. A host that deletes the volume looks for uses under the same lock, so it either finds
   * this use, or the volume is gone before this work begins.
   */
  const withExistingVolume = (doing: string, ref: VolumeRef, scope: Scope, work: (limit: HoldLimit) => Promise<void>) =>
    runVerb(doing, [ref.name, ref.id], scope, async (held) => {
      const meta = await parts.findRenamed(ref, held);
      // If a deletion was interrupted after it removed the data, finish it.
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
        if (!(await files.rename(fresh, path))) throw new Error(`${fresh} was removed by another program`);
      });
    } catch (cause) {
      // If the server did not answer, the rename may have happened.
      if (isDefiniteFailure(cause) || cause instanceof DeadlineExceeded) await files.unlink(fresh).catch(() => false);
      throw cause;
    }
  }

  const dropWriter: Uses['dropWriter'] = (id, host, scope) =>
    runVerb(`giving up write access to ${id}`, [id], scope, async ({ limit }) => {
      const isWriter = (await writer(id)) === host;
      limit.check();
      if (isWriter) await undefinedIfAbsent(files.unlink(writerOf(id)));
      await removeFolder(id);
    });

  /** The host's record, which it may not have written yet. */
  async function useBy(id: VolumeId, host: string): Promise<Use> {
    const uses = await storeRoot.uses.list(id).catch((): readonly Use[] => []);
    return uses.find((use) => use.host === host) ?? { host, node: host as NodeName, users: [] };
  }

  return {
    put: async (ref, use, scope) => {
      const doing = `recording that ${use.node} uses ${quoted(ref.name)}`;
      const path = recordOf(ref.id, use.host);
      const text = encode(use);
      // A renewal, every 30 s, takes no lock. While the record exists no host deletes the volume, and an overwrite cannot bring a removed
      // file back, as a rename could. A renewal usually writes the same bytes. If it writes others, a reader may see a part of them for
      // a moment, and such a record still counts.
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
      // Under the lock: another host may become the writer right now, and its `.writer` file must not be removed.
      if (isWriter) await dropWriter(id, host, scope);
    },
    list: (id, scope) => runVerb(`listing the hosts that use ${id}`, [], scope, () => storeRoot.uses.list(id)),
    takeWriter: async (ref, host, scope) => {
      recordOf(ref.id, host);
      await withExistingVolume(`becoming the only writer of ${quoted(ref.name)}`, ref, scope, async (limit) => {
        const { id } = ref;
        // Under the lock no other host writes it, so a crash left this empty file.
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
