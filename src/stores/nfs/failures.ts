import type { ErrorCode } from '#core/errors.ts';
import { StowageError, stowageError } from '#core/errors.ts';
import { type Export, type MountStatusName, RpcError } from '#wire/nfs3/index.ts';
import { errno } from '../shelf/files.ts';

export class HostUnknown extends Error {
  readonly host: string;
  constructor(host: string, cause: unknown) {
    super(`no address for ${host}`, { cause });
    this.host = host;
  }
}

export class TlsFilesUnreadable extends Error {
  readonly path: string;
  constructor(path: string, cause: unknown) {
    super(`${path} cannot be read`, { cause });
    this.path = path;
  }
}

interface Refusal {
  readonly path: string;
  readonly status: MountStatusName | undefined;
  /** What the server says it exports, where it tells. */
  readonly exported: readonly Export[] | undefined;
}

/** The MOUNT service said no. */
export class ExportRefused extends Error {
  readonly refusal: Refusal;
  constructor(refusal: Refusal, about: ErrorOptions) {
    super(`${refusal.path} cannot be mounted: ${refusal.status ?? 'for an unknown reason'}`, about);
    this.refusal = refusal;
  }
}

type About = { readonly code: ErrorCode; readonly reason: string; readonly why: string; readonly action: string };

/** What the messages are about. */
export interface Blamed {
  readonly store: string;
  /** `server:/export` */
  readonly place: string;
  readonly server: string;
  /** As whom we speak to the server. */
  readonly uid: number;
  readonly privileged: boolean;
  readonly hasMountPort: boolean;
  readonly tls: boolean;
}

/** What was thrown, for people. Network trouble is 'unavailable' or 'deadline', trouble with permission is 'denied'. */
export function nfsFailure(cause: unknown, doing: string, about: Blamed): StowageError {
  if (cause instanceof StowageError) return cause;
  const found = explain(cause, about);
  if (found === undefined) return stowageError(cause);
  const { why, ...rest } = found;
  return new StowageError(`${doing} failed: ${why}`, { ...rest, cause });
}

function explain(cause: unknown, about: Blamed): About | undefined {
  if (cause instanceof HostUnknown) return hostUnknown(cause, about);
  if (cause instanceof TlsFilesUnreadable) return tlsFiles(cause);
  if (cause instanceof ExportRefused) return exportRefused(cause.refusal, about);
  if (cause instanceof RpcError) return unanswered(cause, about);
  const code = errno(cause);
  return code === undefined ? undefined : refusals[code]?.(about);
}

const hostUnknown = ({ host }: HostUnknown, { store }: Blamed): About => ({
  code: 'unavailable',
  reason: 'nfs-host-unknown',
  why: `no address is known for ${host}`,
  action: `Check the name in the store's URI, and the DNS of this host (getent hosts ${host}); then: stowage store check ${store}`,
});

const tlsFiles = ({ path, cause }: TlsFilesUnreadable): About => ({
  code: 'invalid',
  reason: 'nfs-tls-files',
  why: `the file ${path} ${cause === undefined ? 'is missing' : `cannot be read (${errno(cause) ?? String(cause)})`}`,
  action:
    'The folder given as tls needs ca.pem; and client.pem with client.key where the server wants a certificate. Check that Stowage may read them.',
});

function exportRefused({ path, status, exported }: Refusal, { server, privileged, uid }: Blamed): About {
  const isListed = exported?.some((one) => path === one.path || path.startsWith(`${one.path.replace(/\/$/, '')}/`));
  const offers =
    exported === undefined || exported.length === 0
      ? ''
      : ` It exports: ${exported
          .slice(0, 10)
          .map((one) => one.path)
          .join(', ')}.`;
  const isUnknown = status === 'NOENT' || status === 'NOTDIR' || (status === 'ACCES' && isListed === false);
  if (isUnknown) {
    return {
      code: 'not-found',
      reason: 'nfs-export-unknown',
      why: `${server} has no directory ${path} to mount.${offers}`,
      action:
        "Correct the path in the store's URI, or have the server's administrator export it (exportfs -v shows what is).",
    };
  }
  if (status === 'ACCES' || status === 'PERM') {
    return {
      code: 'denied',
      reason: 'nfs-export-denied',
      why: `${server} does not let this host mount ${path}`,
      action: `Have the server's administrator add this host to the export of ${path}${privileged || uid !== 0 ? '' : '; if it is in the list already, the server may want a privileged source port: sourceport=privileged'}.`,
    };
  }
  return {
    code: 'unavailable',
    reason: 'nfs-mount-refused',
    why: `the MOUNT service of ${server} answered ${status ?? 'with an unknown status'} for ${path}`,
    action: "Look at the server's log; try again when it is healthy.",
  };
}

