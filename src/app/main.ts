import { accessSync, constants, realpathSync } from 'node:fs';
import { homedir } from 'node:os';
import { basename, delimiter, join, resolve } from 'node:path';
import process from 'node:process';
import { defaultFolders, type Folders } from '#base/folders.ts';
import { endProcess } from '#base/linux/end-process.ts';
import { silentLog } from '#base/log.ts';
import type { ClusterOptions } from '#cli/cluster-connection.ts';
import type { UpOptions } from '#cli/io.ts';
import { runCli } from '#cli/run.ts';
import type { TakeOverRequest } from '#cli/take-over-service.ts';
import { defaultKeeperName } from '#clients/data-path/keeper-starter.ts';
import { keepersFolder } from './state-folder.ts';
import { version } from './version.ts';

const isRoot = process.getuid?.() === 0;

function foldersFor(options: UpOptions): Folders {
  const usual = defaultFolders({ root: isRoot, home: homedir(), env: process.env });
  const state = options.state === undefined ? usual.state : resolve(options.state);
  // A server with a state folder of its own is a second server: it must not use the first one's socket.
  const socket = options.socket ?? (options.state === undefined ? usual.socket : join(state, 'stowage.sock'));
  return { ...usual, state, socket: resolve(socket) };
}

/** The parent folder of the NFS servers' states, and the folder that records the data path's user. */
function nfsServerFolders(): { readonly states: string; readonly keepers: string } {
  const { state, socket } = foldersFor({});
  return { states: join(state, 'nfs-server'), keepers: keepersFolder(process.env['STOWAGE_SOCKET'] || socket) };
}

/** kubectl calls its plugins by their file name: bin/kubectl-stowage. */
const isKubectl = basename(process.env['STOWAGE_PROGRAM'] ?? '') === 'kubectl-stowage';

/** The program's name for messages: `stowage` if that finds it on PATH, otherwise as it was called. */
function programName(): string {
  const typed = process.env['STOWAGE_PROGRAM'];
  if (typed === undefined) return 'stowage';
  if (isKubectl) return 'kubectl stowage';
  const found = (process.env['PATH'] ?? '')
    .split(delimiter)
    .map((folder) => join(folder, 'stowage'))
    .find(canRun);
  return found !== undefined && realpathSync(found) === realpathSync(typed) ? 'stowage' : typed;
}

function canRun(path: string): boolean {
  try {
    accessSync(path, constants.X_OK);
    return true;
  } catch {
    return false;
  }
}

const interrupt = new AbortController();
// A second Ctrl-C ends the process at once.
process.once('SIGINT', () => interrupt.abort());

// Import only the code of the requested command: loading the whole program takes longer than most commands run.
const status = await runCli(
  process.argv.slice(2),
  {
    stdout: process.stdout,
    stderr: process.stderr,
    isTTY: process.stderr.isTTY === true && process.stdout.isTTY === true,
    env: process.env,
    signal: interrupt.signal,
  },
  {
    version,
    program: programName(),
    ...(isKubectl
      ? {
          cluster: async (options: ClusterOptions) =>
            await (await import('./kubectl-plugin.ts')).connectToCluster({
              ...options,
              env: process.env,
              home: homedir(),
              signal: interrupt.signal,
            }),
          takeOver: async (request: TakeOverRequest) =>
            await (await import('./take-over/start.ts')).startTakeOver({
              ...request,
              env: process.env,
              home: homedir(),
              signal: interrupt.signal,
            }),
        }
      : {}),
    up: async (options) => {
      const run =
        options.kubernetes === true ? (await import('./agent.ts')).runAgent : (await import('./serve.ts')).runServer;
      return await run(options, foldersFor(options), programName(), interrupt.signal);
    },
    controller: async ({ state, ...options }) =>
      await (await import('./controller.ts')).runController(
        options,
        foldersFor(state === undefined ? {} : { state }),
        interrupt.signal,
      ),
    nfsServe: async (options, ready) =>
      await (await import('./nfs-server.ts')).runNfsServer(options, nfsServerFolders(), interrupt.signal, ready),
    keeper: async (options) =>
      await (await import('./keeper.ts')).runKeeper(options, join(nfsServerFolders().keepers, defaultKeeperName)),
    doctor: async () =>
      await (await import('./doctor.ts')).examineMachine(foldersFor({}).state, {
        signal: interrupt.signal,
        log: silentLog(),
      }),
  },
);
// Everything is written and closed. A thread that is blocked on a dead disk must not keep the process alive.
endProcess(status);
