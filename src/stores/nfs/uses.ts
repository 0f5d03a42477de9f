import type { Scope } from '#base/log.ts';
import { StowageError } from '#core/errors.ts';
import type { VolumeId, VolumeRef } from '#core/model.ts';
import { quoted } from '#core/names.ts';
import type { Uses } from '#core/ports.ts';
import { notFound } from '../file-store/errors.ts';
import { finishInterrupted } from '../file-store/finish-interrupted.ts';
import type { HoldLimit } from '../file-store/held-scope.ts';
import { usableDataPath } from '../file-store/read-verbs.ts';
import type { VerbContext } from '../file-store/verb-context.ts';
import type { NfsStoreRoot } from './open-store-root.ts';
import { undefinedIfAbsent } from './use-record-reader.ts';
import { createUseRecordWriter } from './use-record-writer.ts';
import { encodeUse, isHostId, maxRecordBytes } from './uses-format.ts';

/** Use records: one file for each volume and host. The host renews its file while it uses the volume. */
export function createUses(parts: VerbContext, storeRoot: NfsStoreRoot): Uses {
  const { runVerb } = parts;
  const { files } = storeRoot;
  const { folderOf, writer, removeFolder } = storeRoot.uses;
  const records = createUseRecordWriter(storeRoot, parts.clock);

  function recordOf(id: VolumeId, host: string): string {
    refuseBadHost(host);
    return `${folderOf(id)}/${host}`;
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

  const dropWriter: Uses['dropWriter'] = (id, host, scope) =>
    runVerb(`giving up write access to ${id}`, [id], scope, ({ limit }) => records.dropWriter(id, host, limit));

  return {
    put: async (ref, use, scope) => {
      const doing = `recording that ${use.node} uses ${quoted(ref.name)}`;
      const path = recordOf(ref.id, use.host);
      const text = encodeUse(use);
      // A renewal, every 30 s, takes no lock. While the record exists no host deletes the volume, and an overwrite cannot bring a removed
      // file back, as a rename could. A renewal usually writes the same bytes. If it writes others, a reader may see a part of them for
      // a moment, and such a record still counts.
      if (await runVerb(doing, [], scope, () => files.overwrite(path, text, maxRecordBytes))) return;
      await withExistingVolume(doing, ref, scope, (limit) => records.create(ref.id, path, text, limit, scope.signal));
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
      refuseBadHost(host);
      await withExistingVolume(`becoming the only writer of ${quoted(ref.name)}`, ref, scope, (limit) =>
        records.takeWriter(ref, host, limit, scope.signal),
      );
    },
    dropWriter,
  };
}

function refuseBadHost(host: string): void {
  if (isHostId(host)) return;
  throw new StowageError(`${quoted(host)} is not the id of a host`, {
    code: 'invalid',
    reason: 'host-id-invalid',
    action: 'Use the id that stowage volume show gives.',
  });
}
