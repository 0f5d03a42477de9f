import type { Export, MountStatusName } from '#wire/nfs3/index.ts';

/** None of the names has an address. */
export class HostNotFound extends Error {
  readonly host: string;
  constructor(host: string, cause: unknown) {
    super(`no address for ${host}`, { cause });
    this.host = host;
  }
}

/** Without a cause: it is missing. */
export class TlsFilesUnreadable extends Error {
  readonly path: string;
  constructor(path: string, about: ErrorOptions = {}) {
    super(`${path} cannot be read`, about);
    this.path = path;
  }
}

/** The server ends every connection before a word is said. */
export class ServerHangsUp extends Error {}

/** The same, once it has seen that we have no certificate, or which. */
export class ClientCertificateRejected extends Error {}

/** The NFS service is there, the MOUNT service is not. */
export class MountServiceUnreachable extends Error {
  readonly port: number;
  /** How we came to ask there. */
  readonly source: PortSource;
  constructor({ port, by }: ServicePort, about: ErrorOptions) {
    super(`no MOUNT service on port ${port}`, about);
    this.port = port;
    this.source = by;
  }
}

/** Where a service is, and who says so. */
export interface ServicePort {
  readonly port: number;
  readonly by: PortSource;
}

type PortSource = 'option' | 'portmapper' | 'guess';

export interface Refusal {
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

/** What we lack in the eyes of a server, as far as it could be found out. */
export type MissingRequirement = 'privileged-port' | 'tls' | undefined;

/** The server turns every call away, whatever it asks for. */
export class CallsDenied extends Error {
  readonly missing: MissingRequirement;
  constructor(wanted: MissingRequirement, about: ErrorOptions) {
    super('the server takes no calls from us', about);
    this.missing = wanted;
  }
}

/** Undefined: the server does not tell what it exports. */
export const isListed = ({ path, exported }: Refusal): boolean | undefined =>
  exported?.some((one) => path === one.path || path.startsWith(`${one.path.replace(/\/$/, '')}/`));

/** Whoever passes an error on may put another around it. The outermost first. */
export function causesOf(thrown: unknown): readonly Error[] {
  if (!(thrown instanceof Error)) return [];
  const of = thrown instanceof AggregateError ? thrown.errors[0] : thrown.cause;
  return [thrown, ...causesOf(of)];
}
