import { vi } from 'vitest';

// For every test, and for the programs that it starts.

/** The usual second is too short on a busy machine. */
const timeoutMs = 30_000;
const { waitFor } = vi;

/** The configuration has a setting only for `expect.poll`. */
vi.waitFor = (look, options = {}) =>
  waitFor(look, { timeout: timeoutMs, ...(typeof options === 'number' ? { timeout: options } : options) });

/** Files and folders of tests are readable for everybody, whatever umask the user has. */
process.umask(0o022);

/**
 * Variables that name a server or cluster: with them, a test would change the one of the user who runs the tests. HOME and XDG_RUNTIME_DIR
 * stay as they are, so a program that is started without folders of its own still finds the user's server.
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
