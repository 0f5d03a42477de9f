import type { Source } from '#core/model.ts';
import type { LoopsWith } from './loop-files.ts';
import { attachedLoops, mountsOf } from './loops.ts';
import type { MountTable } from './mountinfo.ts';

/** Where the source, or a part of it, is mounted, by whomever; also where another mount hides it. */
export async function usersOf(
  source: Source,
  stage: string,
  table: MountTable,
  { sys, loopsWith }: { readonly sys: string; readonly loopsWith: LoopsWith },
): Promise<readonly string[]> {
  switch (source.kind) {
    case 'directory': {
      const shown = table.shown(source.path);
      if (shown === undefined) return [];
      const below = shown.root === '/' ? '/' : `${shown.root}/`;
      const same = table.entries.filter(({ device }) => device === shown.device);
      return same.filter(({ root }) => root === shown.root || root.startsWith(below)).map(({ at }) => at);
    }
    case 'loop': {
      const loops = await loopsWith(source.path, await attachedLoops(sys));
      return loops.flatMap((loop) => {
        const places = mountsOf(loop, table).map(({ at }) => at);
        // A device that somebody attached by hand and has not mounted is in use all the same.
        return places.length === 0 ? [loop.node] : places;
      });
    }
    case 'nfs': {
      // As the kernel shows it, `server:/path`, whoever mounted it; what is below the volume counts too.
      const tops = source.hosts.map((host) => `${host.includes(':') ? `[${host}]` : host}:${source.path}`);
      const ours = table.entries.filter(({ type, source: from }) => {
        return type.startsWith('nfs') && tops.some((top) => from === top || from.startsWith(`${top}/`));
      });
      // Each of our own mounts is a device of its own.
      const staged = table.at(stage);
      const same = table.entries.filter(({ device }) => device === staged?.device);
      return [...ours, ...same].map(({ at }) => at);
    }
    default:
      return source satisfies never;
  }
}
