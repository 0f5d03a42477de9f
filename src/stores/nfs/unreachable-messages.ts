import { DeadlineExceeded } from '#base/clock.ts';
import { errnoOf } from '#base/errno.ts';
import { RpcError } from '#wire/nfs3/index.ts';
import {
  CallsDenied,
  causesOf,
  type HostNotFound,
  type MountServiceUnreachable,
  type TlsFilesUnreadable,
} from './connection-errors.ts';
import type { ErrorContext, Explanation } from './failures.ts';
import { callsDenied } from './refusal-messages.ts';

export const hostNotFound = ({ host }: HostNotFound, { store, network }: ErrorContext): Explanation => ({
  code: 'unavailable',
  reason: 'nfs-host-unknown',
  why: `the host name ${host} does not resolve`,
  action: `Check the name in the store's URI, and the DNS ${network === undefined ? 'of this host' : `in the network ${network}`} (getent hosts ${host}); then: stowage store check ${store}`,
});

/** The system's error code, and the port that it is about. */
function systemError(cause: unknown): { readonly code: string; readonly port: string } | undefined {
  for (const error of causesOf(cause)) {
    const code = errnoOf(error);
    if (code !== undefined) return { code, port: 'port' in error ? `port ${error.port}` : 'that port' };
  }
  return undefined;
}

const noRoute = ({ server, store, network }: ErrorContext): Explanation => ({
  code: 'unavailable',
  reason: 'nfs-no-route',
  why: `there is no route to ${server}${network === undefined ? '' : ` from ${network}`}`,
  action: `${network === undefined ? "Connect this host to the server's network, or set the option network to a network with a route to the server" : `Connect the network ${network} to the server's`}; then: stowage store check ${store}`,
});

const connectionRefused = ({ server, store, network }: ErrorContext, port: string): Explanation => ({
  code: 'unavailable',
  reason: 'nfs-refused',
  why: `nothing listens on ${port} of ${server}${network === undefined ? '' : `, seen from ${network}`}`,
  action: `Have the NFS server started, or correct the port in the store's URI; then: stowage store check ${store}`,
});

const sourcePort = ({ server }: ErrorContext, why: string): Explanation => ({
  code: 'unavailable',
  reason: 'nfs-source-port',
  why: `the source port for ${server} ${why}`,
  action:
    'Use sourceport=privileged, which tries several ports; run Stowage as root or with CAP_NET_BIND_SERVICE; or remove the option.',
});

const explanationByErrno: Readonly<Record<string, (context: ErrorContext, port: string) => Explanation>> = {
  ECONNREFUSED: connectionRefused,
  EHOSTUNREACH: noRoute,
  ENETUNREACH: noRoute,
  EHOSTDOWN: noRoute,
  ENETDOWN: noRoute,
  ETIMEDOUT: (context) => timedOut(context, false),
  EADDRNOTAVAIL: (context) => sourcePort(context, 'is still in use from an earlier connection'),
  EADDRINUSE: (context) => sourcePort(context, 'is in use'),
  EACCES: (context) => sourcePort(context, 'needs permission to bind it (CAP_NET_BIND_SERVICE)'),
};

const timedOut = ({ server, store }: ErrorContext, maybeDone: boolean): Explanation => ({
  code: 'deadline',
  reason: 'nfs-timeout',
  why: `${server} did not answer in time${maybeDone ? '; the operation may have been done, and a retry is safe' : ''}`,
  action: `Try again. If it persists, check the server and the network in between: stowage store check ${store}`,
});

const connectionLost = ({ server, store }: ErrorContext, maybeDone: boolean): Explanation => ({
  code: 'unavailable',
  reason: 'nfs-connection-lost',
  why: `the connection to ${server} was lost${maybeDone ? '; the operation may have been done, and a retry is safe' : ''}`,
  action: `Try again. If it persists, check the server and the network in between: stowage store check ${store}`,
});

export const serverHangsUp = ({ server, store }: ErrorContext, maybeDone: boolean): Explanation => ({
  code: 'unavailable',
  reason: 'nfs-hangs-up',
  why: `${server} closes every connection from this host at once${maybeDone ? '; the operation may have been done, and a retry is safe' : ''}`,
  action: `Have the server's administrator allow this host's address; if a load balancer accepts the connections, have the server behind it started. Then: stowage store check ${store}`,
});

export const garbledReply = ({ server }: ErrorContext): Explanation => ({
  code: 'unavailable',
  reason: 'nfs-garbled',
  why: `the replies of ${server} are not NFS version 3`,
  action: "Check the port in the store's URI, and that the server speaks NFS version 3 over TCP.",
});

const storeClosing: Explanation = {
  code: 'unavailable',
  reason: 'store-closing',
  why: 'the store was closed',
  action: 'Try again in a moment.',
};

const noService = ({ server }: ErrorContext): Explanation => ({
  code: 'unavailable',
  reason: 'nfs-no-service',
  why: `${server} has no NFS version 3 service on that port`,
  action: 'Have NFS version 3 enabled on the server (version 4 alone is not enough), or correct the port.',
});

/** No connection was made in time. */
const isConnectTimeout = (cause: RpcError): boolean => causesOf(cause).some((one) => one instanceof DeadlineExceeded);

