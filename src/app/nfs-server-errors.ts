import { errnoOf } from '#base/errno.ts';
import { StowageError } from '#core/errors.ts';

export function noDirectory(path: string, cause: unknown): StowageError {
  const code = errnoOf(cause);
  if (code === 'EACCES') {
    return new StowageError(`the user that runs the server cannot read ${path}`, {
      code: 'denied',
      reason: 'nfs-directory-denied',
      action: 'Correct its owner or mode, or run the server as a user with read permission.',
      cause,
    });
  }
  if (code === 'ENOENT') {
    return new StowageError(`directory ${path} not found`, {
      code: 'not-found',
      reason: 'nfs-directory-missing',
      action: 'Specify an existing directory: stowage nfs serve DIR',
      cause,
    });
  }
  return new StowageError(`${path} is not a directory`, {
    code: 'invalid',
    reason: 'nfs-directory-invalid',
    action: 'Specify an existing directory: stowage nfs serve DIR',
    cause,
  });
}

export function wrongPlatform(): StowageError {
  return new StowageError(`the NFS server requires Linux, not ${process.platform}`, {
    code: 'unsupported',
    reason: 'nfs-platform',
    action: 'Run the server on a Linux host, and add it here as a store: stowage store add NAME nfs://HOST/export',
  });
}

export function wrongPath(path: string): StowageError {
  return new StowageError(`'${path}' is not a valid export path`, {
    code: 'invalid',
    reason: 'nfs-path-invalid',
    action: 'Use an absolute path of at most 1024 bytes without . and .. components: --path /export',
  });
}

export function wrongNetwork(cause: unknown): StowageError {
  return new StowageError(cause instanceof Error ? cause.message : String(cause), {
    code: 'invalid',
    reason: 'nfs-network-invalid',
    action: 'Correct --allow. To allow every address: --allow 0.0.0.0/0 --allow ::/0',
    cause,
  });
}

export function openToAll(host: string): StowageError {
  return new StowageError(`other hosts can reach ${host}, but no option restricts who may connect`, {
    code: 'invalid',
    reason: 'nfs-open-to-all',
    action:
      'NFS clients are trusted to name their users, so allow only trusted networks: --allow 192.168.1.0/24, or require certificates: --tls-ca',
  });
}

export function stateUnusable(path: string, cause: unknown): StowageError {
  return new StowageError(`cannot create or write the state folder ${path}`, {
    code: 'denied',
    reason: 'nfs-state-unusable',
    action: 'Choose another folder: stowage nfs serve DIR --state FOLDER, or correct its owner.',
    cause,
  });
}

export function stateExported(state: string, directory: string): StowageError {
  return new StowageError(
    `the state folder ${state} is inside the exported directory ${directory}: clients could read its secrets`,
    {
      code: 'invalid',
      reason: 'nfs-state-exported',
      action: 'Choose a state folder outside the export: --state FOLDER; or export a subdirectory.',
    },
  );
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
    action: 'Correct the cause. If the state folder is the cause, choose another folder: --state FOLDER',
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
        ? 'rpcbind probably uses the port. Omit --portmapper, and set port and mountport on the clients.'
        : 'Another NFS server may use it. Stop that server, or choose another port: --port 20490, or 0 for any free port.',
      cause,
    });
  }
  if (code === 'EACCES') {
    return new StowageError(`cannot listen on ${where}: only root may use ports below 1024`, {
      code: 'denied',
      reason: 'nfs-port-denied',
      action: isPortmapper
        ? 'Run the server as root, or omit --portmapper and set port and mountport on the clients.'
        : 'Run the server as root, or choose a higher port: --port 2049',
      cause,
    });
  }
  return new StowageError(`cannot listen on ${where}: ${code}`, {
    code: 'invalid',
    reason: 'nfs-listen-failed',
    action: 'Choose an address of this host: --host 127.0.0.1; list the addresses with: ip address',
    cause,
  });
}
