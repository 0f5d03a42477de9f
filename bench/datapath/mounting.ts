/** A mounted folder of the server. Disposing of it unmounts it. */
export interface Mounted extends AsyncDisposable {
  readonly at: string;
}

export interface MountOptions {
  /** Names and attributes are cached as by default. */
  readonly isCaching: boolean;
}

/** Mounts an exported folder. Each call makes a mount with cold caches. */
export interface Mounter {
  mount(folder: string, options: MountOptions): Promise<Mounted>;
}
