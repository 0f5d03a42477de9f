import { unlessAborted } from '#base/aborted.ts';
import type { Clock } from '#base/clock.ts';
import { errnoOf } from '#base/errno.ts';
import {
  createNfsClient,
  createRpcClient,
  mnt,
  nfsProgram,
  nfsVersion,
  type RpcClientOptions,
  RpcError,
  type RpcFailure,
} from '#wire/nfs3/index.ts';
import { dial as dialOnce } from '#wire/rpc/connection.ts';
import { ClientCertificateRejected, causesOf, type MissingRequirement, ServerHangsUp } from './connection-errors.ts';
import { createLocalPorts, type Dial } from './dial.ts';
import type { NfsOptions } from './options.ts';

/** Diagnosing a failure must take less time than the failed call. */
const probeTimeoutMs = 2_000;
const hangUpTimeoutMs = 1_000;
const dialRounds = 3;

export interface ServerEndpoint {
  readonly options: NfsOptions;
  readonly addresses: readonly string[];
  readonly port: number;
  readonly dial: Dial;
}

/** Finds out what a server that denies our calls requires: tries a privileged port, then TLS. */
export async function findMissingRequirement(
  endpoint: ServerEndpoint,
  mountPort: number,
  signal: AbortSignal,
): Promise<MissingRequirement> {
  const { sourcePorts, tls } = endpoint.options;
  const isPrivileged = sourcePorts === 'privileged' || (sourcePorts !== undefined && sourcePorts < 1024);
  if (!isPrivileged && (await isAdmittedFromPrivilegedPort(endpoint, mountPort, signal))) return 'privileged-port';
  if (tls === undefined && (await offersTls(endpoint, signal))) return 'tls';
  return undefined;
}

async function isAdmittedFromPrivilegedPort(
  { options, addresses, port, dial }: ServerEndpoint,
  mountPort: number,
  signal: AbortSignal,
): Promise<boolean> {
  const dialOverrides = { localPort: createLocalPorts('privileged'), dialRounds };
  const limits = { signal, deadlineMs: probeTimeoutMs };
  using mountRpc = createRpcClient({ ...dial(addresses, mountPort, 'mount'), ...dialOverrides });
  using rpc = createRpcClient({ ...dial(addresses, port), ...dialOverrides });
  try {
    const { handle } = await mountRpc.call(mnt, options.path, limits);
    await createNfsClient(rpc, dial(addresses, port).clock).getattr(handle, limits);
    return true;
  } catch {
    // The server still denies the call, or this process may not use such a port.
    return false;
  }
}

async function offersTls({ addresses, port, dial }: ServerEndpoint, signal: AbortSignal): Promise<boolean> {
  const rpcOptions = dial(addresses, port);
  // This sends nothing confidential, so don't verify the server's certificate.
  const tls = { options: { rejectUnauthorized: false }, program: nfsProgram, version: nfsVersion };
  using rpc = createRpcClient({ ...rpcOptions, tls, dialRounds: 1 });
  try {
    await createNfsClient(rpc, rpcOptions.clock).null({ signal, deadlineMs: probeTimeoutMs });
    return true;
  } catch (cause) {
    // A server that then asks for our certificate does offer TLS.
    return cause instanceof RpcError && (cause.failure === 'lost' || cause.failure === 'deadline');
  }
}

/** Failures of a call if the server closes its connection again and again. */
const hangUpFailures: readonly RpcFailure[] = ['deadline', 'lost', 'unreachable', 'tls'];
const mayBeHangUp = (cause: unknown): cause is RpcError =>
  cause instanceof RpcError && hangUpFailures.includes(cause.failure);

/** The TLS alert of a server that rejects our certificate, or requires one. */
const isClientCertificateAlert = (error: Error): boolean =>
  /^ERR_SSL_.*_ALERT_(?:.*CERTIFICATE.*|UNKNOWN_CA|ACCESS_DENIED)$/.test(errnoOf(error) ?? '');

/** After a failed call: checks whether the server accepts connections only to close them. Returns the more precise error. */
export async function explainHangUp(
  cause: unknown,
  { addresses, port, dial }: ServerEndpoint,
  signal: AbortSignal,
): Promise<unknown> {
  if (causesOf(cause).some(isClientCertificateAlert)) return new ClientCertificateRejected('refused', { cause });
  const isExplained = causesOf(cause).some((error) => !(error instanceof RpcError));
  if (isExplained || !mayBeHangUp(cause)) return cause;
  const hangUp = await detectHangUp({ addresses, port, dial }, signal);
  if (hangUp !== undefined) return hangUp;
  const rpcOptions = dial(addresses, port);
  const tlsHangUp = rpcOptions.tls === undefined ? undefined : await everyAddressHangsUp(rpcOptions, signal);
  return tlsHangUp === undefined ? cause : new ClientCertificateRejected('hung up', { cause: tlsHangUp });
}

/** Like `explainHangUp`, for the calls of an open store. Calls that fail at the same time share one check. */
export function createHangUpExplainer(
  { findHangUp }: { readonly findHangUp: (signal: AbortSignal) => Promise<Error | undefined> },
  clock: Clock,
): (cause: unknown) => Promise<unknown> {
  let pendingCheck: Promise<Error | undefined> | undefined;

  async function checkOnce(): Promise<Error | undefined> {
    using limit = clock.deadline(probeTimeoutMs, new AbortController().signal);
    try {
      return await findHangUp(limit.signal);
    } finally {
      pendingCheck = undefined;
    }
  }

  return async (cause) => {
    if (!mayBeHangUp(cause)) return cause;
    pendingCheck ??= checkOnce();
    return (await pendingCheck) === undefined ? cause : new ServerHangsUp('hung up', { cause });
  };
}

/** Undefined: at least one address keeps the connection open, or refuses the connection. */
export async function detectHangUp(
  { addresses, port, dial }: Pick<ServerEndpoint, 'addresses' | 'port' | 'dial'>,
  signal: AbortSignal,
): Promise<ServerHangsUp | undefined> {
  const cause = await everyAddressHangsUp({ ...dial(addresses, port), tls: undefined }, signal);
  return cause === undefined ? undefined : new ServerHangsUp('hung up', { cause });
}

/** The error, if every address closes a connection before we send anything. */
async function everyAddressHangsUp(options: RpcClientOptions, signal: AbortSignal): Promise<Error | undefined> {
  let why: Error | undefined;
  // One after the other, because a fixed source port allows only one connection at a time.
  for (const address of options.addresses) {
    why = await addressHangsUp(options, address, signal);
    if (why === undefined) return undefined;
  }
  return why;
}

async function addressHangsUp(
  { clock, tls, connect, localPort }: RpcClientOptions,
  address: RpcClientOptions['addresses'][number],
  signal: AbortSignal,
): Promise<Error | undefined> {
  using limit = clock.deadline(hangUpTimeoutMs, signal);
  try {
    const dialOptions = { address, tls, connect, localPort: localPort?.(), maxRecord: 1024 };
    const connection = await dialOnce({ ...dialOptions, signal: limit.signal, onRecord: () => undefined });
    const why = await unlessAborted(connection.ended, limit.signal).catch(() => undefined);
    connection.close();
    return why;
  } catch {
    return undefined;
  }
}
