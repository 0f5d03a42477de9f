import type { PluginName } from '#core/containers.ts';
import type { Core } from '#core/core.ts';
import { StowageError, stowageError } from '#core/errors.ts';
import type { Volume } from '#core/model.ts';
import type { Call } from '#core/operations.ts';
import { type IsStoreOption, parseCreateOptions } from './create-options.ts';
import { createVolume } from './create-volume.ts';
import { oneLine } from './error-response.ts';
import { lookUpVolume, storeNotAnsweringError } from './look-up-volume.ts';
import { type PluginRequest, requiredText, textMap } from './plugin-request.ts';
import type { UsedBytes } from './used-bytes.ts';
import { statusOf, volumeJson } from './volume-status.ts';

/** What all methods of one plugin share. */
export interface PluginContext {
  readonly core: Core;
  readonly plugin: PluginName;
  readonly isStoreOption: IsStoreOption;
  readonly used: UsedBytes;
}

export interface PluginMethod {
  /** Docker waits 60 s for an answer, 120 s for Create, Mount and Remove; Podman waits 5 s unless configured otherwise. */
  readonly deadlineMs: number;
  /** The method changes something, so it gets the full grace period when Stowage stops. */
  readonly changes?: boolean;
  handle(ctx: PluginContext, message: PluginRequest, call: Call): Promise<object>;
}

/** Less than the deadline of Get: an engine that gets no answer creates its own volume of that name. */
const deletionWaitMs = 5_000;

const resolveNamed = ({ core, plugin }: PluginContext, message: PluginRequest, call: Call): Promise<Volume> =>
  core.pluginNames.resolve(plugin, requiredText(message, 'Name'), call);

/** The protocol, by the paths that engines post to. */
export const methods: Readonly<Record<string, PluginMethod>> = {
  // Podman calls this before nearly every other method.
  '/Plugin.Activate': { deadlineMs: 10_000, handle: async () => ({ Implements: ['VolumeDriver'] }) },
  '/VolumeDriver.Capabilities': {
    deadlineMs: 10_000,
    handle: async ({ plugin }) => ({ Capabilities: { Scope: plugin === 'stowage' ? 'global' : 'local' } }),
  },
  '/VolumeDriver.Create': {
    deadlineMs: 30_000,
    changes: true,
    handle: async ({ core, plugin, isStoreOption }, message, call) => {
      const name = requiredText(message, 'Name');
      await createVolume(core, plugin, name, parseCreateOptions(textMap(message, 'Opts'), isStoreOption), call);
      // Docker may have created it for a container that it has not listed yet.
      const id = core.pluginNames.recordedId(plugin, name);
      if (id !== undefined) await core.engineRequests.note(id, call.signal);
      return {};
    },
  },
  '/VolumeDriver.Get': {
    deadlineMs: 10_000,
    // Docker treats any error as "no such volume" and then suggests to remove the volume by force. So answer from the record while the
    // store is down. For an ambiguous name, Docker would create a local volume of its own, and containers would write their data there. So
    // pretend that the volume exists, and let Mount fail.
    handle: async (ctx, message, call) => {
      const name = requiredText(message, 'Name');
      const found = await lookUpVolume(ctx.core, ctx.plugin, name, call, deletionWaitMs).catch(onlyAmbiguous);
      if (found instanceof StowageError)
        return { Volume: { Name: name, Mountpoint: '', Status: { health: oneLine(found.message, found.action) } } };
      const Status = await statusOf(ctx.core, found, ctx.used);
      return { Volume: { ...volumeJson(ctx.core, name, found.volume), Status } };
    },
  },
  '/VolumeDriver.List': {
    deadlineMs: 10_000,
    handle: async ({ core, plugin }, _message, call) => ({
      Volumes: (await core.pluginNames.list(plugin, call)).map(({ name, volume }) => volumeJson(core, name, volume)),
    }),
  },
  '/VolumeDriver.Path': {
    deadlineMs: 10_000,
    handle: async (ctx, message, call) => {
      const { core, plugin } = ctx;
      const id =
        core.pluginNames.recordedId(plugin, requiredText(message, 'Name')) ??
        (await resolveNamed(ctx, message, call)).id;
      return { Mountpoint: core.engineMounts.pathOf(id) ?? '' };
    },
  },
  '/VolumeDriver.Mount': {
    deadlineMs: 60_000,
    changes: true,
    handle: async (ctx, message, call) => {
      const id = requiredText(message, 'ID');
      const { volume, isSilent } = await lookUpVolume(ctx.core, ctx.plugin, requiredText(message, 'Name'), call);
      if (volume.access === 'block') throw blockVolume(volume);
      if (isSilent) throw storeNotAnsweringError(ctx.core, volume.store);
      return { Mountpoint: await ctx.core.engineMounts.mount(volume, ctx.plugin, id, call) };
    },
  },
  '/VolumeDriver.Unmount': {
    deadlineMs: 20_000,
    changes: true,
    handle: async ({ core, plugin }, message, call) => {
      const [name, id] = [requiredText(message, 'Name'), requiredText(message, 'ID')];
      // Uses only local records: a container must be able to stop while the store is down. An unknown name was never mounted.
      const volume = core.pluginNames.recordedId(plugin, name);
      if (volume !== undefined) await core.engineMounts.unmount(volume, plugin, id, call);
      return {};
    },
  },
  '/VolumeDriver.Remove': {
    deadlineMs: 30_000,
    changes: true,
    handle: async (ctx, message, call) => {
      try {
        const { id } = await resolveNamed(ctx, message, call);
        await ctx.core.deletions.delete(id, undefined, call, { byEngine: true });
        ctx.core.pluginNames.forget(id);
      } catch (thrown) {
        // The catalogue throws this only after every store has answered. Engines retry a call whose answer they did not get.
        const { code, reason } = stowageError(thrown);
        if (reason !== 'volume-unknown' && !(reason === 'plugin-other-scope' && code === 'not-found')) throw thrown;
      }
      return {};
    },
  },
};

function onlyAmbiguous(thrown: unknown): StowageError {
  const error = stowageError(thrown);
  if (error.reason === 'volume-ambiguous') return error;
  throw thrown;
}

function blockVolume({ store, name }: Volume): StowageError {
  return new StowageError(`volume '${store}/${name}' is a raw block device, which engines cannot mount`, {
    code: 'unsupported',
    reason: 'plugin-block-volume',
    action: 'Use a volume with a file system, or pass the device to the container: stowage mount, then --device.',
  });
}
