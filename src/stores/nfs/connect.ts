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
  /** The handle of the store's directory. Each call asks the server. */
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

const nfsPort = 2049;

/** Create one for the whole program: stores on one server with the same options share its connections. */
export function createConnect(clock: Clock, find?: FindNamespace): Connect {
  const shared = new Map<string, { users: number; readonly rpc: CountedRpc }>();

  function acquireRpc(key: string, make: () => CountedRpc): CountedRpc {
    const known = shared.get(key) ?? { users: 0, rpc: make() };
    known.users++;
    shared.set(key, known);
    return known.rpc;
  }

  function releaseRpc(key: string): void {
    const known = shared.get(key);
    if (known === undefined || --known.users > 0) return;
    shared.delete(key);
    known.rpc.close();
  }

  const enter = createEnterNetwork(clock, find);

  return async (options, onStep, signal) => {
    using opened = new DisposableStack();
    const network = options.network === undefined ? undefined : opened.use(await enter(options.network, signal));
    if (options.network !== undefined) onStep('network', `connections start in ${options.network}`);
    using limit = clock.deadline(options.timeout, signal);
    const addresses = await resolve(options.hosts, network, limit.signal);
    onStep('resolve', addresses.join(', '));
    const dial = await createDial(options, identityOf(options), network, clock);
    const port = options.port ?? nfsPort;
    const reached = { options, addresses, port, dial };
    const key = keyOf(options, port);
    const rpc = acquireRpc(key, () =>
      createCountedRpc(createRpcClient({ ...dial(addresses, port), connections: options.connections })),
    );
    opened.defer(() => releaseRpc(key));
    const nfs = createNfsClient(rpc, clock);
    const connected = (): void => onStep('connect', `${rpc.address.host}, port ${rpc.address.port}`);
    try {
      await nfs.null({ signal, deadlineMs: options.timeout });
    } catch (cause) {
      const why = signal.aborted ? cause : await explainHangUp(cause, reached, signal);
      if (isTlsFailure(why)) connected();
      throw why;
    }
    connected();
    if (options.tls !== undefined) onStep('tls', 'the connection is encrypted and the certificate is valid');
    const mount = createMount({ ...reached, rpc, nfs });
    const held = opened.move();
    return {
      nfs,
      addresses,
      port,
      mount: (until) => mount(onStep, until),
      findHangUp: (until) => detectHangUp(reached, until),
      get calls() {
        return rpc.sent;
      },
      close: () => held.dispose(),
    };
  };
}

/** The options that connections depend on. Deadlines belong to each call. */
const keyOf = (options: NfsOptions, port: number): string => {
  const { hosts, connections, squash, uid, gid, retries, sourcePorts, tls, network } = options;
  return JSON.stringify({ hosts, port, connections, squash, uid, gid, retries, sourcePorts, tls, network });
};

/** The connection was made, and only TLS failed. */
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
  const one = async (host: string): Promise<readonly string[]> => {
    if (isIP(host) !== 0) return [host];
    if (network !== undefined) return await network.lookup(host, signal);
    return (await lookup(host, { all: true })).map(({ address }) => address);
  };
  // The system's resolver cannot be canceled, so don't wait for it after an abort.
  const resolutions = await Promise.allSettled(hosts.map((host) => unlessAborted(one(host), signal)));
  const found = resolutions.flatMap((answer) => (answer.status === 'fulfilled' ? answer.value : []));
  const failure = resolutions.find((answer) => answer.status === 'rejected')?.reason;
  if (found.length === 0) throw new HostNotFound(hosts.join(', '), failure);
  return [...new Set(found)];
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
