import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { statfsSync } from 'node:fs';
import type { AddressInfo, Server, Socket } from 'node:net';
import type { TlsOptions } from 'node:tls';
import type { Clock } from '#base/clock.ts';
import type { PartialCallLimits } from '../../rpc/partial-calls.ts';
import {
  type Caller,
  createRpcServer,
  type RpcServerOptions,
  type ServedProcedure,
  type ServedProgram,
} from '../../rpc/server.ts';
import { mountProgram, mountVersion } from '../mount.ts';
import { maxTransferBytes, nfsProgram, nfsVersion } from '../structures.ts';
import { attributeProcedures } from './attribute-procedures.ts';
import { createToAttributes } from './attributes.ts';
import { requireBirthTimes } from './birth-times.ts';
import { createIsConfined } from './confinement.ts';
import { creationProcedures } from './creation-procedures.ts';
import { createDataProcedures } from './data-procedures.ts';
import { createDurability } from './durability.ts';
import type { Export } from './export.ts';
import { createExportedTree } from './exported-tree.ts';
import { createFileSearch } from './file-search.ts';
import { loadHandleKey } from './handle-key.ts';
import { createHandles, createHmacSha256 } from './handles.ts';
import { createIdentities, type IdentityOptions, type IdMapping } from './identities.ts';
import { cookieSecret, createListings } from './listing.ts';
import { listingProcedures } from './listing-procedures.ts';
import { createMountProgram } from './mount-program.ts';
import { nameProcedures } from './name-procedures.ts';
import { createMayConnect } from './networks.ts';
import { createNodes } from './nodes.ts';
import { requireOneDevice } from './one-device.ts';
import { createPortmapPrograms } from './portmap-program.ts';
import { type ProcedureDefinition, servedProcedure } from './procedure.ts';
import { createReadMemory, type ReadMemory } from './read-memory.ts';
import { createReaddirCache } from './readdir-cache.ts';

export interface NfsServerOptions {
  readonly replaysByPort?: RpcServerOptions['replaysByPort'];
  readonly clock: Clock;
  /** The exported directory, without other file systems mounted below it. */
  readonly directory: string;
  /** The directory for the key of the file handles. It must be outside the exported directory. */
  readonly state: string;
  /** The export path for clients; default `/export`. Not `/`, since libnfs then cannot copy a file to it. */
  readonly path?: string;
  /** Default: localhost. */
  readonly host?: string;
  /** Default 2049; 0: any free port. */
  readonly port?: number;
  /** Also starts a portmapper. */
  readonly portmap?: { readonly port: number } | undefined;
  readonly readOnly?: boolean;
  /** Networks and addresses that may connect; empty: all. */
  readonly networks?: readonly string[];
  /** Called for each connection from one of these networks. */
  readonly mayConnect?: (socket: Socket) => boolean;
  /** Requires a port below 1024, which only root can bind on the client. */
  readonly privilegedPorts?: boolean;
  readonly squash?: IdentityOptions['squash'];
  readonly anonymous?: IdentityOptions['anonymous'];
  readonly users?: readonly IdMapping[];
  readonly groups?: readonly IdMapping[];
  /** RFC 9289. Required: the server refuses calls without TLS. */
  readonly tls?: { readonly options: TlsOptions; readonly required: boolean } | undefined;
  /**
   * Common names of the certificates of confined callers, which may access only volumes whose handles they were given: see
   * confinement.ts.
   */
  readonly confined?: readonly string[];
  /**
   * Default true: changes of names and attributes are synced to the disk before the reply, as RFC 1813 requires. False: they
   * reach the disk within seconds, and may be lost in a power failure.
   */
  readonly durable?: boolean;
  /**
   * Nothing else runs in this process, so the server may change its working directory for a moment, which makes listings much
   * faster.
   */
  readonly ownsProcess?: boolean;
  readonly maxConnections?: number;
  readonly halfCalls?: Partial<PartialCallLimits>;
  readonly limits?: Partial<Limits>;
  readonly onError?: (what: string, cause: unknown) => void;
}

