import { globSync, rmdirSync } from 'node:fs';

/**
 * Lines of shell for the first process of a machine: it moves into a group of its own, `$1`'s name, wherever there is one tree
 * per controller. After `unshare --cgroup` that group is the top of the tree, once `showOwn` has mounted it anew. Where there is
 * only one tree, a group with processes cannot have groups below it: there, the machine has no group of its own.
 */
export const joinCgroup: readonly string[] = [
  'for at in /sys/fs/cgroup/*; do',
  '  if [ -L "$at" ] || [ ! -e "$at/cgroup.procs" ] || [ -e /sys/fs/cgroup/cgroup.procs ]; then continue; fi',
  '  own="$at/$(basename "$1")"',
  '  mkdir "$own"',
  // Otherwise nothing may run in it.
  '  for name in cpuset.cpus cpuset.mems; do',
  '    if [ -e "$at/$name" ]; then cat "$at/$name" >"$own/$name"; fi',
  '  done',
  '  echo 0 >"$own/cgroup.procs"',
  'done',
];

export const remountOwnCgroups: readonly string[] = [
  'mounts=$(cat /proc/mounts)',
  'echo "$mounts" | while read -r _ at type options _; do',
  '  case "$type $at" in',
  // Which tree it is; what else was said when it was first mounted is not to be said again.
  '    cgroup\\ /sys/fs/cgroup/*)',
  '      which=$(echo "$options" | sed "s/,release_agent=[^,]*//; s/,xattr//; s/,clone_children//")',
  '      umount "$at" && mount -t cgroup -o "$which" cgroup "$at" ;;',
  '    cgroup2\\ /sys/fs/cgroup/*) umount "$at" && mount -t cgroup2 cgroup2 "$at" ;;',
  '  esac',
  'done',
];

/** For a program that entered the machine: it was still in the group of whoever started it. */
export const enterCgroupNamespace =
  'for at in /sys/fs/cgroup/*/cgroup.procs; do if [ ! -L "$(dirname "$at")" ]; then echo 0 >"$at"; fi; done; exec "$@"';

/** The kernel keeps empty groups; there is one tree per controller. */
export function removeCgroups(name: string): void {
  const found = globSync([`/sys/fs/cgroup/${name}`, `/sys/fs/cgroup/*/${name}`]);
  const all = found.flatMap((top) => [top, ...globSync(`${top}/**/`).map((path) => path.replace(/\/$/, ''))]);
  for (const path of [...new Set(all)].sort((a, b) => b.length - a.length)) {
    try {
      rmdirSync(path);
    } catch {
      // Already gone with its container.
    }
  }
}
