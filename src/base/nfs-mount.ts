/**
 * What a store's options say about every mount of its volumes. Core and the data path both need it, and base is all that both may import.
 * The names of the fields are stored: in sources (`state.db`), and in the descriptions of mounts that keepers hold.
 */
export interface NfsMountOptions {
  /** TCP connections to the server. */
  readonly connections: number;
  /** none: root stays root to the server. root: root becomes uid and gid. all: everybody does. */
  readonly squash: 'none' | 'root' | 'all';
  /** Writes are answered when they are on the server's disk. Undefined: before that. */
  readonly sync?: boolean | undefined;
  /** Bytes in one READ or WRITE, at most. */
  readonly maxRead: number;
  readonly maxWrite: number;
  /** node: `flock` and the like hold between processes of this node. refused: ENOLCK. */
  readonly locks: 'node' | 'refused';
}

/** The mount of one volume. */
export interface NfsMount extends NfsMountOptions {
  readonly port: number;
  /** The server's handle of the volume's top directory, in base64. */
  readonly root: string;
  readonly uid: number;
  readonly gid: number;
  readonly readOnly: boolean;
  /**
   * The group that all files are shown to belong to, where everybody is one user to the server. Undefined: what the server says. A data
   * path that does not know the field shows that, too; permissions are the same.
   */
  readonly group?: number | undefined;
}

export interface NfsQuota {
  readonly bytes: number;
  /** The server's handle, in base64, of the folder in which its nodes record what they use: `.stowage/quota/<volume id>`. */
  readonly ledger: string;
}
