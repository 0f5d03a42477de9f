import type { Scope } from '#base/log.ts';
import { StowageError } from '#core/errors.ts';
import type { Volume, VolumeSpec } from '#core/model.ts';
import { quoted } from '#core/names.ts';
import type { Store } from '#core/ports.ts';
import { dataUnrecorded, dataUnusable, errno, nameTaken } from './errors.ts';
import { lstatIfThere, unlinkIfThere, writeNew } from './files.ts';
import type { Meta } from './meta.ts';
import { encodeMeta, sameLabels } from './meta.ts';
import type { Parts } from './parts.ts';
import { settle } from './settle.ts';

/**
 * The record is created exclusively and made durable before the data: it is the intent, and the proof against making a
 * volume twice. Data that are there are complete, since they appear in one step.
 */
export function createCreate(parts: Parts): Store['create'] {
  const { place, layout, dataPath, volume } = parts;

  async function fresh(want: VolumeSpec, scope: Scope): Promise<Volume> {
    // Looked at before the record exists: after a crash between record and data, data here can then only be our own.
    if ((await lstatIfThere(dataPath(want.name))) !== undefined) return existing(want, scope);
    const meta = newMeta(want);
    try {
      await writeNew(place.metaPath(want.name), encodeMeta(meta));
    } catch (cause) {
      if (errno(cause) === 'EEXIST') return existing(want, scope);
      throw cause;
    }
    return makeData(meta, scope);
  }

  async function makeData(meta: Meta, scope: Scope): Promise<Volume> {
    let made = false;
    try {
      await layout.make(meta, dataPath(meta.name), scope);
      made = true;
      await place.sync();
      return volume(meta);
    } catch (cause) {
      if (made) await layout.discard(dataPath(meta.name), meta.id);
      await unlinkIfThere(place.metaPath(meta.name));
      if (errno(cause) === 'EEXIST') throw dataUnrecorded(meta.name, dataPath(meta.name), place.store);
      throw cause;
    }
  }

  async function existing(want: VolumeSpec, scope: Scope): Promise<Volume> {
    const path = dataPath(want.name);
    const read = await parts.read(want.name);
    const data = await lstatIfThere(path);
    if (read.state === 'absent') throw dataUnrecorded(want.name, path, place.store);
    if (read.state === 'torn' && data === undefined) {
      await unlinkIfThere(place.metaPath(want.name));
      return fresh(want, scope);
    }
    if (read.state !== 'ok') throw read.error;
    if (data === undefined && (await settle(parts, read.meta))) return fresh(want, scope);
    refuseOther(read.meta, want, place.store);
    if (data === undefined) return makeData(read.meta, scope);
    const wrong = layout.wrongWith(data);
    if (wrong !== undefined) throw dataUnusable(want.name, path, wrong);
    // The first call may have died before this.
    await place.sync();
    return volume(read.meta);
  }

  return (want, scope) =>
    parts.during(`creating volume ${quoted(want.name)}`, [want.name], scope, () => {
      layout.refuse(want.bytes, want.access);
      return fresh(want, scope);
    });
}

export function newMeta(want: VolumeSpec): Meta {
  const { id, name, bytes, access, labels, requestId, createdAt, instance } = want;
  return { id, name, bytes, access, labels, requestId, createdAt, instance, revision: 1 };
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
