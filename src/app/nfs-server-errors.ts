import { errnoOf } from '#base/errno.ts';
import { StowageError } from '#core/errors.ts';

export function noDirectory(path: string, cause: unknown): StowageError {
  const code = errnoOf(cause);
  if (code === 'EACCES') {
    return new StowageError(`the user that runs the server cannot read ${path}`, {
      code: 'denied',
      reason: 'nfs-directory-denied',
      action: 'Correct its owner or mode, or run the server as a user that may read it.',
      cause,
    });
  }
  if (code === 'ENOENT') {
    return new StowageError(`there is no directory ${path}`, {
      code: 'not-found',
      reason: 'nfs-directory-missing',
      action: 'Name a directory that exists: stowage nfs serve DIR',
      cause,
    });
  }
  return new StowageError(`${path} is not a directory`, {
    code: 'invalid',
    reason: 'nfs-directory-invalid',
    action: 'Name a directory that exists: stowage nfs serve DIR',
    cause,
  });
}

export function wrongPlatform(): StowageError {
  return new StowageError(`this is ${process.platform}, and the NFS server needs Linux`, {
    code: 'unsupported',
    reason: 'nfs-platform',
    action: 'Run it on a Linux machine; from here, use it as a store: stowage store add NAME nfs://HOST/export',
  });
}

export function wrongPath(path: string): StowageError {
  return new StowageError(`'${path}' cannot be the name of the export`, {
    code: 'invalid',
    reason: 'nfs-path-invalid',
    action: 'Write it as a path of at most 1024 bytes, without . and .. in it: --path /export',
  });
}

export function wrongNetwork(cause: unknown): StowageError {
  return new StowageError(cause instanceof Error ? cause.message : String(cause), {
    code: 'invalid',
    reason: 'nfs-network-invalid',
    action: 'Correct --allow; it can be repeated. To allow every address: --allow 0.0.0.0/0 --allow ::/0',
    cause,
  });
}

export function openToAll(host: string): StowageError {
  return new StowageError(`other machines can reach ${host}, and no option says which of them may connect`, {
    code: 'invalid',
    reason: 'nfs-open-to-all',
    action:
      'NFS callers name their users themselves, so allow only networks that you trust: --allow 192.168.1.0/24, or require certificates: --tls-ca',
  });
}

export function stateUnusable(path: string, cause: unknown): StowageError {
  return new StowageError(`the state folder ${path} cannot be created or written`, {
    code: 'denied',
    reason: 'nfs-state-unusable',
    action: 'Give another: stowage nfs serve DIR --state FOLDER, or correct its owner.',
    cause,
  });
}

export function stateExported(state: string, directory: string): StowageError {
  return new StowageError(`the state folder ${state} lies in ${directory}: clients could read its secrets`, {
    code: 'invalid',
    reason: 'nfs-state-exported',
    action: 'Keep the state elsewhere: --state FOLDER; or export a smaller directory.',
  });
}

interface Listening {
  readonly host: string;
  readonly port: number;
  readonly portmapper: number | undefined;
}

/** Errors at the start of a server whose options are valid. */
export function cannotStart(cause: unknown, at: Listening): StowageError {
  const isListening = cause instanceof Error && 'syscall' in cause && cause.syscall === 'listen';
  const isLookup = cause instanceof Error && 'syscall' in cause && String(cause.syscall).startsWith('getaddrinfo');
  if (isListening || isLookup) return cannotListen(cause, at);
  const why = cause instanceof Error ? cause.message : String(cause);
  return new StowageError(`the NFS server cannot start: ${why}`, {
    code: 'invalid',
    reason: 'nfs-server-failed',
    action: 'Correct the cause. If it is the state folder, choose another one: --state FOLDER',
    cause,
  });
}

function cannotListen(cause: Error, { host, port, portmapper }: Listening): StowageError {
  const code = errnoOf(cause) ?? '';
  const failed = 'port' in cause && cause.port === portmapper && portmapper !== port ? portmapper : port;
  const where = `${host.includes(':') ? `[${host}]` : host}:${failed}`;
  const isPortmapper = failed !== port;
  if (code === 'EADDRINUSE') {
    return new StowageError(`cannot listen on ${where}: the port is in use`, {
      code: 'conflict',
      reason: 'nfs-port-in-use',
      action: isPortmapper
        ? 'rpcbind probably uses it. Leave out --portmapper, and give clients port and mountport.'
        : 'Another NFS server may use it. Stop that server, or choose another port: --port 20490, or 0 for any free port.',
      cause,
    });
  }
  if (code === 'EACCES') {
    return new StowageError(`cannot listen on ${where}: only root may use ports below 1024`, {
      code: 'denied',
      reason: 'nfs-port-denied',
      action: isPortmapper
        ? 'Run it as root, or leave --portmapper out and give clients port and mountport.'
        : 'Run it as root, or choose a higher one: --port 2049',
      cause,
    });
  }
  return new StowageError(`cannot listen on ${where}: ${code}`, {
    code: 'invalid',
    reason: 'nfs-listen-failed',
    action: 'Choose an address of this machine: --host 127.0.0.1; see them with: ip address',
    cause,
  });
}