const systemCode = (cause: RpcError): string | undefined =>
  errno(cause) ??
  errno(cause.cause) ??
  (cause.cause instanceof AggregateError ? errno(cause.cause.errors[0]) : undefined);

const unreachables: Readonly<Record<string, (about: Blamed) => About>> = {
  ECONNREFUSED: ({ server, store, hasMountPort }) => ({
    code: 'unavailable',
    reason: 'nfs-refused',
    why: `nothing listens on that port of ${server}`,
    action: `Start the NFS server there, or give the right port${hasMountPort ? ' and mountport' : ''} in the store's URI; then: stowage store check ${store}`,
  }),
  EHOSTUNREACH: (about) => noRoute(about),
  ENETUNREACH: (about) => noRoute(about),
  EADDRNOTAVAIL: (about) => sourcePort(about, 'is still in use from an earlier connection'),
  EADDRINUSE: (about) => sourcePort(about, 'is in use'),
  EACCES: (about) => sourcePort(about, 'needs the right to bind it (CAP_NET_BIND_SERVICE)'),
};

const noRoute = ({ server, store }: Blamed): About => ({
  code: 'unavailable',
  reason: 'nfs-no-route',
  why: `there is no route to ${server}`,
  action: `Connect this host to the server's network, or name the network that leads there (option network); then: stowage store check ${store}`,
});

const sourcePort = ({ server }: Blamed, why: string): About => ({
  code: 'unavailable',
  reason: 'nfs-source-port',
  why: `the source port for ${server} ${why}`,
  action:
    'Use sourceport=privileged, which tries several; run Stowage as root or with CAP_NET_BIND_SERVICE; or leave the option out.',
});

function unanswered(cause: RpcError, about: Blamed): About | undefined {
  const { server, store } = about;
  const timedOut: About = {
    code: 'deadline',
    reason: 'nfs-timeout',
    why: `${server} did not answer in time${cause.maybeDone ? '; whether it was done is not known, and repeating it is safe' : ''}`,
    action: `Try again. If it persists, look at the server and the network between: stowage store check ${store}`,
  };
  switch (cause.failure) {
    case 'unreachable': {
      const known = unreachables[systemCode(cause) ?? ''];
      return known?.(about) ?? (systemCode(cause) === 'ETIMEDOUT' ? timedOut : connectionLost(about, cause));
    }
    case 'lost':
      return connectionLost(about, cause);
    case 'deadline':
    case 'canceled':
      return timedOut;
    case 'denied':
      return denied(about);
    case 'unsupported':
    case 'no-procedure':
      return noService(about, cause);
    case 'garbled':
      return {
        code: 'unavailable',
        reason: 'nfs-garbled',
        why: `what ${server} answers is not NFS version 3`,
        action: 'Check the port, and that the server speaks NFS version 3 over TCP.',
      };
    case 'tls':
      return noTls(about, cause);
    case 'closed':
      return {
        code: 'unavailable',
        reason: 'store-closing',
        why: 'the store was closed',
        action: 'Try again in a moment.',
      };
    default:
      return cause.failure satisfies never;
  }
}

const connectionLost = ({ server, store }: Blamed, cause: RpcError): About => ({
  code: 'unavailable',
  reason: 'nfs-connection-lost',
  why: `the connection to ${server} could not be kept${cause.maybeDone ? '; whether it was done is not known, and repeating it is safe' : ''}`,
  action: `Try again. If it persists, look at the server and the network between: stowage store check ${store}`,
});

const denied = ({ server, privileged, tls }: Blamed): About => ({
  code: 'denied',
  reason: tls ? 'nfs-credential-denied' : 'nfs-credential-or-tls',
  why: `${server} does not accept who we say we are`,
  action: [
    "Ask the server's administrator whether the export takes AUTH_SYS (sec=sys).",
    ...(tls ? [] : ['If it wants encrypted connections: option tls.']),
    ...(privileged ? [] : ['If it wants a privileged source port: sourceport=privileged.']),
  ].join(' '),
});

