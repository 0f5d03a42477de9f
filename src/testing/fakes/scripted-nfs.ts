import type { Connect } from '#stores/nfs/connect.ts';
import { type NfsClient, NfsError, type NfsStatusName, nfsStatus } from '#wire/nfs3/index.ts';
import { connectToDisk } from './nfs-on-disk.ts';

/** An NFS server on a folder of this machine. The test replaces some of its answers. */
export function connectScripted(folder: string, script: (real: NfsClient) => Partial<NfsClient>): Connect {
  const connect = connectToDisk(folder);
  return async (...args) => {
    const session = await connect(...args);
    return { ...session, nfs: { ...session.nfs, ...script(session.nfs) } };
  };
}

/** Fails every call with that status. */
export const refusing = (status: NfsStatusName) => (): Promise<never> =>
  Promise.reject(new NfsError('SCRIPTED', nfsStatus[status], false));
