/**
 * The options of a store that apply to every mount of its volumes. In base, since core and the data path both need it, and base is all that
 * both may import. The names of the fields are stored: in sources (`state.db`), and in the mount specs that keepers hold.
 */
export interface NfsMountOptions {
  /** TCP connections to the server. */
  readonly connections: number;
  /** none: root accesses the server as root. root: root is mapped to uid and gid. all: all users are mapped to uid and gid. */
  readonly squash: 'none' | 'root' | 'all';
  /** True: the server replies to a write after the data are on its disk. Undefined: it may reply before. */
  readonly sync?: boolean | undefined;
  /** The maximum size of one READ or WRITE, in bytes. */
  readonly maxRead: number;
  readonly maxWrite: number;
  /** node: `flock` and the like work between processes of this node. refused: ENOLCK. */
  readonly locks: 'node' | 'refused';
}

/** The mount of one volume. */
export interface NfsMount extends NfsMountOptions {
  readonly port: number;
  /** The file handle of the volume's top directory, in base64. */
  readonly root: string;
  readonly uid: number;
  readonly gid: number;
  readonly readOnly: boolean;
  /**
   * The group that all files appear to belong to, if all users are a single user on the server. Undefined: the server's group. A data
   * path that does not know the field shows the server's group as well; permissions are the same.
   */
  readonly group?: number | undefined;
}

export interface NfsQuota {
  readonly bytes: number;
  /** The file handle, in base64, of the folder in which each node records its usage: `.stowage/quota/<volume id>`. */
  readonly ledger: string;
}
