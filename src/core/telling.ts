import { type ErrorCode, errorCodes, isErrorCode } from './errors.ts';
import { isAccessDenied, refusalToUsers } from './refusals.ts';

/**
 * What may be told to everybody in full: its text holds names and paths that the one who asked gave, sizes, and states;
 * nothing of how a store is reached, where it lies, or what else is on the machine. A reason that is not here is said in
 * short to those who are not administrators, and to users of container engines; scripts/docs/told.test.ts wants every
 * reason to be decided upon.
 */
export const harmlessReasons: ReadonlySet<string> = new Set(
  `access-unsupported block-read-only body-too-large caller-gone cancel-pending canceled content-type-unsupported deadline duration-invalid
  host-client-in-container enforcement-needs-unmount enforcement-permanent enforcement-unsupported enforcement-without-size expectation-unsupported headers-too-large host-id-invalid idempotency-key-reused label-filters label-invalid
  label-missing label-unfit-for-path labels-too-large method-not-allowed mount-not-found mount-other mount-unfinished name-invalid
  operation-unknown page-limit path-empty path-invalid path-relative path-too-long path-unknown request-differs
  request-invalid request-malformed request-slow revision-differs role-insufficient shrink-refused size-invalid
  size-needed size-out-of-range size-required starting still-running stopping store-being-added store-busy
  store-access-denied store-bytes-limit store-exists store-from-file store-kind-unknown store-moved store-not-answering
  store-not-open store-object-invalid store-opening store-out-of-scope store-read-only store-removed store-required store-silent
  store-unknown store-uri-secret store-without-network store-volumes-limit target-dangling target-not-empty target-not-made
  target-parent-missing target-taken token-missing token-refused token-unknown trash-lookup-incomplete trash-unknown
  use-unknown uses-unsupported volume-ambiguous volume-being-made volume-exists
  volume-locked-elsewhere volume-lookup-incomplete volume-reference volume-unknown volume-used-by-pod volume-would-shrink
  csi-capacity-range csi-not-staged csi-other-node csi-request-invalid csi-store-required csi-store-unknown csi-underway csi-volume-differs
  volume-written-elsewhere engine-remaps-users plugin-block-volume plugin-option-invalid plugin-option-of-administrator plugin-option-unknown
  plugin-other-scope plugin-overloaded plugin-request-invalid plugin-store-contradiction plugin-store-unnamed
  plugin-volume-differs plugin-without-store volume-root-squashed group-refused pod-user-namespace inline-not-allowed
  claim-name-incomplete claim-name-unfit claim-unsupported class-parameter-invalid class-store-unknown store-from-cluster
  agent-absent node-not-registered node-unknown store-full-everywhere store-on-no-node volume-node-gone volume-node-unknown
  agent-too-old check-only-from-pods pod-ended pod-ending pod-network-slow pod-networks-hidden pod-replaced pod-unasked pod-unknown
  pod-without-address pods-unknown
  condition-unsupported not-in-a-cluster review-failed rule-missing store-of-nodes token-ambiguous
  volume-has-another-pv volume-not-empty volume-still-used volume-store-gone volume-store-moved`.split(/\s+/),
);

/** What went wrong, in whatever shape it is passed on. */
export interface Trouble {
  readonly code: string;
  readonly reason: string;
  readonly message: string;
  readonly action: string;
  /** What they are told who are not administrators, where that is neither all of it nor only what its code says. */
  readonly toUsers?: { readonly message: string; readonly action?: string } | undefined;
}

const inShort = {
  busy: 'something else is at work there',
  canceled: 'it was cancelled',
  conflict: 'the store cannot use the place it was given',
  deadline: 'the store did not answer in time: it is the network or the server',
  denied: 'the store does not let Stowage do this: it is a permission',
  exhausted: 'no room is left in the store',
  exists: 'something is there already that is no volume',
  'in-use': 'it is in use',
  internal: 'Stowage failed to do this',
  invalid: 'the store cannot use the place it was given',
  'not-found': 'something that is needed for this is missing',
  'out-of-range': 'the store cannot do this',
  stale: 'it has changed meanwhile',
  unauthenticated: 'this needs a token',
  unavailable: 'the store cannot be used at the moment: it is the network, the server or the disk',
  unsupported: 'the store cannot do this',
} as const satisfies Record<ErrorCode, string>;

/** For reasons where the text of the code would blame the wrong part: nobody denies Stowage access, or the store is not the cause. */
export const inShortByReason: ReadonlyMap<string, string> = new Map([
  ['agent-lost', 'the connection to the agent of the node was lost before it answered'],
  ['agent-no-answer', 'the agent of the node did not answer in time'],
  ['agent-not-serving', 'the agent of the node does not serve requests at the moment'],
  ['nfs-read-only', "the store's server allows reading only"],
  ['nfs-tls-certificate', "Stowage does not trust the certificate of the store's server"],
  ['pod-network-ambiguous', 'several pods of the node have the address of the pod'],
  ['pod-network-tool-missing', 'the agent of the node lacks a program'],
  ['pod-network-unknown', 'the agent of the node did not find the network of the pod'],
  ['pod-network-unreadable', 'the agent of the node could not search for the network of the pod'],
  ['store-file-system-read-only', "the store's file system is read-only"],
  ['store-records-foreign', "Stowage cannot use the directory for the store's records"],
]);

/**
 * What somebody is told of it who is no administrator. How a store is reached and what else is there is not for them; it is
 * said in short, with how the administrator finds the whole.
 */
export function toldToUser(trouble: Trouble, how: string): Trouble {
  const { code, reason, toUsers } = trouble;
  if (isAccessDenied(trouble)) {
    const action = `Ask the administrator to grant Stowage access; the reason is found ${how}`;
    return { code, reason, message: toUsers?.message ?? refusalToUsers(trouble), action };
  }
  if (toUsers !== undefined) return { code, reason, action: trouble.action, ...toUsers };
  if (harmlessReasons.has(reason)) return trouble;
  const ask = `sk the administrator, who finds out why ${how}`;
  return {
    ...{ code, reason },
    message: inShortByReason.get(reason) ?? (isErrorCode(code) ? inShort[code] : inShort.internal),
    action: isErrorCode(code) && errorCodes[code].retry ? `Try again in a while. If it persists, a${ask}` : `A${ask}`,
  };
}
