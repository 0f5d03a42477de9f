import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { createServer } from 'node:net';
import type { Clock } from '#base/clock.ts';
import type { Log } from '#base/log.ts';
import { makeFolders } from '#base/make-folders.ts';
import { endsWithin } from '#base/wait.ts';
import type { StowageError } from '#core/errors.ts';
import type { StoreConfig } from '#core/model.ts';
import type { Records, StoreKind } from '#core/ports.ts';
import { type NfsChild, startNfsChild } from './nfs-child.ts';
import { nfsUri } from './nfs-server-description.ts';
import type { StateFolder } from './state-folder.ts';

export interface EmbeddedNfsSettings {
  /** The command of this program, which is started once more, as the server. */
  readonly program: readonly [string, ...string[]];
  /** Undefined: the port of the previous start, or any free port at the first. */
  readonly port: number | undefined;
}

/** The NFS server of `stowage up --nfs`: a child process that serves this machine, and the store on it. */
export interface EmbeddedNfs extends AsyncDisposable {
  readonly storeName: string;
  readonly uri: string;
  readonly exported: string;
  readonly child: NfsChild;
  /** Resolves when the server runs or has failed, or after a timeout: a server that does not start must not block everything else. */
  readonly started: Promise<unknown>;
  /** Calls `then` each time the server gets ready from now on. */
  whenReady(then: () => Promise<void>): void;
  /** Wraps the kind of its store: errors then say what is wrong with the server instead of "no answer". */
  withServerProblem(kind: StoreKind): StoreKind;
}

/** Below the ephemeral port range, so that the port is still free at the next start. */
const firstPort = 20_490;
const portCount = 500;
const portKey = 'port of the embedded NFS server';
const host = '127.0.0.1';
const path = '/export';
/** It usually takes a tenth of this. */
const startTimeoutMs = 5_000;

export async function startEmbeddedNfs(
  settings: EmbeddedNfsSettings,
  parts: {
    readonly state: StateFolder;
    readonly socket: string;
    readonly records: Records;
    readonly clock: Clock;
    readonly log: Log;
  },
): Promise<EmbeddedNfs> {
  const { state, records, clock, log } = parts;
  const { exported } = state.nfs;
  // If this fails, the server reports why.
  await makeFolders(exported, 0o755).catch(() => undefined);
  const port = await choosePort(settings.port, state, records);
  const { promise: ready, resolve } = Promise.withResolvers<void>();
  let then: (() => Promise<void>) | undefined;
  const options = ['--host', host, '--port', String(port), '--path', path, '--state', state.nfs.state];
  const child = startNfsChild({
    command: [...settings.program, '--json', 'nfs', 'serve', exported, ...options],
    // The server finds the data path's user, which it must admit, next to the socket.
    env: { STOWAGE_SOCKET: parts.socket },
    clock,
    log,
    onReady: () => {
      // Only now: a port that could not be bound must not be tried again at every start.
      if (records.settings.get(portKey) !== String(port)) records.settings.set(portKey, String(port));
      resolve();
      // A store that still cannot be opened is retried later.
      then?.().catch(() => undefined);
    },
    onEnd: resolve,
  });
  return {
    storeName: 'network',
    uri: nfsUri(host, path, port),
    exported,
    child,
    started: endsWithin(ready, startTimeoutMs, clock),
    whenReady: (given) => {
      then = given;
    },
    withServerProblem: (kind) => withServerProblem(kind, child),
    [Symbol.asyncDispose]: () => child[Symbol.asyncDispose](),
  };
}

function withServerProblem(kind: StoreKind, child: NfsChild): StoreKind {
  const problemOf = ({ origin }: StoreConfig): StowageError | undefined =>
    origin === 'builtin' ? child.problem : undefined;
  return {
    ...kind,
    open: async (config, ...rest) => {
      const problem = problemOf(config);
      if (problem !== undefined) throw problem;
      return await kind.open(config, ...rest);
    },
    probe: async (config, ...rest) => {
      const problem = problemOf(config);
      const steps =
        problem === undefined ? [] : [{ step: 'server', ok: false, detail: problem.message, action: problem.action }];
      const nothing = { ok: problem === undefined, steps, totalBytes: undefined, freeBytes: undefined };
      return problem === undefined ? ((await kind.probe?.(config, ...rest)) ?? nothing) : nothing;
    },
  };
}

/** Must not change between starts: clients that have mounted something keep using it. */
async function choosePort(configuredPort: number | undefined, state: StateFolder, records: Records): Promise<number> {
  const before = records.settings.get(portKey);
  return configuredPort ?? (before === undefined ? await freePort(state) : Number(before));
}

/** Each state folder starts at another port, so that one whose server is stopped is likely to find its port free later. */
async function freePort(state: StateFolder): Promise<number> {
  const offset = createHash('sha256').update(state.path).digest().readUInt32BE(0);
  const candidates = Array.from({ length: portCount }, (_, i) => firstPort + ((offset + i) % portCount));
  for (const port of candidates) if (await isFree(port)) return port;
  // It is in use, too: the server reports that and keeps trying.
  return firstPort;
}

async function isFree(port: number): Promise<boolean> {
  const server = createServer().listen(port, host);
  try {
    await once(server, 'listening');
    return true;
  } catch {
    return false;
  } finally {
    if (server.listening) await server[Symbol.asyncDispose]();
  }
}
