interface Reasoned {
  readonly reason: string;
}

/**
 * Reasons for which a store denies access, whatever the code is: a store that could not be opened is `unavailable` because Stowage
 * opens it again by itself, and the cause is still a permission. scripts/docs/told.test.ts compares this list with the errors of
 * stores that have the code `denied`.
 */
export const refusalReasons: ReadonlySet<string> = new Set(
  `nfs-credential-denied nfs-export-denied nfs-export-withheld nfs-hangs-up nfs-network-denied nfs-privileged-port nfs-root-squash
  nfs-tls-client-certificate nfs-tls-required owner-denied store-permission`.split(/\s+/),
);

export const isAccessDenied = ({ reason }: Reasoned): boolean => refusalReasons.has(reason);

const notNetwork = 'a permission problem, not a network problem';
/** These have another possible cause: a load balancer without a server behind it, and a wrong path in the store's URI. */
const mostLikely = {
  'nfs-hangs-up': 'ends every connection from this host at once',
  'nfs-export-withheld': "does not export the store's directory to this host",
} as const;
const isMostLikely = (reason: string): reason is keyof typeof mostLikely => Object.hasOwn(mostLikely, reason);

/** The text for users: says that it is a permission problem, without naming the server, the export or this host. */
export function refusalToUsers({ reason }: Reasoned, subject = 'the store'): string {
  if (isMostLikely(reason))
    return `the server of ${subject} ${mostLikely[reason]}: most likely it does not allow this host, which is ${notNetwork}`;
  return `access to ${subject} is denied: this is ${notNetwork}`;
}
