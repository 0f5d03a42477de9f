import type { ConnectionOptions } from 'node:tls';

/** The client's credentials, and how it verifies the API server. */
export interface Identity {
  /** The whole value of the header. */
  readonly authorization?: string;
  readonly tls: Pick<ConnectionOptions, 'ca' | 'cert' | 'key' | 'servername' | 'rejectUnauthorized'>;
}

/** How to reach one API server. */
export interface KubeAccess {
  readonly server: URL;
  /** The default namespace. */
  readonly namespace: string;
  /**
   * Called before every request. Returns the same object while the identity does not change. `refused`: an identity that the API
   * server just rejected; returns a newer identity if there is one.
   */
  identity(signal: AbortSignal, refused?: Identity): Promise<Identity>;
}
