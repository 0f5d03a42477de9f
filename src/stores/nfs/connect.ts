import { lookup } from 'node:dns/promises';
import { readFile } from 'node:fs/promises';
import { isIP } from 'node:net';
import { hostname } from 'node:os';
import { join } from 'node:path';
import type { ConnectionOptions } from 'node:tls';
import type { Clock } from '#base/clock.ts';
import {
  createNfsClient,
  createRpcClient,
  type FileHandle,
  findPort,
  type Identity,
  listExports,
  MountError,
  mnt,
  mountProgram,
  mountVersion,
  type NfsClient,
  nfsProgram,
  nfsVersion,
  portmapPort,
  type RpcClient,
  type RpcClientOptions,
  RpcError,
} from '#wire/nfs3/index.ts';
import { ExportRefused, HostUnknown, TlsFilesUnreadable } from './failures.ts';
import type { NfsOptions } from './options.ts';

/** A server that answers, and the directory that was asked for. */
export interface Session {
  readonly nfs: NfsClient;
  /** The handle of the store's directory; asked for anew at each call. */
  mount(signal: AbortSignal): Promise<FileHandle>;
  /** Calls that were sent to the server so far, by all stores that share its connections. */
  readonly calls: number;
  close(): void;
}

/** What a step of getting there found out, for those who ask. */
export type OnStep = (step: 'resolve' | 'connect' | 'tls' | 'portmap' | 'mount', detail: string) => void;

export type Connect = (options: NfsOptions, onStep: OnStep, signal: AbortSignal) => Promise<Session>;

const nfsPort = 2049;
/** Where Linux has its MOUNT service by default. */
const usualMountPort = 20_048;

/** One for the whole program: stores on one server with the same options share its connections. */
export function createConnect(clock: Clock): Connect {
  const shared = new Map<string, { users: number; readonly rpc: RpcClient & { readonly sent: number } }>();

  function rent(key: string, make: () => RpcClient & { readonly sent: number }): RpcClient & { readonly sent: number } {
    const known = shared.get(key) ?? { users: 0, rpc: make() };
    known.users++;
    shared.set(key, known);
    return known.rpc;
  }

  function giveBack(key: string): void {
    const known = shared.get(key);
    if (known === undefined || --known.users > 0) return;
    shared.delete(key);
    known.rpc.close();
  }

  return async (options, onStep, signal) => {
    const addresses = await resolve(options.hosts);
    onStep('resolve', addresses.join(', '));
    const dial = await createDial(options, clock);
    const port = options.port ?? nfsPort;
    const key = JSON.stringify(
      [options.hosts, port, options.connections, options.squash, options.uid, options.gid].concat([
        options.retries,
        options.sourcePorts ?? '',
        options.tls ?? '',
        options.network ?? '',
      ] as never[]),
    );
    const rpc = rent(key, () =>
      counted(createRpcClient({ ...dial(addresses, port), connections: options.connections })),
    );
    try {
      const nfs = createNfsClient(rpc, clock);
      await nfs.null({ signal, deadlineMs: options.timeout });
      onStep('connect', `${rpc.address.host}, port ${rpc.address.port}`);
      if (options.tls !== undefined) onStep('tls', 'the connection is encrypted and the certificate is right');
      const mount = createMount(options, addresses, dial, port);
      return {
        nfs,
        mount: (until) => mount(onStep, until),
        get calls() {
          return rpc.sent;
        },
        close: () => giveBack(key),
      };
    } catch (cause) {
      giveBack(key);
      throw cause;
    }
  };
}

function counted(rpc: RpcClient): RpcClient & { readonly sent: number } {
  let sent = 0;
  return {
    call: (procedure, args, options) => {
      sent++;
      return rpc.call(procedure, args, options);
    },
    get pending() {
      return rpc.pending;
    },
    get address() {
      return rpc.address;
    },
    get sent() {
      return sent;
    },
    close: () => rpc.close(),
    [Symbol.dispose]: () => rpc.close(),
  };
}

/** All addresses of all names, in order; each once. */
async function resolve(hosts: NfsOptions['hosts']): Promise<readonly string[]> {
  const found: string[] = [];
  let failure: unknown;
  for (const host of hosts) {
    try {
      const all = isIP(host) === 0 ? await lookup(host, { all: true }) : [{ address: host }];
      found.push(...all.map(({ address }) => address));
    } catch (cause) {
      failure = cause;
    }
  }
  if (found.length === 0) throw new HostUnknown(hosts.join(', '), failure);
  return [...new Set(found)];
}

type Dial = (addresses: readonly string[], port: number, program?: 'nfs' | 'mount' | 'portmap') => RpcClientOptions;

