/** Node flags of a keeper, which does little and runs for a long time. */
export const keeperFlags = ['--max-semi-space-size=1', '--optimize-for-size', '--disable-warning=ExperimentalWarning'];

/** Exit status of a keeper whose predecessor is alive, does not respond and cannot be killed from its container. */
export const outOfReachStatus = 2;

/**
 * Node flags of a data path. Requests allocate much short-lived memory: a small nursery is swept often and quickly,
 * while a large one promotes half of it (measured after 40,000 files: 128 MB resident instead of 240). One thread
 * sweeps it: on the few cores of a node, helper threads would take time from the server and the application.
 */
export const dataPathFlags = [
  '--max-semi-space-size=4',
  '--single-threaded-gc',
  '--disable-warning=ExperimentalWarning',
];
