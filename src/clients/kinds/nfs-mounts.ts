import type { SourceOf } from '#core/model.ts';
import type { MountTable } from '../mounter/mountinfo.ts';

/** Finds every path where the volume, or a part of it, is mounted, by us or by others, including hidden paths. */
export function nfsMountsOf(source: SourceOf<'nfs'>, stage: string, table: MountTable): readonly string[] {
  // Mounts by any program: the kernel shows the source as `server:/path`. A mount of a folder in the volume counts, too.
  const roots = source.hosts.map((host) => `${host.includes(':') ? `[${host}]` : host}:${source.path}`);
  const nfsMounts = table.entries.filter(({ type, source: from }) => {
    return type.startsWith('nfs') && roots.some((top) => from === top || from.startsWith(`${top}/`));
  });
  // Each of our own mounts has a device number of its own.
  const staged = table.mountAt(stage);
  const sameDevice = table.entries.filter(({ device }) => device === staged?.device);
  return [...nfsMounts, ...sameDevice].map(({ at }) => at);
}
