/** A mounted folder of the server. Disposing of it unmounts it. */
export interface Mounted extends AsyncDisposable {
  readonly at: string;
}

export interface MountOptions {
  /** Names and attributes are cached for the usual time. */
  readonly isCaching: boolean;
}

/** A way to mount an exported folder. Each call makes a mount with cold caches. */
export interface Mounter {
  mount(folder: string, options: MountOptions): Promise<Mounted>;
}