/** Limits on memory and searches. */
interface Limits {
  readonly descriptors: number;
  readonly nodes: number;
  readonly namesOfOneDirectory: number;
  readonly names: number;
  readonly searchVisits: number;
  /** A longer read must have waited for the disk: cached data take less. */
  readonly slowReadMs: number;
}

const defaultLimits: Limits = {
  descriptors: 1024,
  nodes: 50_000,
  namesOfOneDirectory: 131_072,
  names: 262_144,
  searchVisits: 250_000,
  slowReadMs: 1,
};

export interface NfsServer {
  readonly host: string;
  readonly port: number;
  readonly portmapPort: number | undefined;
  close(): Promise<void>;
}

const nobodyId = 65_534;
/** How long clients can still access a file that was moved out of the export or deleted, because the server has it open. */
const refreshMs = 10_000;

/** Exports a directory over NFS version 3 on TCP, with MOUNT on the same port. */
export async function createNfsServer(options: NfsServerOptions): Promise<NfsServer> {
  const { clock, host = '127.0.0.1', networks = [] } = options;
  const isAllowed = createMayConnect(networks);
  const limits = { ...defaultLimits, ...options.limits };
  const closing = new AbortController();
  const key = await loadHandleKey(options.state, options.directory);
  const exported = createExport(options, limits, key, closing.signal);
  const rpcOptions: Omit<RpcServerOptions, 'programs'> = {
    mayConnect: (address, socket) => isAllowed(address) && (options.mayConnect?.(socket) ?? true),
    isAllowed: createIsAllowed(options),
    maxRecord: maxTransferBytes + 64 * 1024,
    maxConnections: options.maxConnections ?? 256,
    clock,
    partialCalls: options.halfCalls ?? {},
    onError: exported.onError,
  };
  const isConfined = createIsConfined(options.confined ?? []);
  const mount = createMountProgram(exported, { path: options.path ?? '/export', networks, isConfined });
  await using cleanups = new AsyncDisposableStack();
  cleanups.defer(() => {
    closing.abort();
    exported.tree.close();
  });
  const memory = createReadMemory();
  const server = createRpcServer({
    ...rpcOptions,
    programs: [createNfsProgram(exported, isConfined, memory, limits.slowReadMs), mount],
    tls: options.tls?.options,
    replaysByPort: options.replaysByPort,
    onSent: memory.release,
  });
  const port = await listen(cleanups, server, host, options.port ?? 2049);
  const portmapPort =
    options.portmap && (await listenForPortmap(cleanups, rpcOptions, host, port, options.portmap.port));
  const refresh = (): void => {
    exported.tree.refresh();
    exported.readdirCache.evictExpired();
    memory.freeUnused();
  };
  cleanups.use(repeatEvery(clock, refreshMs, refresh));
  const all = cleanups.move();
  return { host, port, portmapPort, close: () => all.disposeAsync() };
}

function createExport(options: NfsServerOptions, limits: Limits, key: Buffer, closing: AbortSignal): Export {
  const { clock, directory, onError = () => undefined } = options;
  const hmac = createHmacSha256(key);
  const handles = createHandles(key);
  const nodes = createNodes(handles, limits.nodes);
  const { ownsProcess = false } = options;
  requireOneDevice(directory);
  if (options.confined !== undefined && options.confined.length > 0) requireBirthTimes(directory);
  const tree = createExportedTree({ path: directory, maxDescriptors: limits.descriptors, ownsProcess }, nodes);
  const identities = createIdentities(identityOptions(options));
  let verifier = randomBytes(8);
  return {
    tree,
    nodes,
    handles,
    identities,
    onError,
    search: createFileSearch(tree, clock, closing, { maxVisits: limits.searchVisits }),
    toAttributes: createToAttributes(hmac(Buffer.from('file system')).readBigUInt64BE(0), identities),
    listings: createListings(tree, cookieSecret(hmac(Buffer.from('cookies'))), clock.now, {
      maxNames: limits.namesOfOneDirectory,
      maxCachedNames: limits.names,
    }),
    readdirCache: createReaddirCache(tree, clock.elapsed),
    durability: createDurability(tree),
    isDurable: options.durable !== false && !isInMemory(directory),
    isReadOnly: options.readOnly ?? false,
    isConfined: false,
    verifier: {
      get bytes() {
        return verifier;
      },
      renew: () => {
        verifier = randomBytes(8);
      },
    },
    cookieVerifier: hmac(Buffer.from('cookie verifier')).readBigUInt64BE(0),
  };
}

