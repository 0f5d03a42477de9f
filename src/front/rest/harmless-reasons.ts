/**
 * What may be told to everybody in full: its text holds names and paths that the one who asked gave, sizes, and states;
 * nothing of how a store is reached, where it lies, or what else is on the machine. A reason that is not here is said in
 * short to those who are not administrators; scripts/docs/told.test.ts wants every reason to be decided upon.
 */
export const harmlessReasons: ReadonlySet<string> = new Set(
  `access-unsupported body-too-large cancel-pending canceled content-type-unsupported deadline duration-invalid
  enforcement-needs-unmount enforcement-permanent enforcement-unsupported enforcement-without-size expectation-unsupported headers-too-large host-id-invalid idempotency-key-reused label-filters label-invalid
  label-missing label-unfit-for-path labels-too-large method-not-allowed mount-not-found mount-other name-invalid
  operation-unknown page-limit path-empty path-invalid path-relative path-too-long path-unknown request-differs
  request-invalid request-malformed request-slow revision-differs role-insufficient shrink-refused size-invalid
  size-needed size-out-of-range size-required starting still-running stopping store-being-added store-busy
  store-bytes-limit store-exists store-from-file store-kind-unknown store-moved store-not-answering
  store-not-open store-opening store-out-of-scope store-read-only store-removed store-required store-silent
  store-unknown store-uri-secret store-volumes-limit target-dangling target-not-empty target-not-made
  target-parent-missing target-taken token-missing token-refused token-unknown trash-lookup-incomplete trash-unknown
  use-unknown uses-unsupported volume-ambiguous volume-being-made volume-exists volume-in-use volume-in-use-elsewhere
  volume-locked-elsewhere volume-lookup-incomplete volume-reference volume-unknown volume-would-shrink
  volume-written-elsewhere`.split(/\s+/),
);
