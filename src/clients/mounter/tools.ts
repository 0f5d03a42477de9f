/** The programs of the host that are run, and the packages that bring them. */
export const tools = {
  mount: { debian: 'mount', alpine: 'mount' },
  umount: { debian: 'mount', alpine: 'umount' },
  losetup: { debian: 'mount', alpine: 'losetup' },
  'mkfs.xfs': { debian: 'xfsprogs', alpine: 'xfsprogs' },
  xfs_growfs: { debian: 'xfsprogs', alpine: 'xfsprogs-extra' },
  xfs_repair: { debian: 'xfsprogs', alpine: 'xfsprogs' },
  'mkfs.ext4': { debian: 'e2fsprogs', alpine: 'e2fsprogs' },
  resize2fs: { debian: 'e2fsprogs', alpine: 'e2fsprogs-extra' },
  e2fsck: { debian: 'e2fsprogs', alpine: 'e2fsprogs' },
  setpriv: { debian: 'util-linux', alpine: 'setpriv' },
  'mount.nfs': { debian: 'nfs-common', alpine: 'nfs-utils' },
} as const satisfies Record<string, { debian: string; alpine: string }>;

export type Tool = keyof typeof tools;

export function installation(tool: Tool): string {
  return `Install it: apt install ${tools[tool].debian} (Debian, Ubuntu) or apk add ${tools[tool].alpine} (Alpine).`;
}

/** An ordinary user's PATH, and that of some service managers, lacks the folders where these programs are. */
export function searchPath(): string {
  return [process.env['PATH'] ?? '', '/usr/local/sbin', '/usr/sbin', '/usr/bin', '/sbin', '/bin']
    .filter((folder) => folder !== '')
    .join(':');
}
