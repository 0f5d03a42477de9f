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
import { nfsUri } from './nfs-served.ts';
import type { StateFolder } from './state-folder.ts';

export interface EmbeddedNfsSettings {
  /** How to call this program: it is started once more, as the server. */
  readonly program: readonly [string, ...string[]];
  /** Undefined: the one it had before, or at first one that is free. */
  readonly port: number | undefined;
}

/** What `stowage up --nfs` runs beside itself: a server for this machine, and the store on it. */
export interface EmbeddedNfs extends AsyncDisposable {
  readonly storeName: string;
  readonly uri: string;
  readonly exported: string;
  readonly child: NfsChild;
  /** Resolves when it runs, or has failed to, or after a while: one that does not start keeps nothing else from starting. */
  readonly started: Promise<unknown>;
  /** From now on, each time it begins to run. */
  whenReady(then: () => Promise<void>): void;
  /** The kind of its store, which says what is wrong with the server rather than that nobody answers. */
  explaining(kind: StoreKind): StoreKind;
}

/** Below those that systems take for outgoing connections, so that it is still free at the next start. */
const firstPort = 20_490;
const ports = 500;
const portKey = 'port of the embedded NFS server';
const host = '127.0.0.1';
const path = '/export';
/** It usually takes a tenth of that. */
const startPatienceMs = 5_000;

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
  // The server itself says what is wrong with it.
  await makeFolders(exported, 0o755).catch(() => undefined);
  const port = await chosenPort(settings.port, state, records);
  const { promise: ready, resolve } = Promise.withResolvers<void>();
  let then: (() => Promise<void>) | undefined;
  const options = ['--host', host, '--port', String(port), '--path', path, '--state', state.nfs.state];
  const child = startNfsChild({
    command: [...settings.program, '--json', 'nfs', 'serve', exported, ...options],
    // Beside it the server finds the user of the data path, which it lets in.
    env: { STOWAGE_SOCKET: parts.socket },
    clock,
    log,
    onReady: () => {
      // Only now: a port that it could not have must not be tried for ever.
      if (records.settings.get(portKey) !== String(port)) records.settings.set(portKey, String(port));
      resolve();
      // What it cannot open now is tried again later anyway.
      then?.().catch(() => undefined);
    },
    onEnd: resolve,
  });
  return {
    storeName: 'network',
    uri: nfsUri(host, path, port),
    exported,
    child,
    started: endsWithin(ready, startPatienceMs, clock),
    whenReady: (given) => {
      then = given;
    },
    explaining: (kind) => explaining(kind, child),
    [Symbol.asyncDispose]: () => child[Symbol.asyncDispose](),
  };
}

function explaining(kind: StoreKind, child: NfsChild): StoreKind {
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

/** The same at every start: clients that have something mounted look for it there. */
async function chosenPort(asked: number | undefined, state: StateFolder, records: Records): Promise<number> {
  const before = records.settings.get(portKey);
  return asked ?? (before === undefined ? await freePort(state) : Number(before));
}

/** Each state folder begins elsewhere: one that does not run now shall find its port free later, too. */
async function freePort(state: StateFolder): Promise<number> {
  const offset = createHash('sha256').update(state.path).digest().readUInt32BE(0);
  const candidates = Array.from({ length: ports }, (_, i) => firstPort + ((offset + i) % ports));
  for (const port of candidates) if (await isFree(port)) return port;
  // Taken, too: it says so, and goes on trying.
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
