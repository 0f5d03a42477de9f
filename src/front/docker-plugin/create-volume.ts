import { randomUUID } from 'node:crypto';
import { formatSize } from '#base/size.ts';
import type { PluginName } from '#core/containers.ts';
import type { Core } from '#core/core.ts';
import { StowageError, stowageError } from '#core/errors.ts';
import type { Volume } from '#core/model.ts';
import { quoted } from '#core/names.ts';
import type { Call } from '#core/operations.ts';
import type { CreateOptions } from './create-options.ts';
import { isSilent, storeNotAnsweringError } from './look-up-volume.ts';

/**
 * Creates the volume that an engine asks for, and records which volume the engine's name refers to. Idempotent: an existing volume with the
 * same options is a success, since engines retry calls and another host may have created it first.
 */
export async function createVolume(
  core: Core,
  plugin: PluginName,
  name: string,
  wanted: CreateOptions,
  call: Call,
): Promise<void> {
  const { pluginNames, volumes, catalogue } = core;
  const known = pluginNames.recordedId(plugin, name);
  // A known name keeps its volume, even if the default store has changed.
  const before = known === undefined ? undefined : await resolveIfPresent(core, plugin, name, call);
  if (before !== undefined) return requireSameOptions(before, name, wanted);
  const place = await placeForNewVolume(core, plugin, name, wanted, call);
  if ('id' in place) return requireSameOptions(place, name, wanted);
  if (await isSilent(core, place.store, call)) throw storeNotAnsweringError(core, place.store);
  const want = {
    ...place,
    bytes: wanted.bytes,
    enforce: wanted.enforce,
    access: undefined,
    labels: wanted.labels ?? {},
  };
  try {
    const requestId = `docker:${plugin}:${name}`;
    const made = await volumes.create(want, { ...call, requestId });
    // The request id may match a volume that was created under this name and renamed since. Then create a new one.
    const hasName = made.name === place.name;
    const volume = hasName ? made : await volumes.create(want, { ...call, requestId: `${requestId}:${randomUUID()}` });
    pluginNames.remember(plugin, name, volume.id);
  } catch (thrown) {
    if (stowageError(thrown).code !== 'exists') throw thrown;
    const present = await catalogue.resolve(`${place.store}..${place.name}`, call).catch(() => undefined);
    // Something that is not a volume has the name: report that error.
    if (present === undefined) throw thrown;
    requireSameOptions(present, name, wanted);
    pluginNames.remember(plugin, name, present.id);
  }
}

/**
 * The store and name for the new volume. If no store can be chosen, looks for an existing volume of that name. The error is
 * `volume-ambiguous` if several stores have one.
 */
async function placeForNewVolume(
  { pluginNames }: Core,
  plugin: PluginName,
  name: string,
  wanted: CreateOptions,
  call: Call,
): Promise<ReturnType<Core['pluginNames']['storeAndNameFor']> | Volume> {
  try {
    return pluginNames.storeAndNameFor(plugin, name, wanted.store);
  } catch (thrown) {
    if (stowageError(thrown).reason !== 'plugin-store-unnamed') throw thrown;
    return await pluginNames.resolve(plugin, name, call).catch((cause: unknown) => {
      throw stowageError(cause).reason === 'volume-ambiguous' ? cause : thrown;
    });
  }
}

async function resolveIfPresent(core: Core, plugin: PluginName, name: string, call: Call): Promise<Volume | undefined> {
  try {
    return await core.pluginNames.resolve(plugin, name, call);
  } catch (thrown) {
    if (stowageError(thrown).code === 'not-found') return undefined;
    throw thrown;
  }
}

function requireSameOptions(present: Volume, name: string, wanted: CreateOptions): void {
  const different = [...differences(present, wanted)];
  if (different.length === 0) return;
  throw new StowageError(`volume ${quoted(name)} already exists with other options: ${different.join(', ')}`, {
    code: 'exists',
    reason: 'plugin-volume-differs',
    action: 'Choose another name, or omit these options to use the existing volume.',
  });
}

/** Compares only the given options: the volume may have been expanded or labelled since. */
function* differences(present: Volume, wanted: CreateOptions): Generator<string> {
  const { store, bytes, enforce, labels = {} } = wanted;
  if (store !== undefined && store !== present.store) yield `it is on store '${present.store}'`;
  if (bytes !== undefined && bytes !== present.bytes)
    yield present.bytes === undefined ? 'it has no size' : `its size is ${formatSize(present.bytes)}`;
  if (enforce !== undefined && enforce !== present.enforce)
    yield `its size is ${present.enforce ? '' : 'not '}enforced`;
  for (const [key, value] of Object.entries(labels)) {
    const is = Object.hasOwn(present.labels, key) ? present.labels[key] : undefined;
    if (is !== value) yield `its label ${quoted(key)} is ${is === undefined ? 'not set' : quoted(is)}`;
  }
}
