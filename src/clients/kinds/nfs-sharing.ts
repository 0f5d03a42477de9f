import type { Log } from '#base/log.ts';
import { StowageError } from '#core/errors.ts';
import type { NfsConnection, SourceOf, Volume } from '#core/model.ts';
import type { Client } from '#core/ports.ts';

type NfsSource = SourceOf<'nfs'>;
type VolumeName = Pick<Volume, 'store' | 'name'>;

/** The options that a store decides. The server's address is not among them: it may change by itself, and a mount does not depend on it. */
const sharedOptions = [
  ...(['client', 'network', 'sourcePorts', 'tls', 'connections', 'squash', 'uid', 'gid', 'group'] as const),
  ...(['softMs', 'retries', 'sync', 'maxRead', 'maxWrite', 'locks', 'readOnly'] as const),
] satisfies readonly (keyof NfsConnection)[];

/**
 * All mounts of a volume on a node share the stage and its options, whatever the store's options are now. Throws if the
 * volume's size must be enforced but the stage does not enforce it.
 */
function join(volume: VolumeName, requested: NfsSource, staged: NfsSource, log: Log): NfsSource {
  if (requested.way.quota !== undefined && staged.way.quota === undefined) throw enforcementNeedsUnmount(volume);
  const differing = sharedOptions.filter(
    (name) => JSON.stringify(requested.way[name]) !== JSON.stringify(staged.way[name]),
  );
  if (differing.length > 0)
    log.warn('another mount of the volume uses the options of its first mount on this node', {
      volume: `${volume.store}/${volume.name}`,
      differing,
    });
  return staged;
}

/** A dead mount is replaced with the same options, since its users rely on them, at the server's current address. */
function replace(known: NfsSource, current: NfsSource): NfsSource {
  const { addresses, port, mountPort, root, quota } = current.way;
  return {
    ...known,
    hosts: current.hosts,
    path: current.path,
    way: { ...known.way, addresses, port, mountPort, root, quota },
  };
}

/** What core needs to know about NFS sources. Pure functions. */
export const nfsSources: Required<Pick<Client<'nfs'>, 'sharing' | 'withMountOptions' | 'isSingleUser'>> = {
  sharing: { sharedSource: join, remountSource: replace, groupOf: ({ way }) => way.group },
  /**
   * If all users are a single user on the server, the mount shows its files as the group's, so the group is an option of the mount. Otherwise
   * the files must belong to the group on the store.
   */
  withMountOptions: (source, { group }) =>
    group === undefined ? source : { ...source, way: { ...source.way, group } },
  isSingleUser: ({ way }) => way.squash === 'all',
};

function enforcementNeedsUnmount({ store, name }: VolumeName): StowageError {
  return new StowageError(
    `the size of volume '${store}/${name}' cannot be enforced: it was mounted on this node before its store enforced sizes`,
    {
      code: 'conflict',
      reason: 'enforcement-needs-unmount',
      action: `Unmount it everywhere on this node, then retry. To see where ${store}/${name} is mounted: stowage mounts`,
    },
  );
}
