import type { Scope } from '#base/log.ts';
import { StowageError } from '#core/errors.ts';
import type { Volume, VolumeSpec } from '#core/model.ts';
import { quoted } from '#core/names.ts';
import type { Store } from '#core/ports.ts';
import { beingMade, dataUnrecorded, dataUnusable, nameTaken } from './errors.ts';
import { errno, isRefusal } from './files.ts';
import type { Meta } from './meta.ts';
import { encodeMeta, sameLabels } from './meta.ts';
import { makeParents } from './parents.ts';
import type { Parts } from './parts.ts';
import { settle } from './settle.ts';

/** How often the name can become free, and be taken by another host again, while one create looks. */
const mostAttempts = 8;

/**
 * The record is created exclusively and made durable before the data: it is the intent, and the proof against making a
 * volume twice. Data that are there are complete, since they appear in one step.
 */
export function createCreate(parts: Parts): Store['create'] {
  const { place, layout, dataPath, volume } = parts;
  const { files, others } = place;

  async function fresh(want: VolumeSpec, scope: Scope, attempt = 1): Promise<Volume> {
    if (attempt > mostAttempts) throw beingMade(want.name, place.store);
    const meta = newMeta(want, layout.paths?.pathFor(want));
    // What lies at the data's place is known before the record says anything: after a crash between record and data,
    // data there can then only be our own.
    const how = await files.writeNewUnless(dataPath(meta), place.metaPath(meta.name), encodeMeta(meta));
    return how === 'written' ? makeData(meta, scope) : existing(want, dataPath(meta), scope, attempt);
  }

  async function makeData(meta: Meta, scope: Scope): Promise<Volume> {
    let made = false;
    try {
      await makeParents(parts, meta);
      await layout.make(meta, dataPath(meta), scope);
      made = true;
      await place.sync();
      return volume(meta);
    } catch (cause) {
      const isThere = errno(cause) === 'EEXIST';
      // The same request came by another host too: the record is the same one, and so are the data.
      if (isThere && others !== undefined) return volume(meta);
      // No answer: it may happen yet. The record stays, so that the same request finds out, and no other is misled.
      if (others !== undefined && !isRefusal(cause)) throw cause;
      if (made) await layout.discard(dataPath(meta), meta.id);
      await files.unlink(place.metaPath(meta.name));
      if (isThere) throw dataUnrecorded(meta.name, dataPath(meta), place.store);
      throw cause;
    }
  }

  async function existing(want: VolumeSpec, planned: string, scope: Scope, attempt: number): Promise<Volume> {
    const read = await parts.read(want.name);
    const path = read.state === 'ok' ? dataPath(read.meta) : planned;
    const data = await files.look(path);
    if (read.state === 'absent') {
      if (data === undefined) return fresh(want, scope, attempt + 1);
      throw dataUnrecorded(want.name, path, place.store);
    }
    if (read.state === 'torn' && (data === undefined || others !== undefined)) {
      await parts.clearTorn(want.name, scope);
      return fresh(want, scope, attempt + 1);
    }
    if (read.state !== 'ok') throw read.error;
    const { meta } = read;
    if (data === undefined && (await parts.alone(meta.id, scope, () => settle(parts, meta))))
      return fresh(want, scope, attempt + 1);
    refuseOther(meta, want, place.store);
    if (data === undefined) return makeData(meta, scope);
    const wrong = layout.wrongWith(data);
    if (wrong !== undefined) throw dataUnusable(want.name, path, wrong);
    // The first call may have died before this.
    await place.sync();
    return volume(meta);
  }

  return (want, scope) =>
    parts.during(`creating volume ${quoted(want.name)}`, [want.name], scope, () => {
      layout.refuse(want.bytes, want.access);
      return fresh(want, scope);
    });
}

export function newMeta(want: VolumeSpec, path: string | undefined): Meta {
  const { id, name, bytes, access, labels, requestId, createdAt, instance } = want;
  return {
    ...{ id, name, bytes, access, labels, requestId, createdAt, instance, revision: 1 },
    ...(path === undefined ? {} : { path }),
  };
}

function refuseOther(meta: Meta, want: VolumeSpec, store: string): void {
  if (meta.requestId !== want.requestId) throw nameTaken(want.name, store);
  if (meta.bytes === want.bytes && meta.access === want.access && sameLabels(meta.labels, want.labels)) return;
  throw new StowageError(`this request made volume ${quoted(want.name)} before, with another size, access or labels`, {
    code: 'exists',
    reason: 'request-differs',
    action: 'Repeat the request as it was, or make a new request under another name.',
  });
}