export function rpcFailed(cause: RpcError, context: ErrorContext, maybeDone = cause.maybeDone): Explanation {
  switch (cause.failure) {
    case 'unreachable': {
      if (isConnectTimeout(cause)) return timedOut(context, maybeDone);
      const { code = '', port = '' } = systemError(cause) ?? {};
      return explanationByErrno[code]?.(context, port) ?? connectionLost(context, maybeDone);
    }
    case 'lost':
      return connectionLost(context, maybeDone);
    case 'deadline':
    case 'canceled':
      return timedOut(context, maybeDone);
    case 'denied':
      return callsDenied(new CallsDenied(undefined, { cause }), context);
    case 'unsupported':
    case 'no-procedure':
      return noService(context);
    case 'garbled':
      return garbledReply(context);
    case 'tls':
      return tlsFailed(cause, context);
    case 'closed':
      return storeClosing;
    default:
      return cause.failure satisfies never;
  }
}

const noMountService = ({ server, store }: ErrorContext, { port, source }: MountServiceUnreachable): Explanation => ({
  code: 'unavailable',
  reason: 'nfs-no-mount-service',
  why: `${server} speaks NFS, but has no MOUNT service on port ${port}`,
  action: `${source === 'option' ? 'Correct mountport (on the server: rpcinfo -p | grep mountd), or have the MOUNT service started' : source === 'portmapper' ? "The server's portmapper returned that port: have the MOUNT service restarted" : 'No portmapper returned the port of the MOUNT service: set mountport (on the server: rpcinfo -p | grep mountd), or have the portmapper and the MOUNT service started'}; then: stowage store check ${store}`,
});

const mountTimedOut = ({ server, store }: ErrorContext, { port }: MountServiceUnreachable): Explanation => ({
  code: 'deadline',
  reason: 'nfs-mount-timeout',
  why: `${server} speaks NFS, but its MOUNT service did not answer in time on port ${port}`,
  action: `Try again. If it persists, have the firewall opened for that port, or set mountport to the right port (on the server: rpcinfo -p | grep mountd); then: stowage store check ${store}`,
});

export function mountServiceUnreachable(cause: MountServiceUnreachable, context: ErrorContext): Explanation {
  const { cause: inner } = cause;
  if (!(inner instanceof RpcError)) return noMountService(context, cause);
  const code = systemError(inner)?.code;
  const isAbsent = inner.failure === 'unsupported' || inner.failure === 'no-procedure' || inner.failure === 'garbled';
  if (isAbsent || code === 'ECONNREFUSED') return noMountService(context, cause);
  if (inner.failure === 'deadline' || code === 'ETIMEDOUT' || isConnectTimeout(inner))
    return mountTimedOut(context, cause);
  return rpcFailed(inner, context, false);
}

export const tlsFilesUnreadable = ({ path, cause }: TlsFilesUnreadable): Explanation => ({
  code: 'invalid',
  reason: 'nfs-tls-files',
  why: `the file ${path} ${cause === undefined ? 'is missing' : `cannot be used (${errnoOf(cause) ?? 'unknown'})`}`,
  action:
    'The tls folder must contain ca.pem, and also client.pem and client.key if the server requires a client certificate. The files must be in PEM format and readable by Stowage, the key without a passphrase.',
});

export const clientCertificateRejected = ({ server }: ErrorContext): Explanation => ({
  code: 'denied',
  reason: 'nfs-tls-client-certificate',
  why: `${server} closed the encrypted connection: it rejected our client certificate, or requires one`,
  action: 'Put a client certificate that the server trusts into the tls folder, as client.pem and client.key.',
});

/** Node's error codes for an invalid certificate. Those of a failed handshake begin with ERR_SSL. */
const isAboutCertificate = (code: string): boolean =>
  !code.startsWith('ERR_SSL') && /CERT|SIGNATURE|CRL|INVALID_CA|HOSTNAME/.test(code);

// Cuts off the advice on running Node that Node adds after a semicolon.
function tlsFailed(cause: RpcError, { server }: ErrorContext): Explanation {
  const tlsError = causesOf(cause).find((one) => !(one instanceof RpcError));
  if (tlsError === undefined) {
    return {
      code: 'unsupported',
      reason: 'nfs-tls-not-offered',
      why: `${server} does not support encrypted connections`,
      action:
        "Have the server's administrator enable RPC with TLS (RFC 9289); or remove the option tls, which leaves the traffic unencrypted.",
    };
  }
  if (isAboutCertificate(errnoOf(tlsError) ?? '')) {
    return {
      code: 'denied',
      reason: 'nfs-tls-certificate',
      why: `the certificate of ${server} is not trusted: ${tlsError.message.replace(/;.*$/s, '')}`,
      action:
        "Put the certificate of the CA that signed the server's certificate into the tls folder as ca.pem, or use tls=on and add the CA to the system's trust store. The server's certificate must not be expired and must match the host in the store's URI.",
    };
  }
  return {
    code: 'unavailable',
    reason: 'nfs-tls',
    why: `no encrypted connection to ${server} could be made: ${tlsError.message}`,
    action: "Check the server's log and try again. The server must support TLS 1.3.",
  };
}
