const oomProtection = 'keeping the data path of NFS stores when memory is short';

/** The host programs that Stowage runs, the packages that contain them, and what needs them. */
export const tools = {
  mount: { debian: 'mount', alpine: 'mount', for: 'mounting' },
  umount: { debian: 'mount', alpine: 'umount', for: 'mounting' },
  'mkfs.xfs': { debian: 'xfsprogs', alpine: 'xfsprogs', for: 'image volumes' },
  xfs_repair: { debian: 'xfsprogs', alpine: 'xfsprogs', for: 'image volumes' },
  'mkfs.ext4': { debian: 'e2fsprogs', alpine: 'e2fsprogs', for: 'image volumes' },
  resize2fs: { debian: 'e2fsprogs', alpine: 'e2fsprogs-extra', for: 'image volumes' },
  e2fsck: { debian: 'e2fsprogs', alpine: 'e2fsprogs', for: 'image volumes' },
  setpriv: { debian: 'util-linux', alpine: 'setpriv', for: 'mounting volumes of NFS stores' },
  prlimit: { debian: 'util-linux', alpine: 'util-linux-misc', for: oomProtection },
  choom: { debian: 'util-linux', alpine: 'util-linux-misc', for: oomProtection },
  // Needed only if an administrator chooses client=host, so the doctor does not mention it.
  'mount.nfs': { debian: 'nfs-common', alpine: 'nfs-utils', for: undefined },
} as const satisfies Record<string, { debian: string; alpine: string; for: string | undefined }>;

export type Tool = keyof typeof tools;

export function installHint(tool: Tool): string {
  return `Install it: apt install ${tools[tool].debian} (Debian, Ubuntu) or apk add ${tools[tool].alpine} (Alpine).`;
}

/** The PATH of ordinary users, and of some service managers, lacks the folders of these programs. */
export function searchPath(): string {
  return [process.env['PATH'] ?? '', '/usr/local/sbin', '/usr/sbin', '/usr/bin', '/sbin', '/bin']
    .filter((folder) => folder !== '')
    .join(':');
}
