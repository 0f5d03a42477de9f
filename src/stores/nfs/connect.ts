import { lookup } from 'node:dns/promises';
import { isIP } from 'node:net';
import { hostname } from 'node:os';
import { unlessAborted } from '#base/aborted.ts';
import type { Clock } from '#base/clock.ts';
import type { FindNamespace } from '#base/linux/network.ts';
import {
  createNfsClient,
  createRpcClient,
  type FileHandle,
  type Identity,
  type NfsClient,
  RpcError,
} from '#wire/nfs3/index.ts';
import { ClientCertificateRejected, HostNotFound, TlsFilesUnreadable } from './connection-errors.ts';
import { type CountedRpc, createCountedRpc } from './counted-rpc.ts';
import { detectHangUp, explainHangUp } from './diagnosis.ts';
import { createDial } from './dial.ts';
import { createMount } from './mounting.ts';
import { createEnterNetwork, type Network } from './network.ts';
import type { NfsOptions } from './options.ts';

/** A connection to a server that answers, for one exported directory. */
export interface Session {
  readonly nfs: NfsClient;
  /** Addresses of the server's names, in the order in which they are tried. */
  readonly addresses: readonly string[];
  readonly port: number;
  /** Returns the handle of the store's directory. Each call sends a MNT request. */
  mount(signal: AbortSignal): Promise<FileHandle>;
  /** The error, if the server accepts connections and closes them at once. */
  findHangUp(signal: AbortSignal): Promise<Error | undefined>;
  /** Number of calls to the server so far, by all stores that share its connections. */
  readonly calls: number;
  close(): void;
}

/** Reports the result of a step, for `store check`. */
export type OnStep = (step: 'network' | 'resolve' | 'connect' | 'tls' | 'portmap' | 'mount', detail: string) => void;

export type Connect = (options: NfsOptions, onStep: OnStep, signal: AbortSignal) => Promise<Session>;

const defaultNfsPort = 2049;

/** Create one for the whole program: stores on one server with the same options share its connections. */
export function createConnect(clock: Clock, find?: FindNamespace): Connect {
  const sharedClients = new Map<string, { users: number; readonly rpc: CountedRpc }>();

  function acquireRpc(key: string, make: () => CountedRpc): CountedRpc {
    const entry = sharedClients.get(key) ?? { users: 0, rpc: make() };
    entry.users++;
    sharedClients.set(key, entry);
    return entry.rpc;
  }

  function releaseRpc(key: string): void {
    const entry = sharedClients.get(key);
    if (entry === undefined || --entry.users > 0) return;
    sharedClients.delete(key);
    entry.rpc.close();
  }

  const enterNetwork = createEnterNetwork(clock, find);

  return async (options, onStep, signal) => {
    using resources = new DisposableStack();
    const network =
      options.network === undefined ? undefined : resources.use(await enterNetwork(options.network, signal));
    if (options.network !== undefined) onStep('network', `connections start in ${options.network}`);
    using limit = clock.deadline(options.timeout, signal);
    const addresses = await resolve(options.hosts, network, limit.signal);
    onStep('resolve', addresses.join(', '));
    const dial = await createDial(options, identityOf(options), network, clock);
    const port = options.port ?? defaultNfsPort;
    const endpoint = { options, addresses, port, dial };
    const key = keyOf(options, port);
    const rpc = acquireRpc(key, () =>
      createCountedRpc(createRpcClient({ ...dial(addresses, port), connections: options.connections })),
    );
    resources.defer(() => releaseRpc(key));
    const nfs = createNfsClient(rpc, clock);
    const reportConnected = (): void => onStep('connect', `${rpc.address.host}, port ${rpc.address.port}`);
    try {
      await nfs.null({ signal, deadlineMs: options.timeout });
    } catch (cause) {
      const why = signal.aborted ? cause : await explainHangUp(cause, endpoint, signal);
      if (isTlsFailure(why)) reportConnected();
      throw why;
    }
    reportConnected();
    if (options.tls !== undefined) onStep('tls', 'the connection is encrypted and the certificate is valid');
    const mount = createMount({ ...endpoint, rpc, nfs });
    const sessionResources = resources.move();
    return {
      nfs,
      addresses,
      port,
      mount: (callSignal) => mount(onStep, callSignal),
      findHangUp: (callSignal) => detectHangUp(endpoint, callSignal),
      get calls() {
        return rpc.sentCalls;
      },
      close: () => sessionResources.dispose(),
    };
  };
}

/** The options that connections depend on. Deadlines belong to each call. */
const keyOf = (options: NfsOptions, port: number): string => {
  const { hosts, connections, squash, uid, gid, retries, sourcePorts, tls, network } = options;
  return JSON.stringify({ hosts, port, connections, squash, uid, gid, retries, sourcePorts, tls, network });
};

/** The TCP connection was established, and only TLS failed. */
export const isTlsFailure = (cause: unknown): boolean =>
  cause instanceof ClientCertificateRejected ||
  cause instanceof TlsFilesUnreadable ||
  (cause instanceof RpcError && cause.failure === 'tls');

/** All addresses of all names, in order, without duplicates. */
async function resolve(
  hosts: NfsOptions['hosts'],
  network: Network | undefined,
  signal: AbortSignal,
): Promise<readonly string[]> {
  const addressesOf = async (host: string): Promise<readonly string[]> => {
    if (isIP(host) !== 0) return [host];
    if (network !== undefined) return await network.lookup(host, signal);
    return (await lookup(host, { all: true })).map(({ address }) => address);
  };
  // The system's resolver cannot be canceled, so don't wait for it after an abort.
  const resolutions = await Promise.allSettled(hosts.map((host) => unlessAborted(addressesOf(host), signal)));
  const found = resolutions.flatMap((result) => (result.status === 'fulfilled' ? result.value : []));
  const failure = resolutions.find((result) => result.status === 'rejected')?.reason;
  if (found.length === 0) throw new HostNotFound(hosts.join(', '), failure);
  return [...new Set(found)];
}

export function identityOf({ squash, uid, gid }: NfsOptions): Identity {
  const isRoot = squash === 'none';
  return {
    uid: isRoot ? 0 : (uid ?? nobodyId),
    gid: isRoot ? 0 : (gid ?? nobodyId),
    groups: [],
    machine: hostname(),
  };
}

const nobodyId = 65_534;
