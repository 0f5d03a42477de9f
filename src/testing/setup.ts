import { vi } from 'vitest';

// Applies to every test and to the programs that it starts.

/** The default of one second is too short on a busy machine. */
const timeoutMs = 30_000;
const { waitFor } = vi;

/** The configuration of vitest can change only the default of `expect.poll`. */
vi.waitFor = (look, options = {}) =>
  waitFor(look, { timeout: timeoutMs, ...(typeof options === 'number' ? { timeout: options } : options) });

/** Everybody can read the files and folders of tests, whatever umask the user has. */
process.umask(0o022);

/**
 * Variables that name a server or cluster. With them, a test would change the server or cluster of the user who runs
 * the tests. HOME and XDG_RUNTIME_DIR stay, so a program that a test starts without folders of its own still finds the
 * user's server.
 */
const ofTheUser = [
  'STOWAGE_SOCKET',
  'STOWAGE_URL',
  'STOWAGE_TOKEN',
  'STOWAGE_KEEPERS',
  'STOWAGE_CONTROLLER_TOKEN_FILE',
  'KUBECONFIG',
  'KUBERNETES_SERVICE_HOST',
  'NODE_NAME',
  'POD_IP',
  'POD_NAME',
  'POD_UID',
  'DOCKER_HOST',
];
for (const name of ofTheUser) delete process.env[name];
