/** A folder of the server, mounted. Disposed of: unmounted. */
export interface Mounted extends AsyncDisposable {
  readonly at: string;
}

export interface MountOptions {
  /** Names and attributes are relied on for a while, as is usual. */
  readonly isCaching: boolean;
}

/** One way to mount a folder that is exported. Each call makes a mount that knows nothing yet. */
export interface Mounter {
  mount(folder: string, options: MountOptions): Promise<Mounted>;
}
