import { StowageError } from '#core/errors.ts';
import type { Client } from '#core/ports.ts';

/** Says so, until the data path is there: nothing is ever mounted by a client with weaker promises. */
export function createNfsClient(): Client<'nfs'> {
  return {
    kind: 'nfs',
    stage: async ({ hosts, path }) => {
      const [host = ''] = hosts;
      throw new StowageError(`volumes of an NFS store cannot be mounted by this version of Stowage`, {
        code: 'unsupported',
        reason: 'client-missing',
        action: `Mount ${host.includes(':') ? `[${host}]` : host}:${path} where you need it with that system's own NFS client; Stowage creates, lists and deletes the volume.`,
      });
    },
    unstage: async () => undefined,
    grow: async () => undefined,
  };
}
