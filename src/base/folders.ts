import { join } from 'node:path';

export interface Folders {
  /** Database, token, mounts, the default store. */
  readonly state: string;
  /** The folder of the socket. */
  readonly run: string;
  readonly config: string;
  readonly socket: string;
}

/** The default folders: those of the system for root, otherwise those of the XDG specification. */
export function defaultFolders(user: {
  readonly root: boolean;
  readonly home: string;
  readonly env: Readonly<Record<string, string | undefined>>;
}): Folders {
  if (user.root) return folders('/var/lib/stowage', '/run/stowage', '/etc/stowage');
  // The XDG specification says to ignore relative paths.
  const xdg = (name: string, otherwise: string): string => {
    const value = user.env[name];
    return value?.startsWith('/') ? value : otherwise;
  };
  const state = join(xdg('XDG_STATE_HOME', join(user.home, '.local/state')), 'stowage');
  const runtime = user.env['XDG_RUNTIME_DIR'];
  const run = runtime?.startsWith('/') ? join(runtime, 'stowage') : state;
  return folders(state, run, join(xdg('XDG_CONFIG_HOME', join(user.home, '.config')), 'stowage'));
}

const folders = (state: string, run: string, config: string): Folders => ({
  state,
  run,
  config,
  socket: join(run, 'stowage.sock'),
});
