import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { makeFolders } from '#base/make-folders.ts';
import { pluginNames } from '#core/containers.ts';
import { relayed, StowageError, stowageError } from '#core/errors.ts';
import { createPluginServer, type PluginOptions, type PluginServer } from '#front/docker-plugin/server.ts';
import { listenSocket } from './listen.ts';

/** The sockets of the volume plugins for container engines. */
export interface Plugins {
  readonly sockets: readonly string[];
  /** Why there are none. */
  readonly why: string | undefined;
  close(graceMs: number): Promise<void>;
}

export interface PluginSettings {
  /** As configured: a folder, or `none`. */
  readonly configured: string | undefined;
  /** Whether to use the default folder if none is configured; otherwise why not. */
  readonly useDefault: boolean | string;
  /** Whether an engine was found. */
  readonly engines: boolean;
}

/** Where Docker looks for plugins. */
const defaultFolder = '/run/docker/plugins';

const none = (why: string): Plugins => ({ sockets: [], why, close: async () => undefined });

export async function startPlugins(settings: PluginSettings, parts: Omit<PluginOptions, 'plugin'>): Promise<Plugins> {
  const { configured, useDefault } = settings;
  if (configured === 'none') return none('as configured');
  if (configured !== undefined) return await serve(configured, parts);
  if (useDefault !== true) return none(useDefault === false ? 'not configured' : useDefault);
  if (!settings.engines && !existsSync('/run/docker')) return none('no container engine was found');
  try {
    return await serve(defaultFolder, parts);
  } catch (thrown) {
    // The plugins were not configured, so this must not prevent the start.
    const { message, action } = stowageError(thrown);
    parts.log.warn('not serving the volume plugins of container engines', { why: message, action });
    return none(message);
  }
}

async function serve(folder: string, parts: Omit<PluginOptions, 'plugin'>): Promise<Plugins> {
  const servers: PluginServer[] = [];
  const sockets: string[] = [];
  const close = async (graceMs: number): Promise<void> => {
    await Promise.all(servers.map((server) => server.close(graceMs)));
  };
  try {
    // Docker creates it with this mode; the sockets in it are for root only.
    await makeFolders(folder, 0o755);
    for (const plugin of pluginNames) {
      const server = createPluginServer({ ...parts, plugin });
      servers.push(server);
      const socket = join(folder, `${plugin}.sock`);
      await listenSocket(server.server, socket);
      sockets.push(socket);
    }
  } catch (cause) {
    await close(0);
    throw unusable(folder, cause);
  }
  return { sockets, why: undefined, close };
}

function unusable(folder: string, cause: unknown): StowageError {
  const { code, reason, message } = stowageError(cause);
  if (reason === 'socket-in-use') {
    return new StowageError(`another Stowage already serves the container engines: ${message}`, {
      code: 'conflict',
      reason: 'plugin-socket-in-use',
      action:
        'An engine can use only one Stowage: stop the other one, or start this one with --plugins none or --plugins DIR.',
      cause,
    });
  }
  return relayed(`cannot serve plugins in ${folder}: ${message}`, {
    code: code === 'internal' ? 'denied' : code,
    reason: 'plugin-folder-unusable',
    action: 'Correct the folder, or choose another: --plugins DIR, or none.',
    cause,
  });
}
