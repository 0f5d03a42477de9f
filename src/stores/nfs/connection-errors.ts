import type { Export, MountStatusName } from '#wire/nfs3/index.ts';

/** None of the server's names has an address. */
export class HostNotFound extends Error {
  readonly host: string;
  constructor(host: string, cause: unknown) {
    super(`no address for ${host}`, { cause });
    this.host = host;
  }
}

/** A TLS file is missing (no cause) or cannot be read. */
export class TlsFilesUnreadable extends Error {
  readonly path: string;
  constructor(path: string, options: ErrorOptions = {}) {
    super(`${path} cannot be read`, options);
    this.path = path;
  }
}

/** The server closes every connection before anything is sent. */
export class ServerHangsUp extends Error {}

/** The server closes the connection because it rejects our certificate or requires one. */
export class ClientCertificateRejected extends Error {}

/** The NFS service answers, but the MOUNT service does not. */
export class MountServiceUnreachable extends Error {
  readonly port: number;
  /** Where the port number comes from. */
  readonly source: PortSource;
  constructor({ port, source }: ServicePort, options: ErrorOptions) {
    super(`no MOUNT service on port ${port}`, options);
    this.port = port;
    this.source = source;
  }
}

/** The port of a service, and where the number comes from. */
export interface ServicePort {
  readonly port: number;
  readonly source: PortSource;
}

type PortSource = 'option' | 'portmapper' | 'guess';

export interface Refusal {
  readonly path: string;
  readonly status: MountStatusName | undefined;
  /** The server's exports, if it lists them. */
  readonly exported: readonly Export[] | undefined;
}

/** The MOUNT service rejected the mount. */
export class ExportRefused extends Error {
  readonly refusal: Refusal;
  constructor(refusal: Refusal, options: ErrorOptions) {
    super(`${refusal.path} cannot be mounted: ${refusal.status ?? 'for an unknown reason'}`, options);
    this.refusal = refusal;
  }
}

/** A requirement of the server that our calls do not meet. Undefined: unknown. */
export type MissingRequirement = 'privileged-port' | 'tls' | undefined;

/** The server denies every call. */
export class CallsDenied extends Error {
  readonly missing: MissingRequirement;
  constructor(missing: MissingRequirement, options: ErrorOptions) {
    super('the server takes no calls from us', options);
    this.missing = missing;
  }
}

/** Undefined: the server does not list its exports. */
export const isListed = ({ path, exported }: Refusal): boolean | undefined =>
  exported?.some((listed) => path === listed.path || path.startsWith(`${listed.path.replace(/\/$/, '')}/`));

/** The chain of causes of an error, the outermost first. */
export function causesOf(thrown: unknown): readonly Error[] {
  if (!(thrown instanceof Error)) return [];
  const inner = thrown instanceof AggregateError ? thrown.errors[0] : thrown.cause;
  return [thrown, ...causesOf(inner)];
}
