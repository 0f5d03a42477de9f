import type { ConnectionOptions } from 'node:tls';

/** Who we are to the API server, and how we know that it is the one. */
export interface Identity {
  /** The header's whole value. */
  readonly authorization?: string;
  readonly tls: Pick<ConnectionOptions, 'ca' | 'cert' | 'key' | 'servername' | 'rejectUnauthorized'>;
}

/** The way to one API server. */
export interface KubeAccess {
  readonly server: URL;
  /** Where its user is at home. */
  readonly namespace: string;
  /**
   * Asked before every call; the same object as long as it is the same identity. With one that was just refused: another, if
   * there is a newer one by now.
   */
  identity(signal: AbortSignal, refused?: Identity): Promise<Identity>;
}
