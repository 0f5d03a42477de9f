interface Reasoned {
  readonly reason: string;
}

/**
 * Reasons for which a store denies access. They mean that whatever the code is: a store that could not be opened is `unavailable`, since it
 * is opened again by itself, and the cause is still a permission. scripts/docs/told.test.ts wants every reason here that a store
 * gives with the code `denied` and that is said in short.
 */
export const refusalReasons: ReadonlySet<string> = new Set(
  `nfs-credential-denied nfs-export-denied nfs-export-withheld nfs-hangs-up nfs-network-denied nfs-privileged-port nfs-read-only nfs-root-squash
  nfs-tls-certificate nfs-tls-client-certificate nfs-tls-required owner-denied store-file-system-read-only store-permission
  store-records-foreign`.split(/\s+/),
);

export const isRefusal = ({ reason }: Reasoned): boolean => refusalReasons.has(reason);

/** For users: that it is a permission, and nothing of who refuses what to whom. */
export function refusalToUsers({ reason }: Reasoned, subject = 'the store'): string {
  // A load balancer without a server behind it does the same.
  if (reason === 'nfs-hangs-up')
    return `the server of ${subject} ends every connection from this host at once: most likely it does not allow this host, which is a permission problem, not a network problem`;
  return `access to ${subject} is denied: this is a permission problem, not a network problem`;
}
