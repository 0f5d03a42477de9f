import { StowageError } from '#core/errors.ts';
import type { Client } from '#core/ports.ts';

/** Says so, until the data path is there: nothing is ever mounted by a client with weaker promises. */
export function createNfsClient(): Client<'nfs'> {
  const refuse: NonNullable<Client<'nfs'>['refuse']> = ({ hosts, path, options }) => {
    const [host = ''] = hosts;
    const ports = ['port', 'mountport'].flatMap((key) =>
      options[key] === undefined ? [] : [`${key}=${options[key]}`],
    );
    throw new StowageError(`volumes of an NFS store cannot be mounted by this version of Stowage`, {
      code: 'unsupported',
      reason: 'client-missing',
      action: `Use the system's own NFS client: mount -t nfs -o ${['vers=3', 'nolock', ...ports].join(',')} ${host.includes(':') ? `[${host}]` : host}:${path} DIRECTORY`,
    });
  };
  return {
    kind: 'nfs',
    refuse,
    stage: async (source) => refuse(source),
    unstage: async () => undefined,
    grow: async () => undefined,
  };
}
