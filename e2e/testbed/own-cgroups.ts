import { globSync, rmdirSync } from 'node:fs';

/**
 * Shell lines for process 1 of a machine. With cgroup v1, it moves to a group of its own with the name `$1`, in each
 * controller's tree. After `unshare --cgroup` and `remountOwnCgroups`, that group is the root of the tree. With cgroup
 * v2 the machine has no group of its own, because a group with processes can't have child groups.
 */
export const joinCgroup: readonly string[] = [
  'for at in /sys/fs/cgroup/*; do',
  '  if [ -L "$at" ] || [ ! -e "$at/cgroup.procs" ] || [ -e /sys/fs/cgroup/cgroup.procs ]; then continue; fi',
  '  own="$at/$(basename "$1")"',
  '  mkdir "$own"',
  // Without these values, no process can run in the group.
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
  // Only the controllers of the tree: the first mount has set the other options, which must not be repeated.
  '    cgroup\\ /sys/fs/cgroup/*)',
  '      which=$(echo "$options" | sed "s/,release_agent=[^,]*//; s/,xattr//; s/,clone_children//")',
  '      umount "$at" && mount -t cgroup -o "$which" cgroup "$at" ;;',
  '    cgroup2\\ /sys/fs/cgroup/*) umount "$at" && mount -t cgroup2 cgroup2 "$at" ;;',
  '  esac',
  'done',
];

/** For a program that entered the machine, which still is in the group of the process that started it. */
export const enterCgroupNamespace =
  'for at in /sys/fs/cgroup/*/cgroup.procs; do if [ ! -L "$(dirname "$at")" ]; then echo 0 >"$at"; fi; done; exec "$@"';

/** The kernel keeps empty groups. cgroup v1 has one tree per controller. */
export function removeCgroups(name: string): void {
  const found = globSync([`/sys/fs/cgroup/${name}`, `/sys/fs/cgroup/*/${name}`]);
  const groups = found.flatMap((top) => [top, ...globSync(`${top}/**/`).map((path) => path.replace(/\/$/, ''))]);
  for (const path of [...new Set(groups)].sort((a, b) => b.length - a.length)) {
    try {
      rmdirSync(path);
    } catch {
      // The group is already gone with its container.
    }
  }
}