/** A server that runs as an ordinary user can act only as that user. */
function identityOptions(options: NfsServerOptions): IdentityOptions {
  const [uid, gid] = [process.geteuid?.() ?? nobodyId, process.getegid?.() ?? nobodyId];
  return {
    squash: options.squash ?? 'root',
    anonymous: options.anonymous ?? { uid: nobodyId, gid: nobodyId },
    users: options.users ?? [],
    groups: options.groups ?? [],
    serverUser: uid === 0 ? undefined : { uid, gid, groups: process.getgroups?.() ?? [], isRoot: false },
  };
}

/** tmpfs and ramfs by their statfs(2) magic numbers: they have no disk to wait for. */
const inMemoryTypes: readonly number[] = [0x0102_1994, 0x8584_58f6];
const isInMemory = (directory: string): boolean => inMemoryTypes.includes(statfsSync(directory).type);

function createIsAllowed({ privilegedPorts = false, tls }: NfsServerOptions): (caller: Caller) => boolean {
  const needsTls = tls?.required ?? false;
  return ({ port, isEncrypted }) => (!privilegedPorts || port < 1024) && (!needsTls || isEncrypted);
}

type IsConfined = ReturnType<typeof createIsConfined>;

function createNfsProgram(
  exported: Export,
  isConfined: IsConfined,
  memory: ReadMemory,
  slowReadMs: number,
): ServedProgram {
  const definitions = [
    ...attributeProcedures,
    ...createDataProcedures(memory, slowReadMs),
    ...creationProcedures,
    ...nameProcedures,
    ...listingProcedures,
  ];
  const confined = { ...exported, isConfined: true };
  const serve = (one: ProcedureDefinition): ServedProcedure => {
    const [free, narrow] = [servedProcedure(exported, one), servedProcedure(confined, one)];
    return { ...free, handle: (reader, caller) => (isConfined(caller) ? narrow : free).handle(reader, caller) };
  };
  const procedures = new Map(definitions.map((one) => [one.number, serve(one)]));
  procedures.set(0, { name: 'NULL', handle: () => () => undefined });
  return { number: nfsProgram, version: nfsVersion, procedures };
}

async function listenForPortmap(
  open: AsyncDisposableStack,
  about: Omit<RpcServerOptions, 'programs'>,
  host: string,
  port: number,
  portmapPort: number,
): Promise<number> {
  const registered = [
    { program: nfsProgram, version: nfsVersion, port },
    { program: mountProgram, version: mountVersion, port },
  ];
  // Every client that may connect may query the portmapper, since a client needs the port before it can authenticate.
  const server = createRpcServer({
    ...about,
    isAllowed: () => true,
    programs: createPortmapPrograms(() => registered),
  });
  return await listen(open, server, host, portmapPort);
}

/** Throws the system's error: the port is in use, or not permitted. */
async function listen(open: AsyncDisposableStack, server: Server, host: string, port: number): Promise<number> {
  const sockets = new Set<Socket>();
  server.on('connection', (socket: Socket) => {
    sockets.add(socket);
    socket.on('close', () => sockets.delete(socket));
  });
  server.listen(port, host);
  await once(server, 'listening');
  open.defer(async () => {
    const closed = once(server, 'close');
    server.close();
    for (const socket of sockets) socket.destroy();
    await closed;
  });
  return (server.address() as AddressInfo).port;
}

function repeatEvery(clock: Clock, ms: number, work: () => void): Disposable {
  let timer = clock.after(ms, again);
  function again(): void {
    work();
    timer = clock.after(ms, again);
  }
  return { [Symbol.dispose]: () => timer[Symbol.dispose]() };
}
