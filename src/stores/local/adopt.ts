import type { Dirent } from 'node:fs';
import { readdir, stat } from 'node:fs/promises';
import { StowageError } from '#core/errors.ts';
import type { Labels, VolumeName, VolumeSpec } from '#core/model.ts';
import { isVolumeName, quoted, volumeName } from '#core/names.ts';
import type { Adoptable, Store } from '#core/ports.ts';
import { newMeta } from './create.ts';
import { nameTaken, notFound } from './errors.ts';
import { lstatIfThere, unlinkIfThere } from './files.ts';
import type { Layout } from './layout.ts';
import type { Meta } from './meta.ts';
import { readMeta } from './meta.ts';
import type { Parts } from './parts.ts';
import type { Place } from './place.ts';

export function createAdopt(parts: Parts): Pick<Store, 'adoptable' | 'adopt'> {
  const { place, layout, during, dataPath, volume } = parts;
  return {
    adoptable: (scope) => during('looking for data to adopt', [], scope, () => findAdoptable(place, layout), 'long'),
    adopt: (name, spec, scope) =>
      during(`adopting ${quoted(name)}`, [name], scope, async () => {
        const read = await parts.read(name);
        if (read.state === 'ok') {
          if (read.meta.requestId !== spec.requestId) throw nameTaken(name, place.store);
          return volume(read.meta);
        }
        if (read.state !== 'absent') throw read.error;
        const found = await appraised(name);
        const released = await releasedAs(place, name);
        const meta = released[0] === undefined ? adopted(name, spec, found) : takenBack(released[0].meta, spec);
        // In one step: an empty record beside data, left by a crash, would belong to nobody and could be anybody's.
        await place.replace(place.metaPath(name), meta);
        // Older ones of that name are records of data that have since been replaced.
        for (const { path } of released) await unlinkIfThere(path);
        return volume(meta);
      }),
  };

  async function appraised(name: VolumeName): Promise<{ readonly bytes?: bigint; readonly access: Meta['access'] }> {
    const path = dataPath(name);
    const there = await lstatIfThere(path);
    if (there === undefined) throw notFound(name, place.store);
    const wrong = layout.wrongWith(there);
    const appraisal =
      wrong === undefined ? await layout.appraise(path) : { reason: `it ${wrong}`, access: 'filesystem' as const };
    if (appraisal.reason === undefined) return appraisal;
    throw new StowageError(`${path} cannot become a volume: ${appraisal.reason}`, {
      code: 'conflict',
      reason: 'not-adoptable',
      action: `See what can be adopted with: stowage store adopt ${place.store}`,
    });
  }
}

function adopted(
  name: VolumeName,
  spec: VolumeSpec,
  found: { readonly bytes?: bigint; readonly access: Meta['access'] },
): Meta {
  return newMeta({ ...spec, name, bytes: spec.bytes ?? found.bytes, access: found.access });
}

/** The request that made it once is forgotten with the release: repeating that one is not a wish to adopt. */
function takenBack(
  meta: Meta,
  spec: { readonly requestId: string; readonly instance: string; readonly labels: Labels },
): Meta {
  const { requestId, instance } = spec;
  return { ...meta, requestId, instance, revision: meta.revision + 1 };
}

/** Newest first. */
async function releasedAs(
  place: Place,
  name: VolumeName,
): Promise<readonly { readonly path: string; readonly meta: Meta }[]> {
  const found: { path: string; meta: Meta; at: number }[] = [];
  for (const entry of await readdir(place.own('retained'))) {
    const path = place.own('retained', entry);
    const read = await readMeta(path, place.context.instance);
    if (read.state !== 'ok' || read.meta.name !== name) continue;
    // Moving the record here was its last change.
    found.push({ path, meta: read.meta, at: (await stat(path)).ctimeMs });
  }
  return found.sort((a, b) => b.at - a.at);
}

/** Everything in the root that is neither a record nor recorded. */
export async function findAdoptable(place: Place, layout: Layout): Promise<readonly Adoptable[]> {
  const entries = await readdir(place.root, { withFileTypes: true });
  const all = new Set(entries.map((entry) => entry.name));
  const found: Adoptable[] = [];
  for (const entry of entries) {
    const file = entry.name;
    if (file === '.stowage' || (file.endsWith('.meta') && !entry.isDirectory())) continue;
    const name = file.endsWith(layout.suffix) ? file.slice(0, file.length - layout.suffix.length) : file;
    if (all.has(`${name}.meta`) && file === `${name}${layout.suffix}`) continue;
    const reason = file.endsWith(layout.suffix)
      ? await reasonAgainst(entry, name, place, layout)
      : `it is not a ${layout.suffix} file`;
    found.push(reason === undefined ? { name } : { name: file, reason });
  }
  return found;
}

async function reasonAgainst(entry: Dirent, name: string, place: Place, layout: Layout): Promise<string | undefined> {
  if (name === 'lost+found') return 'it belongs to the file system';
  if (entry.isSymbolicLink()) return 'it is a symbolic link';
  if (layout.kind === 'directory' && !entry.isDirectory()) return 'it is not a directory';
  if (layout.kind === 'image' && !entry.isFile()) return 'it is not a plain file';
  if (!isVolumeName(name)) return whyNoName(name);
  return (await layout.appraise(`${place.root}/${entry.name}`)).reason;
}

function whyNoName(name: string): string {
  try {
    volumeName(name);
    return '';
  } catch (cause) {
    return cause instanceof Error ? cause.message : String(cause);
  }
}
