import { X509Certificate } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { isIP } from 'node:net';
import { join } from 'node:path';
import { type ConnectionOptions, createSecureContext } from 'node:tls';
import type { Clock } from '#base/clock.ts';
import { isErrno } from '#base/errno.ts';
import {
  createPrivilegedPorts,
  type Identity,
  mountProgram,
  mountVersion,
  nfsProgram,
  nfsVersion,
  type RpcClientOptions,
} from '#wire/nfs3/index.ts';
import { TlsFilesUnreadable } from './connection-errors.ts';
import type { Network } from './network.ts';
import type { NfsOptions } from './options.ts';

/** RPC client options for a service of the server. */
export type Dial = (
  addresses: readonly string[],
  port: number,
  program?: 'nfs' | 'mount' | 'portmap',
) => RpcClientOptions;

const maxDialMs = 5_000;
const maxStallMs = 10_000;

const defaultRetries = 4;

/** The options of every connection to this server: identity, network, source port and TLS. */
export async function createDial(
  options: NfsOptions,
  identity: Identity,
  network: Network | undefined,
  clock: Clock,
): Promise<Dial> {
  const tls = options.tls === undefined ? undefined : await tlsOptions(options.tls, options.hosts[0]);
  const localPort = createLocalPorts(options.sourcePorts);
  return (addresses, port, program = 'nfs') => {
    const [firstHost = '', ...otherHosts] = addresses;
    return {
      clock,
      identity,
      localPort,
      connect: network?.connect,
      addresses: [{ host: firstHost, port }, ...otherHosts.map((host) => ({ host, port }))],
      deadlineMs: options.timeout,
      dialMs: Math.min(otherHosts.length > 0 ? options.timeout / 3 : options.timeout, maxDialMs),
      dialRounds: (options.retries ?? defaultRetries) + 1,
      // Short enough to resend a call to the next address before its deadline.
      stallMs: Math.min(options.timeout / 3, maxStallMs),
      // The portmapper needs no encryption, and most portmappers have no certificate.
      ...(tls === undefined || program === 'portmap' ? {} : { tls: { options: tls, ...programs[program] } }),
    };
  };
}

const programs = {
  nfs: { program: nfsProgram, version: nfsVersion },
  mount: { program: mountProgram, version: mountVersion },
} as const;

async function tlsOptions({ folder }: NonNullable<NfsOptions['tls']>, host: string): Promise<ConnectionOptions> {
  const servername = isIP(host) === 0 ? { servername: host } : {};
  if (folder === undefined) return servername;
  const [ca, cert, key] = await Promise.all(
    ['ca.pem', 'client.pem', 'client.key'].map((name) => readIfPresent(folder, name)),
  );
  if (ca === undefined && cert === undefined) throw new TlsFilesUnreadable(join(folder, 'ca.pem'));
  if ((cert === undefined) !== (key === undefined))
    throw new TlsFilesUnreadable(join(folder, cert === undefined ? 'client.pem' : 'client.key'));
  const options = { ...(ca === undefined ? {} : { ca }), ...(cert === undefined ? {} : { cert, key: key ?? '' }) };
  refuseInvalidTlsFiles(folder, options);
  return { ...servername, ...options };
}

const readIfPresent = (folder: string, name: string): Promise<Buffer | undefined> =>
  readFile(join(folder, name)).catch((cause: unknown) => {
    if (isErrno(cause, 'ENOENT')) return undefined;
    throw new TlsFilesUnreadable(join(folder, name), { cause });
  });

/** Node ignores an invalid certificate, and reports an invalid key as a lost connection. So check both first. */
function refuseInvalidTlsFiles(
  folder: string,
  { ca, cert, key }: { readonly ca?: Buffer; readonly cert?: Buffer; readonly key?: Buffer | string },
): void {
  const checks: Readonly<Record<string, () => unknown>> = {
    ...(ca === undefined ? {} : { 'ca.pem': () => new X509Certificate(ca) }),
    ...(cert === undefined ? {} : { 'client.pem': () => new X509Certificate(cert) }),
    ...(cert === undefined || key === undefined ? {} : { 'client.key': () => createSecureContext({ cert, key }) }),
  };
  for (const [name, check] of Object.entries(checks)) {
    try {
      check();
    } catch (cause) {
      throw new TlsFilesUnreadable(join(folder, name), { cause });
    }
  }
}

export function createLocalPorts(sourcePorts: NfsOptions['sourcePorts']): (() => number) | undefined {
  if (sourcePorts === undefined) return undefined;
  return sourcePorts === 'privileged' ? createPrivilegedPorts() : () => sourcePorts;
}