const noService = ({ server }: Blamed, cause: RpcError): About => {
  const isMount = /^(?:MNT|EXPORT)/.test(cause.message);
  return {
    code: 'unavailable',
    reason: isMount ? 'nfs-no-mount-service' : 'nfs-no-service',
    why: `${server} has no ${isMount ? 'MOUNT' : 'NFS version 3'} service there`,
    action: isMount
      ? 'Give the port of the MOUNT service as mountport (on the server: rpcinfo -p | grep mountd), or start it.'
      : 'Have NFS version 3 enabled on the server (version 4 alone is not enough), or give the right port.',
  };
};

const noTls = ({ server }: Blamed, cause: RpcError): About => ({
  code: 'denied',
  reason: 'nfs-tls',
  why: `no encrypted connection to ${server}: ${cause.cause instanceof Error ? cause.cause.message : cause.message}`,
  action:
    'Check that the server offers RPC with TLS, that its certificate is for this name or address and signed by ca.pem, and that it trusts ours; or leave the option tls out.',
});

const refusals: Readonly<Record<string, (about: Blamed) => About>> = {
  EACCES: (about) => permission(about),
  EPERM: (about) => permission(about),
  EROFS: ({ place }) => ({
    code: 'denied',
    reason: 'nfs-read-only',
    why: `${place} is exported, or mounted on the server, read-only`,
    action: "Have the server's administrator export it for writing (rw), or give the store the option readOnly=true.",
  }),
  ENOSPC: ({ place }) => ({
    code: 'exhausted',
    reason: 'store-full',
    why: `no room is left on the server's disk of ${place}`,
    action: 'Delete volumes or files that are no longer needed, or have the server given more room.',
  }),
  EDQUOT: ({ place }) => ({
    code: 'exhausted',
    reason: 'store-quota',
    why: `the quota on the server for ${place} is used up`,
    action: "Have the server's administrator raise it, or delete volumes that are no longer needed.",
  }),
  ESTALE: ({ place, store }) => ({
    code: 'unavailable',
    reason: 'nfs-stale',
    why: `the server no longer knows ${place}: the directory was replaced, or the export changed`,
    action: `Put the original directory back, or export it again; then: stowage store check ${store}`,
  }),
  ENOENT: ({ place, store }) => ({
    code: 'unavailable',
    reason: 'store-damaged',
    why: `something removed a part of ${place} underneath Stowage`,
    action: `Restart Stowage, which puts .stowage in order again, or look with: stowage store check ${store}`,
  }),
  EIO: ({ place }) => ({
    code: 'unavailable',
    reason: 'store-io-error',
    why: `the server gave an input/output error for ${place}`,
    action: "Look at the server's log and disk; try again when it is healthy.",
  }),
  EAGAIN: ({ place }) => ({
    code: 'unavailable',
    reason: 'nfs-later',
    why: `the server needs more time for ${place}`,
    action: 'Try again in a while.',
  }),
  ENOTSUP: ({ place }) => ({
    code: 'unsupported',
    reason: 'nfs-not-supported',
    why: `the server cannot do that in ${place}`,
    action: 'Use a server that can, or a store of another kind.',
  }),
  EXDEV: ({ place }) => ({
    code: 'unsupported',
    reason: 'store-cannot-move',
    why: `the server does not move data within ${place}, as another file system is mounted inside it`,
    action: 'Have the store on one file system.',
  }),
};

function permission({ place, uid, privileged }: Blamed): About {
  if (uid !== 0) {
    return {
      code: 'denied',
      reason: 'store-permission',
      why: `user ${uid} may not do that in ${place}`,
      action: `On the server, give that user the directory (chown ${uid} …); or have another uid in the store's options.`,
    };
  }
  return {
    code: 'denied',
    reason: 'nfs-root-squash',
    why: `the server does not let root do that in ${place}: it maps root to nobody (root_squash)${privileged ? '' : ', or wants a privileged source port'}`,
    action:
      'Give the store squash=root with the uid and gid that own the directory on the server; or have it exported with no_root_squash' +
      (privileged ? '.' : '; or try sourceport=privileged.'),
  };
}
