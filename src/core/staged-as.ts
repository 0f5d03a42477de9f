import type { Log } from '#base/log.ts';
import { StowageError } from './errors.ts';
import type { NfsWay, Source, Volume } from './model.ts';

/** What a store's options decide. Where the server is reached may change by itself, and says nothing about a mount. */
const options = [
  ...(['client', 'network', 'sourcePorts', 'tls', 'connections', 'squash', 'uid', 'gid', 'group'] as const),
  ...(['softMs', 'retries', 'sync', 'maxRead', 'maxWrite', 'locks', 'readOnly'] as const),
] satisfies readonly (keyof NfsWay)[];

/**
 * How one more mount of a volume is made that is mounted on this node already: they share what is staged, whatever the
 * store's options say by now. Throws where that would break a promise.
 */
export function stagedAs(volume: Volume, wanted: Source, staged: Source, log: Log): Source {
  if (wanted.kind !== 'nfs' || staged.kind !== 'nfs') return wanted;
  if (wanted.way.quota !== undefined && staged.way.quota === undefined) throw unenforced(volume);
  const differing = options.filter((name) => JSON.stringify(wanted.way[name]) !== JSON.stringify(staged.way[name]));
  if (differing.length > 0)
    log.warn('one more mount of the volume has the options that it was first mounted with here', {
      ...{ volume: `${volume.store}/${volume.name}`, differing },
    });
  return staged;
}

/**
 * How a mount that nobody serves any more is made anew, for those who have it: by the options it was made with, to wherever
 * its server is reached by now.
 */
export function mountedAnew(known: Source, now: Source): Source {
  if (known.kind !== 'nfs' || now.kind !== 'nfs') return known;
  const { addresses, port, mountPort, root, quota } = now.way;
  return { ...known, hosts: now.hosts, path: now.path, way: { ...known.way, addresses, port, mountPort, root, quota } };
}

function unenforced({ store, name }: Volume): StowageError {
  return new StowageError(
    `volume '${store}/${name}' is to be held to its size, and is mounted here since before that was so`,
    {
      code: 'conflict',
      reason: 'enforcement-needs-unmount',
      action: `Unmount it everywhere on this node, then repeat: stowage mounts says where ${store}/${name} is mounted.`,
    },
  );
}
