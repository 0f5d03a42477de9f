import {
  createRpcClient,
  type FileHandle,
  findPort,
  isNfsError,
  listExports,
  MountError,
  mnt,
  mountProgram,
  mountVersion,
  type NfsClient,
  portmapPort,
  type RpcClient,
  RpcError,
} from '#wire/nfs3/index.ts';
import type { OnStep } from './connect.ts';
import {
  CallsDenied,
  ExportRefused,
  isListed,
  MountServiceUnreachable,
  type ServicePort,
} from './connection-errors.ts';
import { findMissingRequirement, type ServerEndpoint } from './diagnosis.ts';

/** The default port of the MOUNT service on Linux. */
const defaultMountPort = 20_048;

export interface MountParts extends ServerEndpoint {
  /** To the NFS service. */
  readonly rpc: RpcClient;
  readonly nfs: NfsClient;
}

/** Mounts the store's directory, and checks that the server accepts calls on it. */
export function createMount(parts: MountParts): (onStep: OnStep, signal: AbortSignal) => Promise<FileHandle> {
  const { options, addresses, port, dial, rpc, nfs } = parts;
  const { path } = options;
  return async (onStep, signal) => {
    const limits = { signal, deadlineMs: options.timeout };
    const found = await findMountPort(parts, onStep, signal);
    // Use the same connection if possible: a single source port allows no second one.
    const ownRpc = found.port === port ? undefined : createRpcClient(dial(addresses, found.port, 'mount'));
    using _closing = ownRpc;
    const handle = await requestMount(parts, ownRpc ?? rpc, found, signal);
    try {
      await nfs.getattr(handle, limits);
    } catch (cause) {
      if (!isDenied(cause)) throw cause;
      throw new CallsDenied(await findMissingRequirement(parts, found.port, signal), { cause });
    }
    onStep('mount', `${path}, by the service on port ${found.port}`);
    return handle;
  };
}

/** A server that accepts our calls at all answers GETATTR. */
const isDenied = (cause: unknown): boolean =>
  isNfsError(cause, 'ACCES', 'PERM') || (cause instanceof RpcError && cause.failure === 'denied');

async function requestMount(
  parts: MountParts,
  rpc: RpcClient,
  found: ServicePort,
  signal: AbortSignal,
): Promise<FileHandle> {
  const { path, timeout } = parts.options;
  const limits = { signal, deadlineMs: timeout };
  try {
    return (await rpc.call(mnt, path, limits)).handle;
  } catch (cause) {
    if (cause instanceof MountError) {
      const exported = await rpc.call(listExports, undefined, limits).catch(() => undefined);
      const refusal = { path, status: cause.statusName, exported };
      const mayBePort = (refusal.status === 'ACCES' || refusal.status === 'PERM') && isListed(refusal) !== false;
      if (mayBePort && (await findMissingRequirement(parts, found.port, signal)) === 'privileged-port')
        throw new CallsDenied('privileged-port', { cause });
      throw new ExportRefused(refusal, { cause });
    }
    if (isDenied(cause)) throw new CallsDenied(await findMissingRequirement(parts, found.port, signal), { cause });
    if (cause instanceof RpcError && cause.failure !== 'canceled' && cause.failure !== 'closed')
      throw new MountServiceUnreachable(found, { cause });
    throw cause;
  }
}

/** The port of the option or of the portmapper. Without a portmapper, the default port. */
async function findMountPort(
  { options, addresses, dial, port, rpc }: MountParts,
  onStep: OnStep,
  signal: AbortSignal,
): Promise<ServicePort> {
  if (options.mountPort !== undefined) return { port: options.mountPort, source: 'option' };
  const network = addresses[0]?.includes(':') === true ? 'tcp6' : 'tcp';
  using portmapper = createRpcClient({ ...dial(addresses, portmapPort, 'portmap'), dialRounds: 1 });
  try {
    const found = await findPort(portmapper, { program: mountProgram, version: mountVersion }, network, { signal });
    onStep(
      'portmap',
      found === undefined ? 'the portmapper knows no MOUNT service' : `the MOUNT service is on port ${found}`,
    );
    if (found !== undefined) return { port: found, source: 'portmapper' };
  } catch (cause) {
    if (!(cause instanceof RpcError) || signal.aborted) throw cause;
    onStep('portmap', `no answer on port ${portmapPort}; continued without it`);
  }
  return { port: (await isMountServedOn(rpc, options.timeout, signal)) ? port : defaultMountPort, source: 'guess' };
}

/** Many servers in user space have both services on one port. */
async function isMountServedOn(rpc: RpcClient, deadlineMs: number, signal: AbortSignal): Promise<boolean> {
  try {
    await rpc.call(listExports, undefined, { signal, deadlineMs });
    return true;
  } catch (cause) {
    // go-nfs has the program but not this procedure. Others deny this call to unknown callers.
    return cause instanceof RpcError && (cause.failure === 'no-procedure' || cause.failure === 'denied');
  }
}
