import { type CallsDenied, isListed, type Refusal } from './connection-errors.ts';
import type { ErrorContext, Explanation } from './failures.ts';

const maxShownExports = 10;

function exportList({ exported }: Refusal): string {
  if (exported === undefined || exported.length === 0) return '';
  const shown = exported.slice(0, maxShownExports).map(({ path }) => path);
  return `; it exports ${shown.join(', ')}${exported.length > maxShownExports ? ' and others' : ''}`;
}

/**
 * The MOUNT service rejected the mount. Some servers answer "no access" for a path that does not exist, and some hide exports that this
 * host may not mount. So if the export is not listed, it may be either.
 */
export function exportRefused(refusal: Refusal, { server, store, privileged }: ErrorContext): Explanation {
  const { path, status } = refusal;
  if (status === 'ACCES' && isListed(refusal) === false) {
    return {
      code: 'unavailable',
      reason: 'nfs-export-withheld',
      why: `${server} denies access to ${path} and does not list it: it is not exported, or not to this host${exportList(refusal)}`,
      action: `Correct the path in the store's URI, or have the server's administrator export it to this host (exportfs -v shows what is exported to whom); then: stowage store check ${store}`,
    };
  }
  if (status === 'NOENT' || status === 'NOTDIR') {
    return {
      code: 'unavailable',
      reason: 'nfs-export-unknown',
      why: `${server} has no directory ${path} to mount${exportList(refusal)}`,
      action: `Correct the path in the store's URI, or have the server's administrator export it (exportfs -v shows what is); then: stowage store check ${store}`,
    };
  }
  if (status === 'ACCES' || status === 'PERM') {
    return {
      code: 'denied',
      reason: 'nfs-export-denied',
      why: `${server} does not let this host mount ${path}`,
      action: `Have the server's administrator allow this host to mount ${path} (/etc/exports on Linux)${privileged ? '' : '; if it is allowed already, the server may require a privileged port: sourceport=privileged'}.`,
    };
  }
  return {
    code: 'unavailable',
    reason: 'nfs-mount-refused',
    why: `the MOUNT service of ${server} answered ${status ?? 'with an unknown status'} for ${path}`,
    action: "Check the server's log, and try again when the server is healthy.",
  };
}

/** The server denies every call. `missing` is what it requires, if that could be found out. */
export function callsDenied({ missing }: CallsDenied, { server, privileged, tls }: ErrorContext): Explanation {
  if (missing === 'privileged-port') {
    return {
      code: 'denied',
      reason: 'nfs-privileged-port',
      why: `${server} accepts calls only from privileged ports, those below 1024`,
      action:
        "Set sourceport=privileged (Stowage then needs root or CAP_NET_BIND_SERVICE); or have the server's administrator export it with the option insecure.",
    };
  }
  if (missing === 'tls') {
    return {
      code: 'denied',
      reason: 'nfs-tls-required',
      why: `${server} accepts calls only over encrypted connections`,
      action:
        "Set tls=on; or tls=FOLDER with the CA of the server's certificate as ca.pem, and client.pem and client.key if the server requires a client certificate.",
    };
  }
  return {
    code: 'denied',
    reason: 'nfs-credential-denied',
    why: `${server} rejects our credentials`,
    action: [
      "Ask the server's administrator whether the export accepts AUTH_SYS (sec=sys) from this host.",
      ...(tls ? [] : ['If it requires encrypted connections, set the option tls.']),
      ...(privileged ? [] : ['If it requires a privileged port, set sourceport=privileged.']),
    ].join(' '),
  };
}

function permission({ location, uid }: ErrorContext): Explanation {
  if (uid !== 0) {
    return {
      code: 'denied',
      reason: 'store-permission',
      why: `permission denied in ${location} for user ${uid}`,
      action: `On the server, make user ${uid} the owner of the directory (chown ${uid} …), or map all users to it (all_squash); or set another uid in the store's options.`,
    };
  }
  return {
    code: 'denied',
    reason: 'nfs-root-squash',
    why: `the server denies root access to ${location}: it seems to map root to nobody (root_squash)`,
    action:
      "Set squash=root with the uid and gid that own the directory on the server; or have the server's administrator export it with no_root_squash.",
  };
}

/** Explanations of the server's errors, by errno. */
export const errnoExplanations: Readonly<Record<string, (context: ErrorContext) => Explanation>> = {
  EACCES: permission,
  EPERM: permission,
  EROFS: ({ location }) => ({
    code: 'denied',
    reason: 'nfs-read-only',
    why: `${location} is read-only: the export, or its file system on the server`,
    action: "Have the server's administrator export it read-write (rw), or set readOnly=true on the store.",
  }),
  ENOSPC: ({ location }) => ({
    code: 'exhausted',
    reason: 'store-full',
    why: `no space left on the server's disk of ${location}`,
    action: "Delete volumes or files that are no longer needed, or have the server's administrator add space.",
  }),
  EDQUOT: ({ location }) => ({
    code: 'exhausted',
    reason: 'store-quota',
    why: `the quota on the server for ${location} is used up`,
    action: "Have the server's administrator raise it, or delete volumes that are no longer needed.",
  }),
  ESTALE: ({ location, store }) => ({
    code: 'unavailable',
    reason: 'nfs-stale',
    why: `the server no longer knows ${location}: the directory was replaced, or the export changed`,
    action: `Have the server's administrator put the original directory back, or export it again; then: stowage store check ${store}`,
  }),
  ENOENT: ({ location, store }) => ({
    code: 'unavailable',
    reason: 'store-damaged',
    why: `another program removed ${location}, or a part of it`,
    action: `Restart Stowage, which recreates missing parts of .stowage, or run: stowage store check ${store}`,
  }),
  EIO: ({ location }) => ({
    code: 'unavailable',
    reason: 'store-io-error',
    why: `the server returned an input/output error for ${location}`,
    action: "Check the server's log and disk, and try again when the server is healthy.",
  }),
  EAGAIN: ({ location }) => ({
    code: 'unavailable',
    reason: 'nfs-later',
    why: `the server needs more time for ${location}`,
    action: 'Try again later.',
  }),
  ENOTSUP: ({ location }) => ({
    code: 'unsupported',
    reason: 'nfs-not-supported',
    why: `the server does not support this operation in ${location}`,
    action: 'Use a server that supports it, or a store of another kind.',
  }),
  EXDEV: ({ location }) => ({
    code: 'unsupported',
    reason: 'store-cannot-move',
    why: `the server cannot move data within ${location}: another file system is mounted inside it`,
    action: 'Put the store on one file system.',
  }),
};