/** How every connection to this server is made: as whom, from which port, in private or not. */
async function createDial(options: NfsOptions, clock: Clock): Promise<Dial> {
  const tls = options.tls === undefined ? undefined : await tlsOptions(options.tls, options.hosts[0]);
  const localPort = createLocalPorts(options.sourcePorts);
  return (addresses, port, program = 'nfs') => {
    const [first = '', ...others] = addresses;
    return {
      clock,
      addresses: [{ host: first, port }, ...others.map((host) => ({ host, port }))],
      identity: identityOf(options),
      deadlineMs: options.timeout,
      dialMs: Math.min(options.timeout, 5_000),
      dialRounds: options.retries + 1,
      localPort,
      // A portmapper has no secrets, and most have no certificate.
      ...(tls === undefined || program === 'portmap'
        ? {}
        : {
            tls:
              program === 'mount'
                ? { options: tls, program: mountProgram, version: mountVersion }
                : { options: tls, program: nfsProgram, version: nfsVersion },
          }),
    };
  };
}

export function identityOf({ squash, uid, gid }: NfsOptions): Identity {
  const isRoot = squash === 'none';
  return {
    uid: isRoot ? 0 : (uid ?? nobody),
    gid: isRoot ? 0 : (gid ?? nobody),
    groups: [],
    machine: hostname(),
  };
}

const nobody = 65_534;

async function tlsOptions({ folder }: NonNullable<NfsOptions['tls']>, host: string): Promise<ConnectionOptions> {
  const servername = isIP(host) === 0 ? { servername: host } : {};
  if (folder === undefined) return servername;
  const ifThere = (name: string): Promise<Buffer | undefined> =>
    readFile(join(folder, name)).catch((cause: unknown) => {
      if (cause instanceof Error && 'code' in cause && cause.code === 'ENOENT') return undefined;
      throw new TlsFilesUnreadable(join(folder, name), cause);
    });
  const [ca, cert, key] = [await ifThere('ca.pem'), await ifThere('client.pem'), await ifThere('client.key')];
  if (ca === undefined && cert === undefined) throw new TlsFilesUnreadable(join(folder, 'ca.pem'), undefined);
  if ((cert === undefined) !== (key === undefined))
    throw new TlsFilesUnreadable(join(folder, cert === undefined ? 'client.pem' : 'client.key'), undefined);
  return {
    ...servername,
    ...(ca === undefined ? {} : { ca }),
    ...(cert === undefined ? {} : { cert, key: key ?? '' }),
  };
}

const privileged = { first: 665, last: 1023 } as const;

/** The next of those that servers trust: one that was in use a moment ago cannot be used again at once. */
function createLocalPorts(wanted: NfsOptions['sourcePorts']): (() => number) | undefined {
  if (wanted === undefined) return undefined;
  if (wanted !== 'privileged') return () => wanted;
  const count = privileged.last - privileged.first + 1;
  let next = Math.floor(Math.random() * count);
  return () => privileged.first + (next++ % count);
}

function createMount(
  options: NfsOptions,
  addresses: readonly string[],
  dial: Dial,
  port: number,
): (onStep: OnStep, signal: AbortSignal) => Promise<FileHandle> {
  const { path } = options;
  return async (onStep, signal) => {
    const mountPort = await findMountPort(options, addresses, dial, port, onStep, signal);
    using rpc = createRpcClient(dial(addresses, mountPort, 'mount'));
    try {
      const { handle } = await rpc.call(mnt, path, { signal });
      onStep('mount', `${path}, by the service on port ${mountPort}`);
      return handle;
    } catch (cause) {
      if (!(cause instanceof MountError)) throw cause;
      const exported = await rpc.call(listExports, undefined, { signal }).catch(() => undefined);
      throw new ExportRefused({ path, status: cause.statusName, exported }, { cause });
    }
  };
}

/** Given, or asked for; where there is no portmapper, where it usually is. */
async function findMountPort(
  { mountPort }: NfsOptions,
  addresses: readonly string[],
  dial: Dial,
  port: number,
  onStep: OnStep,
  signal: AbortSignal,
): Promise<number> {
  if (mountPort !== undefined) return mountPort;
  const network = addresses[0]?.includes(':') === true ? 'tcp6' : 'tcp';
  using rpc = createRpcClient({ ...dial(addresses, portmapPort, 'portmap'), dialRounds: 1 });
  try {
    const found = await findPort(rpc, { program: mountProgram, version: mountVersion }, network, { signal });
    onStep('portmap', found === undefined ? 'it knows no MOUNT service' : `the MOUNT service is on port ${found}`);
    if (found !== undefined) return found;
  } catch (cause) {
    if (!(cause instanceof RpcError) || cause.failure === 'canceled') throw cause;
    onStep('portmap', `no answer on port ${portmapPort}: tried without`);
  }
  return (await serves(dial(addresses, port, 'mount'), signal)) ? port : usualMountPort;
}

/** Many servers that are no part of a kernel have both services on one port. */
async function serves(dial: RpcClientOptions, signal: AbortSignal): Promise<boolean> {
  using rpc = createRpcClient({ ...dial, dialRounds: 1 });
  try {
    await rpc.call(listExports, undefined, { signal });
    return true;
  } catch (cause) {
    // go-nfs has the program, and not this procedure.
    return cause instanceof RpcError && cause.failure === 'no-procedure';
  }
}
