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
  action: `${network === undefined ? "Connect this host to the server's network, or name the network that leads there (option network)" : `Connect the network ${network} to the server's`}; then: stowage store check ${store}`,
});

const connectionRefused = ({ server, store, network }: ErrorContext, port: string): Explanation => ({
  code: 'unavailable',
  reason: 'nfs-refused',
  why: `nothing listens on ${port} of ${server}${network === undefined ? '' : `, seen from ${network}`}`,
  action: `Have the NFS server started there, or give the right port in the store's URI; then: stowage store check ${store}`,
});

const sourcePort = ({ server }: ErrorContext, why: string): Explanation => ({
  code: 'unavailable',
  reason: 'nfs-source-port',
  why: `the source port for ${server} ${why}`,
  action:
    'Use sourceport=privileged, which tries several; run Stowage as root or with CAP_NET_BIND_SERVICE; or leave the option out.',
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
  action: `Try again. If it persists, look at the server and the network between: stowage store check ${store}`,
});

const connectionLost = ({ server, store }: ErrorContext, maybeDone: boolean): Explanation => ({
  code: 'unavailable',
  reason: 'nfs-connection-lost',
  why: `the connection to ${server} was lost${maybeDone ? '; the operation may have been done, and a retry is safe' : ''}`,
  action: `Try again. If it persists, look at the server and the network between: stowage store check ${store}`,
});

export const serverHangsUp = ({ server, store }: ErrorContext, maybeDone: boolean): Explanation => ({
  code: 'unavailable',
  reason: 'nfs-hangs-up',
  why: `${server} accepts connections from this host and closes them at once${maybeDone ? '; the operation may have been done, and a retry is safe' : ''}`,
  action: `Have the server's administrator add this host to the addresses it allows; if a load balancer answers there, have the server behind it started. Then: stowage store check ${store}`,
});

export const garbledReply = ({ server }: ErrorContext): Explanation => ({
  code: 'unavailable',
  reason: 'nfs-garbled',
  why: `the answers of ${server} are not NFS version 3`,
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
  action: 'Have NFS version 3 enabled on the server (version 4 alone is not enough), or give the right port.',
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
  action: `${source === 'option' ? 'Correct mountport (on the server: rpcinfo -p | grep mountd), or have the service started there' : source === 'portmapper' ? "The server's portmapper names that port: have the MOUNT service started again" : 'No portmapper reported its port: set mountport (on the server: rpcinfo -p | grep mountd), or have the portmapper and the MOUNT service started'}; then: stowage store check ${store}`,
});

const mountTimedOut = ({ server, store }: ErrorContext, { port }: MountServiceUnreachable): Explanation => ({
  code: 'deadline',
  reason: 'nfs-mount-timeout',
  why: `${server} speaks NFS, but its MOUNT service did not answer in time on port ${port}`,
  action: `Try again. If it persists, have the firewall in between opened for that port, or set the right one as mountport (on the server: rpcinfo -p | grep mountd); then: stowage store check ${store}`,
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
    'The folder given as tls needs ca.pem; and client.pem with client.key where the server wants a certificate. All in PEM format, the key without a passphrase, and readable by Stowage.',
});

export const clientCertificateRejected = ({ server }: ErrorContext): Explanation => ({
  code: 'denied',
  reason: 'nfs-tls-client-certificate',
  why: `${server} closes the encrypted connection because it rejects our certificate, or because we have none`,
  action:
    "Put a certificate that the server's administrator signed, or had signed, as client.pem with its client.key into the folder given as tls.",
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
      why: `${server} offers no encrypted connections`,
      action:
        "Have the server's administrator switch on RPC with TLS (RFC 9289); or leave out the option tls: then anyone on the network path can read and change the traffic.",
    };
  }
  if (isAboutCertificate(errnoOf(tlsError) ?? '')) {
    return {
      code: 'denied',
      reason: 'nfs-tls-certificate',
      why: `the certificate of ${server} is not trusted: ${tlsError.message.replace(/;.*$/s, '')}`,
      action:
        "Put the certificate of the CA that signed the server's certificate as ca.pem into the folder given as tls (or among those the system trusts, with tls=on); the server's must be for the name or address in the store's URI, and not expired.",
    };
  }
  return {
    code: 'unavailable',
    reason: 'nfs-tls',
    why: `no encrypted connection to ${server} could be made: ${tlsError.message}`,
    action: "Look at the server's log; try again. The server must offer TLS version 1.3.",
  };
}
